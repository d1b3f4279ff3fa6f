"""Reward against the size of the memory in short corridors, fixed spans and Expire-Span (Fig. 4, left).

python -m experiments.reinforcement.corridor --output=DIR [--seeds=5] [--updates=60]
Trains `configs/corridor.py:tiny,ppo` with fixed spans and with Expire-Span under several losses, and
prints a table; DIR/corridor.png has reward against the steps that the memory holds, every seed a point,
and the two players of `environments/floors.py`. What is finished is not repeated.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from configs import corridor
from experiments import markdown
from experiments.reinforcement import runs
from longmem_jax.reinforcement.environments import floors
from longmem_jax.reporting import figures

FIXED, LEARNED = 'fixed span', 'Expire-Span'
SPANS = (8, 16, 24)
LOSSES = (3e-5, 6e-5)
RAMP = 2  # of 40 steps; as a share of the longest span about what the paper has, 16 of 200


def configuration(kind: str, value: float, updates: int) -> Any:
    """The agent with a fixed span of `value` steps, or Expire-Span with the loss weight `value`."""
    if kind == FIXED:
        config = corridor.get_config(f'tiny,ppo,memory=transformer_xl,memory_size={value}')
    else:
        config = corridor.get_config('tiny,ppo,memory=expire_span')
        config.model.expire_span.update(ramp=RAMP, position_length=RAMP)
        config.train.loss_weights.expire_span = value
    config.optimizer.schedule = 'constant'
    config.train.num_steps, config.train.log_every = updates, 5
    return config


def label(kind: str, value: float) -> str:
    """The name of a row."""
    return f'{kind} {value}' if kind == FIXED else f'{kind}, loss {value:g}'


def table(found: dict[tuple[str, float], list[dict]]) -> str:
    """Rows: what was trained, reward, steps held, length of episodes."""
    heads = ['memory', 'reward', 'likeliest actions', 'steps held', 'at the last step', 'steps']
    lines = []
    for (kind, value), seeds in found.items():
        columns = [
            [seed['test']['reward'] for seed in seeds],
            [seed['test_greedy']['reward'] for seed in seeds],
            [seed['held']['mean'] for seed in seeds],
            [seed['held']['last'] for seed in seeds],
            [seed['test']['length'] for seed in seeds],
        ]
        digits = (2, 2, 1, 1, 1)
        spans = [markdown.span(*column) for column in zip(columns, digits, strict=True)]
        lines.append([label(kind, value), *spans])
    return markdown.table(heads, lines)


def draw(found: dict[tuple[str, float], list[dict]], ends: floors.Floors, path: Path) -> None:
    """Reward against the steps held: every seed a point, means of the seeds joined."""
    figure = figures.figure(7, 4.5)
    axes = figure.subplots()
    for color, marker, kind in (('C0', 's', FIXED), ('C1', 'o', LEARNED)):
        means = []
        for (of, value), seeds in found.items():
            if of != kind:
                continue
            x, y = zip(
                *((seed['held']['mean'], seed['test']['reward']) for seed in seeds), strict=True
            )
            axes.plot(x, y, marker, color=color, alpha=0.45, markersize=5, linestyle='')
            means.append((statistics.mean(x), statistics.mean(y), value))
        if not means:
            continue
        means.sort()
        x, y, values = zip(*means, strict=True)
        axes.plot(x, y, marker=marker, color=color, markersize=9, label=kind)
        for at, height, value in means:
            name = f'{value:g}'
            axes.annotate(name, (at, height), (6, -12), textcoords='offset points', color=color)
    for name, earned in ends._asdict().items():
        axes.axhline(earned.reward, color='gray', linestyle=':')
        axes.text(0.05, earned.reward + 0.01, f'a player who {name}', color='gray', fontsize=8)
    axes.set_xlabel('earlier steps that the memory holds, mean over steps')
    axes.set_ylabel('reward in new episodes')
    axes.set_xlim(left=0)
    axes.set_ylim(0.35, 1.06)
    axes.grid(alpha=0.3)
    axes.legend(loc='lower right')
    figure.savefig(path)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--updates', type=int, default=60)
    parser.add_argument('--spans', type=int, nargs='*', default=SPANS)
    parser.add_argument('--losses', type=float, nargs='*', default=LOSSES)
    options = parser.parse_args()
    chosen = [(FIXED, span) for span in options.spans] + [
        (LEARNED, loss) for loss in options.losses
    ]
    found = {}
    for kind, value in chosen:
        config = configuration(kind, value, options.updates)
        folder = options.output / label(kind, value).replace(' ', '_').replace(',', '')
        found[kind, value] = runs.train(config, folder, options.seeds)
    ends = floors.FLOORS[config.reinforcement.environment](config.reinforcement.task.to_dict())
    print(table(found))
    for name, earned in ends._asdict().items():
        print(f'a player who {name}: reward {earned.reward:.3f}')
    draw(found, ends, options.output / 'corridor.png')


if __name__ == '__main__':
    main()
