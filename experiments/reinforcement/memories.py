"""Reward of several memories in Repeat Previous: which of four symbols was shown four steps ago?

python -m experiments.reinforcement.memories --output=DIR [--seeds=1] [--updates=100] [--memories ...]
Two layers of 64 learn with PPO in rollouts of 32 steps, in segments of 4: what was shown four steps ago
is always in the memory, never in the segment. Prints a table; what is finished is not repeated.
"""

import argparse
from pathlib import Path
from typing import Any

from configs import memory_chain
from experiments import markdown
from experiments.reinforcement import runs
from longmem_jax.reinforcement import settings
from longmem_jax.reinforcement.environments import floors

MEMORIES = (
    'local', 'transformer_xl', 'expire_span', 'adaptive_span', 'compressive', 'infini', 'memorizing',
    'linear', 'memsizer',
)  # fmt: skip
BACK, STEPS, SYMBOLS = 4, 24, 4
SIZE = 8  # steps that memories reach back


def configuration(memory: str, updates: int) -> Any:
    """The agent with a memory."""
    config = memory_chain.get_config(f'tiny,memory={memory},memory_size={SIZE}')
    settings.use(config, 'repeat_previous', actions=SYMBOLS, observation=SYMBOLS)
    config.reinforcement.task.update(back=BACK, steps=STEPS, symbols=SYMBOLS)
    config.reinforcement.discount = 0.5  # an answer has no bearing on what comes later
    train = config.train
    train.segment_length = config.evaluate.segment_length = BACK
    train.segments_per_step, train.num_lanes, config.evaluate.num_lanes = 32 // BACK, 64, 64
    train.num_steps, train.log_every = updates, 5
    config.optimizer.schedule, config.optimizer.learning_rate = 'constant', 2e-3
    return config


def table(found: dict[str, list[dict]]) -> str:
    """Rows: memories, by reward."""
    heads = ['memory', 'reward', 'right answers, %', 'parameters', 'state, kB per lane']
    lines = []
    for memory, seeds in sorted(found.items(), key=lambda item: -item[1][0]['test']['reward']):
        lines.append(
            [
                f'`{memory}`',
                markdown.span([seed['test']['reward'] for seed in seeds], 2),
                markdown.span([100 * seed['test']['right'] for seed in seeds], 0),
                f'{seeds[0]["parameters"]:,}',
                f'{seeds[0]["state_bytes_per_lane"] / 1000:.1f}',
            ]
        )
    return markdown.table(heads, lines)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument('--updates', type=int, default=100)
    parser.add_argument('--memories', nargs='+', default=MEMORIES)
    options = parser.parse_args()
    found = {}
    for memory in options.memories:
        config = configuration(memory, options.updates)
        found[memory] = runs.train(config, options.output / memory, options.seeds)
    print(table(found))
    ends = floors.FLOORS[config.reinforcement.environment](config.reinforcement.task.to_dict())
    for name, earned in ends._asdict().items():
        print(f'a player who {name}: reward {earned.reward:.3f}')


if __name__ == '__main__':
    main()
