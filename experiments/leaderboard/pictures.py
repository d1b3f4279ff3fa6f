"""Four figures of the leaderboard: every row has a panel, or a line, of its own."""

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from experiments.leaderboard import columns, rows, table
from longmem_jax.reporting import figures

ACROSS = 5


def draw(found: table.Found, output: Path) -> list[Path]:
    """Writes the figures that have cells, as PNG files in `output`; returns their paths."""
    drawn = []
    for name, function in FIGURES.items():
        figure = function(found)
        if figure is not None:
            drawn.append(output / f'{name}.png')
            figures.save(figure, drawn[-1])
    return drawn


def _mean(
    several: dict[int, dict[str, Any]], name: str, size: str, field: str
) -> tuple[float, float, float]:
    """(mean, least, greatest) in percent, over seeds; see `table.scored`."""
    scores = table.scored(several, name, size)
    values = [100 * score[field] for score in scores if score.get(field) is not None]
    return (statistics.mean(values), min(values), max(values)) if values else (math.nan,) * 3


def panels(labels: list[str], x: str) -> tuple[matplotlib.figure.Figure, dict[str, Any]]:
    """A small panel per label, with equal axes: right answers in percent above `x`."""
    across = min(ACROSS, len(labels))
    down = math.ceil(len(labels) / across)
    figure = figures.figure(2.4 * across + 0.6, 1.9 * down + 0.6)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).reshape(-1)
    for axes, label in zip(grid, labels, strict=False):
        axes.set_title(label, fontsize=8)
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=7)
    _hide(grid, len(labels), across)
    figure.supxlabel(x, fontsize=8)
    figure.supylabel('right answers, %', fontsize=8)
    return figure, dict(zip(labels, grid, strict=False))


def _hide(grid: Any, used: int, across: int) -> None:
    """Hides the panels after those used; the last of every column has the labels of the axis."""
    for axes in grid[used:]:
        axes.set_visible(False)
    for axes in grid[max(used - across, 0) : used]:
        axes.tick_params(labelbottom=True)


def by_pairs(found: table.Found) -> matplotlib.figure.Figure | None:
    """MQAR: a panel per row, accuracy by size, with the memory reset dashed, all other rows in grey."""
    by_row = table.memories(found.get('mqar', {}))
    if not by_row:
        return None
    figure, by_label = panels(list(by_row), 'tokens x pairs')
    firsts = {row: next(iter(several.values())) for row, several in by_row.items()}
    sizes = list(next(iter(firsts.values()))['scores']['mqar'])
    curves = {
        row: [_mean(several, 'mqar', size, 'kept') for size in sizes]
        for row, several in by_row.items()
    }
    places = range(len(sizes))
    for row, axes in by_label.items():
        for other, curve in curves.items():
            if other != row:
                axes.plot(places, [mean for mean, *_ in curve], color='0.85', linewidth=0.8)
        mean, low, high = zip(*curves[row], strict=True)
        axes.plot(places, mean, marker='o', markersize=3, color='C0', label='memory kept')
        axes.fill_between(places, low, high, color='C0', alpha=0.2)
        reset = [_mean(by_row[row], 'mqar', size, 'reset')[0] for size in sizes]
        axes.plot(places, reset, linestyle='--', color='C1', label='memory reset')
        axes.set_xticks(list(places), sizes, rotation=45)
        axes.set_title(f'{row}\n{table.kilobytes(firsts[row])} kB of state', fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside upper center', ncols=len(labels), fontsize=8)
    return figure


def surface(found: table.Found) -> matplotlib.figure.Figure | None:
    """Recall by keys and distance: a heat map per row, all of one scale; grey was not asked."""
    by_row = table.memories(found.get('surface', {}))
    if not by_row:
        return None
    across = min(ACROSS, len(by_row))
    down = math.ceil(len(by_row) / across)
    figure = figures.figure(2.6 * across + 0.8, 1.7 * down + 0.6)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).reshape(-1)
    names = list(columns.COLUMNS['surface'].titles)
    for axes, (row, several) in zip(grid, by_row.items(), strict=False):
        first = next(iter(several.values()))
        sizes = list(first['scores'][names[0]])
        means = np.asarray([[_mean(several, name, s, 'kept')[0] for s in sizes] for name in names])
        image = axes.imshow(means, vmin=0, vmax=100, cmap='viridis', origin='lower', aspect='auto')
        axes.set_facecolor('0.85')
        for (y, x), mean in np.ndenumerate(means):
            if not math.isnan(mean):
                look = dict(ha='center', va='center', color='w' if mean < 60 else 'k')
                axes.text(x, y, f'{mean:.0f}', fontsize=6, **look)
        axes.set_xticks(range(len(sizes)), [_short(size) for size in sizes])
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(labelsize=7)
        axes.set_title(f'{row}\n{table.kilobytes(first)} kB of state', fontsize=8)
    _hide(grid, len(by_row), across)
    bar = figure.colorbar(image, ax=grid.tolist())
    bar.set_label('right answers, %', fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.supxlabel('distance, tokens', fontsize=8)
    figure.supylabel('keys', fontsize=8)
    return figure


def _short(size: str) -> str:
    """A power of two with few digits: 4k for 4096."""
    number = int(size)
    for unit, sign in ((1 << 20, 'M'), (1 << 10, 'k')):
        if number >= unit:
            return f'{number // unit}{sign}'
    return size


def by_cost(found: table.Found) -> matplotlib.figure.Figure | None:
    """A line per row, labelled at the side: bytes of state, times, bits per byte; dots with ranges."""
    sides: list[tuple[str, dict[str, tuple[float, float, float]]]] = []
    state: dict[str, float] = {}
    for by_row in found.values():
        for row, several in table.memories(by_row).items():
            # As in the table: that of the first column.
            state.setdefault(row, next(iter(several.values()))['state_bytes'] / 1000)
    sides.append(('state, kB per lane', {row: (size,) * 3 for row, size in state.items()}))
    for what in ('train', 'generate'):
        times = {}
        for row, several in found.get('speed', {}).items():
            time = several[0]['scores']['speed'][what]
            times[row] = (time['ratio'], time['ratio_min'], time['ratio_max'])
        sides.append((f'{what}: time / {rows.BASELINE}', times))
    for name in dict.fromkeys(column for column, *_ in table.SUMMARY.values()):
        if columns.COLUMNS[name].scored != columns.BITS:
            continue
        kept = {
            row: [cell['scores'][name]['bits/byte']['kept'] for cell in several.values()]
            for row, several in table.memories(found.get(name, {})).items()
        }
        values = {row: (statistics.mean(v), min(v), max(v)) for row, v in kept.items()}
        sides.append((f'{name}: bits/byte', values))
    sides = [(title, values) for title, values in sides if values]
    if not sides:
        return None
    figure, grid, order = _lines(sides, [row for row in rows.names() if row in state])
    for axes, (_, values) in zip(grid, sides, strict=True):
        _dots(axes, order, values, 'C0')
    grid[0].set_xscale('symlog', linthresh=1)  # a row without a memory has no state
    return figure


def computed(found: table.Found) -> matplotlib.figure.Figure | None:
    """State tracking: a line per row, dots by length, and dashed what a segment alone would give."""
    names = [name for name in COMPUTED if table.memories(found.get(name, {}))]
    if not names:
        return None
    sides = [(f'{COMPUTED[name]}: right, %', table.memories(found[name])) for name in names]
    best: dict[str, float] = {}
    for _, by_row in reversed(sides):  # by the first column; last are rows that only the second has
        first = {row: _mean(of, 'state_tracking', '1x', 'kept')[0] for row, of in by_row.items()}
        best = dict(sorted(first.items(), key=lambda item: -item[1])) | {
            row: mean for row, mean in best.items() if row not in first
        }
    figure, grid, order = _lines(sides, list(best))
    for axes, name in zip(grid, names, strict=True):
        by_row = table.memories(found[name])
        floors = table.of_rules('state_tracking', found[name], list(TIMES))
        alone = next((of for rule, of in floors.items() if 'segment' in rule), [None] * len(TIMES))
        for times, color, floor in zip(TIMES, ('C0', 'C1', 'C2'), alone, strict=True):
            of_rows = {
                row: _mean(of, 'state_tracking', times, 'kept') for row, of in by_row.items()
            }
            _dots(axes, order, of_rows, color)
            axes.plot([], [], 'o', markersize=4, color=color, label=TIMES[times])
            if floor is not None:
                axes.axvline(100 * floor, linestyle='--', color=color, linewidth=0.9)
        axes.set_xlim(-3, 103)
    grid[0].plot([], [], '--', color='0.4', label='what its segment alone gives')
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside upper center', ncols=2, fontsize=8)
    return figure


def _lines(
    sides: list[tuple[str, Any]], order: list[str]
) -> tuple[matplotlib.figure.Figure, Any, list[str]]:
    """Panels side by side with a line per row, the first on top; (figure, axes, rows from below)."""
    order = order[::-1]
    figure = figures.figure(1.6 + 2.3 * len(sides), 1.0 + 0.27 * len(order))
    grid = figure.subplots(1, len(sides), sharey=True, squeeze=False).reshape(-1)
    for axes, (title, _) in zip(grid, sides, strict=True):
        axes.set_xlabel(title, fontsize=8)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    grid[0].set_yticks(range(len(order)), order)
    grid[0].set_ylim(-0.7, len(order) - 0.3)
    return figure, grid, order


def _dots(
    axes: Any, order: list[str], values: dict[str, tuple[float, float, float]], color: str
) -> None:
    """Means with their ranges on the lines of `order`; (mean, least, greatest) by row."""
    for place, row in enumerate(order):
        if row in values:
            mean, low, high = values[row]
            axes.errorbar(
                [mean], [place], xerr=[[mean - low], [high - mean]], marker='o', markersize=4,
                color=color, capsize=2,
            )  # fmt: skip


FIGURES = dict(pairs=by_pairs, surface=surface, cost=by_cost, computed=computed)
# Columns of state tracking, and the lengths of their tests that are shown.
COMPUTED = {'swaps': 'swaps of five things', 'state': 'orders of three things'}
TIMES = {'1x': '16 elements, as in training', '4x': '64', '16x': '256'}
