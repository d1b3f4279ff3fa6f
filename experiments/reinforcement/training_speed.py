"""Training steps per second of an agent in short corridors at several numbers of environments.

python -m experiments.reinforcement.training_speed [--lanes 1 64 1024] [--rounds=5]
`configs/corridor.py:tiny` with a fixed span of 24: rollouts of 32 steps and one update, advantage
actor-critic. Every round times each number of lanes once, in turn, after one untimed step; the table
has medians over rounds.
"""

import statistics
import time

import jax

from configs import corridor
from experiments import markdown
from experiments.options import make_parser
from experiments.reinforcement import runs


def main() -> None:
    """Prints the table."""
    parser = make_parser(__doc__)
    parser.add_argument('--lanes', type=int, nargs='+', default=[1, 64, 1024])
    parser.add_argument('--rounds', type=int, default=5)
    options = parser.parse_args()
    programs, states, times = {}, {}, {lanes: [] for lanes in options.lanes}
    for lanes in options.lanes:
        config = corridor.get_config('tiny,memory=transformer_xl,memory_size=24')
        config.train.num_lanes = config.evaluate.num_lanes = lanes
        built = runs.built(config)
        programs[lanes] = built.lower_step().compile()
        states[lanes], _ = jax.block_until_ready(programs[lanes](built.first_state()))
    steps = config.train.segments_per_step * config.train.segment_length
    for _ in range(options.rounds):
        for lanes, program in programs.items():
            begun = time.perf_counter()
            states[lanes], _ = jax.block_until_ready(program(states[lanes]))
            times[lanes].append(time.perf_counter() - begun)
    lines = []
    for lanes, seconds in times.items():
        rate = 1 / statistics.median(seconds)
        ends = f'{1 / max(seconds):.2f} - {1 / min(seconds):.2f}'
        lines.append([f'{lanes:,}', f'{rate:.2f} ({ends})', f'{rate * lanes * steps:,.0f}'])
    heads = ['environments', 'training steps per second', 'environment steps per second']
    print(markdown.table(heads, lines))


if __name__ == '__main__':
    main()
