"""Figures of lifelong learning: what is known over time."""

import typing
from collections.abc import Sequence

import numpy as np

from longmem_jax.reporting import figures

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure


def shares(
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
    return shares(np.asarray(scores, np.float64), rows, names, ('', 'score on'))
