"""Reward against the size of the memory, fixed spans and Expire-Span, in any environment (Fig. 4).

`corridor.py` and `portal.py` are the commands. Each trains the same agent with fixed spans, in all
layers and in a single one, and with Expire-Span under several losses, and prints a table; DIR/NAME.png
has reward against the steps that the layers hold together, every seed a point, and the two players of
`experiments/reinforcement/floors.py`. What is finished is not repeated.
"""

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import markdown
from experiments.options import add_seeds, make_parser
from experiments.reinforcement import floors, runs
from longmem_jax.reporting import figures

FIXED, ALONE, LEARNED = 'fixed span', 'fixed span in one layer', 'Expire-Span'


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
      name: of the figure.
      agent: (variants of the configuration, such as 'memory=local') to the configuration.
      spans: steps of the fixed spans.
      alone: steps of those of an agent with a single layer.
      losses: weights of Expire-Span's loss.
      longest, ramp: the longest of Expire-Span's spans and its ramp, in steps.
      updates: of training.
      schedule: of the learning rate.
    """

    name: str
    agent: Callable[[str], Any]
    spans: tuple[int, ...]
    alone: tuple[int, ...]
    losses: tuple[float, ...]
    longest: int
    ramp: int
    updates: int
    schedule: str = 'constant'


def configuration(task: Task, kind: str, value: float, updates: int) -> Any:
    """The agent with a fixed span of `value` steps, or Expire-Span with the loss weight `value`."""
    if kind in (FIXED, ALONE):
        config = task.agent(f'memory=transformer_xl,memory_size={value}')
        if kind == ALONE:
            config.model.num_layers = 1
            for part in ('attention', 'feed_forward'):
                config.model[part] = config.model[part][:1]
    else:
        config = task.agent(f'memory=expire_span,memory_size={task.longest}')
        config.model.expire_span.update(ramp=task.ramp, position_length=task.ramp)
        config.train.loss_weights.expire_span = value
    config.optimizer.schedule = task.schedule
    config.train.num_steps, config.train.log_every = updates, 5
    return config


def label(kind: str, value: float) -> str:
    """The name of a row."""
    if kind == LEARNED:
        return f'{kind}, loss {value:g}'
    return f'{kind} {value}' if kind == FIXED else f'{kind}, {value}'


def together(seed: dict[str, Any], name: str) -> float:
    """Steps that all layers of a trained agent hold, the sum; `name` is 'mean' or 'last'."""
    return seed['held'][name] * len(seed['held']['layers'])


def table(found: dict[tuple[str, float], list[dict]]) -> str:
    """Rows: what was trained, reward, steps held, state of a lane, length of episodes, parameters."""
    heads = [
        'memory', 'reward, drawn actions', 'reward, most likely actions', 'steps held, all layers',
        'at the last step', 'state, kB', 'length of episodes, steps', 'parameters',
    ]  # fmt: skip
    lines = []
    for (kind, value), seeds in found.items():
        columns = [
            [seed['test']['reward'] for seed in seeds],
            [seed['test_greedy']['reward'] for seed in seeds],
            [together(seed, 'mean') for seed in seeds],
            [together(seed, 'last') for seed in seeds],
            [seed['state_bytes_per_lane'] / 1000 for seed in seeds],
            [seed['test']['length'] for seed in seeds],
        ]
        digits = (2, 2, 1, 1, 1, 1)
        spans = [markdown.span(*column) for column in zip(columns, digits, strict=True)]
        lines.append([label(kind, value), *spans, f'{seeds[0]["parameters"]:,}'])
    return markdown.table(heads, lines)


def draw(found: dict[tuple[str, float], list[dict]], ends: floors.Floors, path: Path) -> None:
    """Reward against the steps held: every seed a point, means of the seeds joined."""
    figure, axes = figures.one_panel(7, 4.5)
    for color, marker, kind in (('C0', 's', FIXED), ('C2', 'D', ALONE), ('C1', 'o', LEARNED)):
        means = []
        for (of, value), seeds in found.items():
            if of != kind:
                continue
            x, y = zip(
                *((together(seed, 'mean'), seed['test']['reward']) for seed in seeds), strict=True
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
    low, high = ends.forgets.reward, ends.remembers.reward
    apart = high - low
    for name, earned in ends._asdict().items():
        axes.axhline(earned.reward, color='gray', linestyle=':')
        axes.text(
            0.05, earned.reward + 0.02 * apart, f'a player who {name}', color='gray', fontsize=8
        )
    figures.label(
        axes,
        'earlier steps that all layers hold together, mean over steps',
        'reward in new episodes',
    )
    axes.set_xlim(left=0)
    axes.set_ylim(low - 0.3 * apart, high + 0.12 * apart)
    axes.legend(loc='lower right')
    figures.save(figure, path)


def main(
    task: Task, description: str, in_cells: Callable[[int], Task] | None = None, least: int = 1
) -> None:
    """Runs the command of a task; with `in_cells`, the task for `--cells=`, at least `least`."""
    parser = make_parser(description)
    parser.add_argument('--output', type=Path, required=True)
    add_seeds(parser, '5')
    if in_cells:
        parser.add_argument('--cells', type=int, help='of the longest corridor')
    parser.add_argument('--updates', type=int)
    parser.add_argument('--spans', type=int, nargs='*')
    parser.add_argument('--alone', type=int, nargs='*', help='in one layer')
    parser.add_argument('--losses', type=float, nargs='*')
    options = parser.parse_args()
    if in_cells and options.cells is not None:
        if options.cells < least:
            parser.error(f'--cells={options.cells}: must be at least {least}')
        task = in_cells(options.cells)
    rows = {FIXED: options.spans, ALONE: options.alone, LEARNED: options.losses}
    usual = {FIXED: task.spans, ALONE: task.alone, LEARNED: task.losses}
    chosen = [
        (kind, value)
        for kind, given in rows.items()
        for value in (usual[kind] if given is None else given)
    ]
    found = {}
    for kind, value in chosen:
        config = configuration(task, kind, value, options.updates or task.updates)
        folder = options.output / label(kind, value).replace(' ', '_').replace(',', '')
        found[kind, value] = runs.train(config, folder, options.seeds)
    ends = floors.FLOORS[config.reinforcement.environment](config.reinforcement.task.to_dict())
    print(table(found))
    for name, earned in ends._asdict().items():
        print(f'a player who {name}: reward {earned.reward:.3f}')
    draw(found, ends, options.output / f'{task.name}.png')
