"""Figures of lifelong learning: what is known over time, and where neighbours come from."""

import typing
from collections.abc import Mapping, Sequence

import numpy as np

from longmem_jax.reporting import figures

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure


def _shares(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], labels: tuple[str, str]
) -> 'Figure':
    """Shares as colours with their numbers in per cent; nan stays empty."""
    figure = figures.figure(1.8 + 0.8 * len(columns), 1.4 + 0.5 * len(rows))
    axes = figure.subplots()
    image = axes.imshow(100 * values, vmin=0, vmax=100, cmap='viridis', aspect='auto')
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if np.isfinite(value):
                colour = 'black' if value > 0.6 else 'white'
                axes.text(
                    j, i, f'{100 * value:.0f}', ha='center', va='center', color=colour, fontsize=8
                )
    axes.set_xticks(range(len(columns)), columns, fontsize=8, rotation=30, ha='right')
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylabel(labels[0])
    axes.set_xlabel(labels[1])
    figure.colorbar(image, label='%')
    return figure


def matrix(scores: np.ndarray, names: Sequence[str], before: np.ndarray | None = None) -> 'Figure':
    """Scores after each task (rows) on each task (columns), from 0 to 1.

    `before` any training = the first row.
    """
    rows = [f'after {name}' for name in names]
    if before is not None:
        scores, rows = np.concatenate([np.asarray(before)[None], scores]), ['before', *rows]
    return _shares(np.asarray(scores, np.float64), rows, names, ('', 'score on'))


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


def neighbours(shares: np.ndarray, names: Sequence[str]) -> 'Figure':
    """From which task (columns) the neighbours of each task's test rows (rows) come, see
    `metrics.origins`.
    """
    return _shares(
        np.asarray(shares, np.float64), names, names, ('test rows of', 'neighbours from')
    )
