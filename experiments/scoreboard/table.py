"""The finished cells of the scoreboard as Markdown and JSON."""

import json
import statistics
from pathlib import Path
from typing import Any

from experiments import floors
from experiments.scoreboard import cells, rows

# column -> row -> cells of its seeds
Found = dict[str, dict[str, list[dict[str, Any]]]]
TEXT = ('stdlib', 'novels')
MISSING = '-'


def collect(output: Path, seeds: int) -> Found:
    """All finished cells, in the order of columns, rows and seeds."""
    found: Found = {}
    for column in cells.COLUMNS:
        for row in rows.names():
            several = [cells.finished(output, column, row, seed) for seed in range(seeds)]
            several = [cell for cell in several if cell is not None]
            if several:
                found.setdefault(column, {})[row] = several
    return found


def span(values: list[float], digits: int) -> str:
    """Mean (minimum - maximum)."""
    mean = f'{statistics.mean(values):.{digits}f}'
    if len(values) == 1:
        return mean
    return f'{mean} ({min(values):.{digits}f} - {max(values):.{digits}f})'


def _markdown(heads: list[str], lines: list[list[str]]) -> str:
    text = [heads, ['---'] * len(heads), *lines]
    return '\n'.join(f'| {" | ".join(line)} |' for line in text)


def of_rows(found: Found) -> str:
    """What every row is: parameters, positions, bytes of state, with the flags that make it so."""
    known: dict[str, dict[str, Any]] = {}
    for by_row in found.values():
        for row, several in by_row.items():
            known.setdefault(row, several[0])
    lines = [
        [
            f'`{row}`',
            f'{known[row]["parameters"]:,}',
            known[row]['positions'],
            f'{known[row]["state_bytes"] / 1000:,.1f}',
            f'`{" ".join(known[row]["flags"])}`',
        ]
        for row in rows.names()
        if row in known
    ]
    return _markdown(['row', 'parameters', 'positions', 'state, kB per lane', 'flags'], lines)


def of_scores(column: str, by_row: dict[str, list[dict[str, Any]]]) -> str:
    """The scores of a column, with the bytes of state; with the memory reset in square brackets."""
    text = column in TEXT
    scale, digits = (1, 3) if text else (100, 0)
    sizes = list(next(iter(by_row.values()))[0]['scores'])
    lines = []
    for row, several in by_row.items():
        line = [f'`{row}`', str(len(several)), f'{several[0]["state_bytes"] / 1000:,.1f}']
        for size in sizes:
            scores = [cell['scores'][size] for cell in several if size in cell['scores']]
            kept = span([scale * score['kept'] for score in scores], digits) if scores else MISSING
            reset = [scale * s['reset'] for s in scores if s.get('reset') is not None]
            line.append(f'{kept} [{span(reset, digits)}]' if reset else kept)
        lines.append(line)
    return _markdown(['row', 'seeds', 'state, kB per lane', *sizes], lines)


def of_speed(by_row: dict[str, list[dict[str, Any]]]) -> str:
    """Times of rows; the ratio to the baseline measured in turns is what compares."""
    heads = ['row', 'runs']
    for what in ('train', 'generate'):
        heads += [f'{what}, ms/token', f'{what}, ratio to `{rows.BASELINE}` (range of rounds)']
    lines = []
    for row, several in by_row.items():
        line = [f'`{row}`', str(len(several))]
        for what in ('train', 'generate'):
            times = [cell['scores'][what] for cell in several]
            ratio = statistics.median(time['ratio'] for time in times)
            low = min(time['ratio_min'] for time in times)
            high = max(time['ratio_max'] for time in times)
            line.append(f'{statistics.median(time["row"] for time in times):.4f}')
            line.append(f'{ratio:.2f} ({low:.2f} - {high:.2f})')
        lines.append(line)
    return _markdown(heads, lines)


def missing(found: Found, seeds: int) -> list[str]:
    """What is not there: a line per column, with the rows and how many of the seeds they lack."""
    lines = []
    for name, column in cells.COLUMNS.items():
        absent = []
        for row in rows.names():
            count = len(found.get(name, {}).get(row, []))
            if count < seeds:
                absent.append(f'`{row}`' if not count else f'`{row}` ({count} of {seeds} seeds)')
        if len(absent) == len(rows.names()) and name not in found:
            lines.append(f'- {column.title}: no row.')
        elif absent:
            lines.append(f'- {column.title}: {", ".join(absent)}.')
    return lines


def commands(found: Found) -> list[str]:
    """A line per cell with its commands."""
    return [
        f'- {cells.COLUMNS[column].title}, `{row}`, run {number}: '
        + '; '.join(f'`{command}`' for command in cell['commands'])
        for column, by_row in found.items()
        for row, several in by_row.items()
        for number, cell in enumerate(several, 1)
    ]


def write(output: Path, found: Found, seeds: int) -> str:
    """Writes scoreboard.md and scoreboard.json to `output`; returns the Markdown."""
    parts = ['# Scoreboard']
    if found:
        parts += ['## Rows', of_rows(found)]
    for column, by_row in found.items():
        parts.append(f'## {cells.COLUMNS[column].title}')
        if column == 'speed':
            parts.append(of_speed(by_row))
            continue
        unit = 'Bits per byte' if column in TEXT else 'Right answers, %'
        parts.append(
            f'{unit}: mean (minimum - maximum) over seeds, and in square brackets the same with the '
            'memory reset before every segment.'
        )
        parts.append(of_scores(column, by_row))
        parts += filter(None, [of_floors(output, column)])
    absent = missing(found, seeds)
    if absent:
        parts += ['## Not run', '\n'.join(absent)]
    if found:
        parts += ['## Commands', '\n'.join(commands(found))]
    text = '\n\n'.join(parts) + '\n'
    (output / 'scoreboard.md').write_text(text)
    (output / 'scoreboard.json').write_text(json.dumps(found, indent=1) + '\n')
    return text


def of_floors(output: Path, column: str) -> str:
    """Scores of rules without a learned memory: the same for all rows; '' if there are none."""
    folder = output / column / 'floors'
    if not (folder / 'command.txt').exists():
        return ''
    measured = json.loads((folder / 'floors.json').read_text())
    command = (folder / 'command.txt').read_text().strip()
    return f'Rules, all sizes together:\n\n{floors.table(measured)}\n\n`{command}`'
