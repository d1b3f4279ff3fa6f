"""Reward of several memories in tasks whose answer was shown some steps ago.

python -m experiments.reinforcement.memories --output=DIR [--task=memory_chain] [--seeds=3]
`repeat_previous`: which of four symbols was shown four steps ago? `memory_chain`, of gymnax (extra
`[rl]`): which bit was shown eleven steps ago? Two layers of 64 learn with PPO in rollouts of 32, in
segments of 4, so that the answer is always in the memory, never in the segment. Prints a table; what is
finished is not repeated.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import memory_chain
from experiments import markdown
from experiments.options import add_seeds, make_parser
from experiments.reinforcement import floors, runs
from longmem_jax.agents import settings

MEMORIES = (
    'local', 'transformer_xl', 'expire_span', 'adaptive_span', 'compressive', 'infini', 'memorizing',
    'linear', 'memsizer',
)  # fmt: skip
SEGMENT = 4
BACK, STEPS, SYMBOLS = 4, 24, 4  # Repeat Previous
SIZE = 8  # steps that memories reach back there
CHAIN = 12  # steps between the bit and the answer, and steps that memories reach back


def repeat_previous(memory: str) -> Any:
    """The agent with a memory in Repeat Previous."""
    config = memory_chain.get_config(f'tiny,memory={memory},memory_size={SIZE}')
    settings.use(config, 'repeat_previous', actions=SYMBOLS, observation=SYMBOLS)
    config.reinforcement.task.update(back=BACK, steps=STEPS, symbols=SYMBOLS)
    config.reinforcement.discount = 0.5  # an answer has no bearing on what comes later
    config.train.num_lanes = config.evaluate.num_lanes = 64
    config.train.num_steps = 100
    config.optimizer.schedule, config.optimizer.learning_rate = 'constant', 2e-3
    return config


def chain(memory: str) -> Any:
    """The agent with a memory in MemoryChain."""
    config = memory_chain.get_config(f'tiny,length={CHAIN},memory={memory},memory_size={CHAIN}')
    fields = config.model[memory]
    if memory == 'expire_span':  # with its ramp of 4, and first spans that reach the bit
        fields.update(max_span=CHAIN - 3, initial_share=0.9)
    elif memory == 'compressive':  # 4 steps, and 8 in slots of 4
        fields.update(memory_length=4, compressed_length=2)
    return config


TASKS: dict[str, Callable[[str], Any]] = {'repeat_previous': repeat_previous, 'memory_chain': chain}


def configuration(task: str, memory: str, updates: int = 0) -> Any:
    """The agent with a memory in a task; `updates`: their number, if not the task's own."""
    config = TASKS[task](memory)
    train = config.train
    train.segment_length = config.evaluate.segment_length = SEGMENT
    train.segments_per_step, train.log_every = 32 // SEGMENT, 5
    train.num_steps = updates or train.num_steps
    return config


def table(found: dict[str, list[dict]]) -> str:
    """Rows: memories, by reward; an answer earns what another costs, which tells how many are right."""
    rows = []
    for memory, seeds in found.items():
        rewards = [seed['test']['reward'] for seed in seeds]
        row = [
            f'`{memory}`',
            markdown.span(rewards, 2),
            markdown.span([50 * (1 + reward) for reward in rewards], 0),
            f'{seeds[0]["parameters"]:,}',
            f'{seeds[0]["state_bytes_per_lane"] / 1000:.1f}',
        ]
        rows.append((sum(rewards), row))
    rows.sort(key=lambda pair: -pair[0])
    heads = ['memory', 'reward', 'right answers, %', 'parameters', 'state, kB per lane']
    return markdown.table(heads, [row for _, row in rows])


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--task', choices=TASKS, default='repeat_previous')
    add_seeds(parser)
    parser.add_argument('--updates', type=int, default=0, help="0: the task's own number")
    parser.add_argument('--memories', nargs='+', default=MEMORIES)
    options = parser.parse_args()
    found = {}
    for memory in options.memories:
        config = configuration(options.task, memory, options.updates)
        found[memory] = runs.train(config, options.output / memory, options.seeds)
    print(table(found))
    ends = floors.FLOORS[config.reinforcement.environment](config.reinforcement.task.to_dict())
    for name, earned in ends._asdict().items():
        print(f'a player who {name}: reward {earned.reward:.3f}')


if __name__ == '__main__':
    main()
