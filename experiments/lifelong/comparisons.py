"""Methods compared: the bootstrap over test rows, and where the neighbours of test rows come from."""

import typing
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from longmem_jax.reporting import figures

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWS_AT_ONCE = 1 << 22  # row indices kept in memory at once


class Difference(NamedTuple):
    """Of two methods on the same rows.

    Attributes:
      mean: of the first one's scores less the second one's.
      low, high: 95 % interval of it.
      p: two-sided; how often a difference of no sign, or of the other one, is drawn.
    """

    mean: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, draws: int = 10_000, seed: int = 0
) -> Difference:
    """Whether the scores of one method, [rows] from 0 to 1, are better than those of another for
    the same test rows (Efron and Tibshirani, 1993, ch. 16), by `draws` samples of rows with
    replacement.

    Raises:
      ValueError: no rows, or not the same.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise ValueError(f'scores of the same rows are needed, got {first.shape}, {second.shape}')
    differences, random = first - second, np.random.default_rng(seed)
    at_once = max(DRAWS_AT_ONCE // len(first), 1)
    means = np.concatenate([
        differences[random.integers(0, len(first), (min(at_once, draws - at), len(first)))].mean(1)
        for at in range(0, draws, at_once)
    ])  # fmt: skip
    low, high = np.quantile(means, (0.025, 0.975))
    # The observed sample counts as a draw, so that p is never 0.
    tail = 1 + min((means <= 0).sum(), (means >= 0).sum())
    return Difference(
        float(differences.mean()), float(low), float(high), float(min(2 * tail / (draws + 1), 1.0))
    )


def origins(
    numbers: np.ndarray, found: np.ndarray, asked: np.ndarray, tasks: np.ndarray, num_tasks: int
) -> np.ndarray:
    """From which tasks the neighbours of test rows come, float64 [tasks asked, tasks of
    neighbours]: shares with the sum 1, or 0 if there are no neighbours. `numbers` are rows of the
    stream, int [test rows, k], `found` bool of the same shape; `asked` and `tasks` have the task of
    every test row and of every row of the stream.
    """
    counts = np.zeros((num_tasks, num_tasks))
    lines = np.broadcast_to(np.asarray(asked)[:, None], np.shape(numbers))
    kept = np.asarray(found, bool)
    origin = np.asarray(tasks)[np.where(kept, numbers, 0)]
    np.add.at(counts, (lines[kept], origin[kept]), 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def first_and_last(scores: Mapping[str, np.ndarray], names: Sequence[str]) -> 'Figure':
    """Scores on the first and on the last task after every task, a line for each method's matrix.

    What is lost on the first is forgetting; what is missing on the last is room that the earlier
    tasks did not leave.
    """
    figure = figures.figure(8.4, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, task, which in zip(panels, (0, len(names) - 1), ('first', 'last'), strict=True):
        for method, values in scores.items():
            axes.plot(
                range(len(names)), 100 * np.asarray(values)[:, task], marker='o', label=method
            )
        axes.set_title(f'{which} task: {names[task]}', fontsize=10)
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=30, ha='right')
        axes.set_xlabel('after')
        axes.grid(alpha=0.3)
    panels[0].set_ylabel('score, %')
    lines, methods = panels[0].get_legend_handles_labels()
    figure.legend(lines, methods, fontsize=8, loc='outside right upper')
    return figure
