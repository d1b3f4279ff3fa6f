"""The finished cells of the leaderboard as Markdown and JSON."""

import json
from pathlib import Path
from typing import Any

from experiments import markdown
from experiments.leaderboard import cells, columns, rows
from longmem_jax import files

# column -> row -> seed -> cell
Found = dict[str, dict[str, dict[int, dict[str, Any]]]]
MISSING, FAILED = '-', ' †'
RESET = ', and in square brackets the same with the memory reset before every segment'
NOT_ASKED = 'A † has seeds that were not asked, since'
AGE = (
    'How old a number is: `leaderboard.json` has commit, date and command of every cell, '
    'README.md the memories whose code was changed since.'
)  # of the numbers


def collect(output: Path) -> Found:
    """All finished cells, in the order of columns, rows and seeds; rules are the last row."""
    found: Found = {}
    for column in columns.COLUMNS:
        for row in (*rows.names(), cells.FLOORS):
            several = cells.of_row(output, column, row)
            if several:
                found.setdefault(column, {})[row] = several
    return found


def memories(by_row: dict[str, Any]) -> dict[str, Any]:
    """The rows of a column without the rules."""
    return {row: several for row, several in by_row.items() if row != cells.FLOORS}


# Of the summary: column, table and size of a number.
SUMMARY = {
    'MQAR, 16 pairs': ('mqar', 'mqar', '128 x 16'),
    '60 pairs': ('mqar', 'mqar', '512 x 60'),
    '1 key, 4,096': ('surface', '1', '4096'),
    '1 key, 65,536': ('surface', '1', '65536'),
    '16 keys, 64': ('surface', '16', '64'),
    '16 keys, 4,096': ('surface', '16', '4096'),
    '64 keys, 64': ('surface', '64', '64'),
    'stdlib': ('stdlib', 'stdlib', 'bits/byte'),
}


def summary(found: Found) -> str:
    """One line per memory: the main numbers of all columns, mean (minimum - maximum) over seeds.

    A `*`: one seed. The last lines are rules without a learned memory.
    """
    heads = ['memory', 'state, kB', *SUMMARY, 'train', 'generate']
    lines = []
    for row in rows.names():
        cell = next((c for by_row in found.values() for c in by_row.get(row, {}).values()), None)
        if cell is None:
            continue
        line = [f'`{row}`', kilobytes(cell)]
        for column, name, size in SUMMARY.values():
            scores = scored(found.get(column, {}).get(row, {}), name, size)
            line.append(mean_score(columns.COLUMNS[column], scores, star=True))
        (time,) = found.get('speed', {}).get(row, {}).values() or (None,)
        for what in ('train', 'generate'):
            line.append(f'{time["scores"]["speed"][what]["ratio"]:.1f}' if time else MISSING)
        lines.append(line)
    return markdown.table(heads, [*lines, *_rules(found)])


def _rules(found: Found) -> list[list[str]]:
    """The lines of the summary for rules without a learned memory."""
    found_rules = []
    for column, name, size in SUMMARY.values():
        floors = found.get(column, {}).get(cells.FLOORS, {}).get(0, {}).get('scores', {})
        found_rules.append((columns.COLUMNS[column], floors.get(name, {}).get(size, {})))
    lines = []
    for rule in dict.fromkeys(rule for _, scores in found_rules for rule in scores):
        line = [rule, '']
        for column, scores in found_rules:
            scored = [{'kept': scores[rule]}] if rule in scores else []
            line.append(mean_score(column, scored))
        lines.append([*line, '', ''])
    return lines


def scored(several: dict[int, dict[str, Any]], name: str, size: str) -> list[dict[str, Any]]:
    """What the seeds have at a size, those too that were not asked since they had failed before.

    Nothing, if no seed was asked.
    """
    found = [c['scores'][name][size] for c in several.values() if size in c['scores'][name]]
    return found if any(score.get('answers', 1) for score in found) else []


def _mark(scores: list[dict[str, Any]]) -> str:
    """The mark of scores that are of seeds some of which were not asked."""
    return FAILED if any(not score.get('answers', 1) for score in scores) else ''


def mean_score(column: columns.Column, scores: list[dict[str, Any]], star: bool = False) -> str:
    """Mean (minimum - maximum); with `star`, a `*` where that is one seed only."""
    if not scores:
        return MISSING
    bits = column.scored == columns.BITS
    text = markdown.span(
        [score['kept'] * (1 if bits else 100) for score in scores], 3 if bits else 0
    )
    return (f'{text}*' if star and len(scores) == 1 else text) + _mark(scores)


def of_rows(found: Found) -> str:
    """What every row is: parameters, positions, bytes of state, with the flags that make it so."""
    known: dict[str, dict[str, Any]] = {}
    for by_row in found.values():
        for row, several in memories(by_row).items():
            known.setdefault(row, next(iter(several.values())))
    lines = [
        [
            f'`{row}`',
            f'{known[row]["parameters"]:,}',
            known[row]['positions'],
            kilobytes(known[row]),
            f'`{" ".join(known[row]["flags"])}`',
        ]
        for row in rows.names()
        if row in known
    ]
    return markdown.table(['row', 'parameters', 'positions', 'state, kB per lane', 'flags'], lines)


def kilobytes(cell: dict[str, Any]) -> str:
    """What a lane carries from segment to segment."""
    return f'{cell["state_bytes"] / 1000:,.1f}'


def of_scores(column: columns.Column, name: str, by_row: dict[str, Any]) -> str:
    """A table of a column; with the memory reset in square brackets, and rules at the end."""
    text = column.scored == columns.BITS
    scale, digits = (1, 3) if text else (100, 0)
    asked = sizes(name, by_row)
    lines = []
    for row, several in memories(by_row).items():
        first = next(iter(several.values()))
        steps = sorted(cell['steps'] for cell in several.values())
        line = [f'`{row}`', str(len(several)), f'{steps[0]:,} - {steps[-1]:,}', kilobytes(first)]
        line[2] = f'{steps[0]:,}' if steps[0] == steps[-1] else line[2]
        for size in asked:
            scores = scored(several, name, size)
            spans = markdown.span([scale * s['kept'] for s in scores], digits) if scores else ''
            kept = spans + _mark(scores) or MISSING
            reset = [scale * s['reset'] for s in scores if s.get('reset') is not None]
            line.append(f'{kept} [{markdown.span(reset, digits)}]' if reset else kept)
        lines.append(line)
    for rule, scores in of_rules(name, by_row, asked).items():
        shown = [MISSING if s is None else f'{scale * s:.{digits}f}' for s in scores]
        lines.append([rule, '', '', '', *shown])
    return markdown.table(['row', 'seeds', 'steps', 'state, kB per lane', *asked], lines)


def of_rules(name: str, by_row: dict[str, Any], asked: list[str]) -> dict[str, list[float | None]]:
    """What rules without a learned memory have at every size of a column; None = not asked."""
    rules = by_row.get(cells.FLOORS, {}).get(0, {'scores': {name: {}}})['scores'][name]
    names = dict.fromkeys(rule for by_rule in rules.values() for rule in by_rule)
    return {rule: [rules.get(size, {}).get(rule) for size in asked] for rule in names}


def sizes(name: str, by_row: dict[str, Any]) -> list[str]:
    """What was scored, in the order of the cell that has most of it."""
    scores = [
        cell['scores'][name] for several in memories(by_row).values() for cell in several.values()
    ]
    return list(max(scores, key=len, default={}))


def of_speed(by_row: dict[str, Any]) -> str:
    """Times of rows; the ratio to the baseline measured in turns is what compares."""
    heads = ['row']
    for what in ('train', 'generate'):
        heads += [f'{what}, ms/token', f'{what}, ratio to `{rows.BASELINE}` (range of rounds)']
    lines = []
    for row, several in by_row.items():
        line = [f'`{row}`']
        for what in ('train', 'generate'):
            time = several[0]['scores']['speed'][what]
            low, high = time['ratio_min'], time['ratio_max']
            line += [f'{time["row"]:.4f}', f'{time["ratio"]:.2f} ({low:.2f} - {high:.2f})']
        lines.append(line)
    return markdown.table(heads, lines)


def missing(found: Found, seeds: int) -> list[str]:
    """What is not there: a line per column, with rows by the number of their seeds."""
    lines = []
    for name in columns.RUN:
        wanted = 1 if name == 'speed' else seeds
        counts: dict[int, list[str]] = {}
        for row in rows.names():
            counts.setdefault(len(found.get(name, {}).get(row, {})), []).append(f'`{row}`')
        most = max(counts, key=lambda count: len(counts[count]))
        others = 'all others' if len(counts) > 1 else 'all'
        parts = [
            f'{f"{count} of {wanted} seeds" if count else "not run"}: {", ".join(of_count)}'
            for count, of_count in sorted(counts.items())
            if count != most
        ]
        if most < wanted:
            parts.append(f'{f"{most} of {wanted} seeds" if most else "not run"}: {others}')
        if min(counts) < wanted:
            lines.append(f'- {name}: {"; ".join(parts)}.')
    return lines


def write(output: Path, found: Found, seeds: int) -> str:
    """Writes leaderboard.md and leaderboard.json to `output`; returns the Markdown."""
    parts = ['# Leaderboard', AGE]
    if found:
        parts += [summary(found), '## Rows', of_rows(found)]
    for name, by_row in found.items():
        column = columns.COLUMNS[name]
        texts = ' --novels=BOOKS' if name == 'novels' else ''
        command = (
            f'`python -m experiments.leaderboard --output=DIR --columns={name} --rows=ROW{texts}`'
        )
        for shown, title in column.titles.items():
            parts.append(f'## {title}')
            if not memories(by_row):
                continue
            if not column.scored:
                parts += [command, of_speed(by_row)]
                continue
            scores = of_scores(column, shown, by_row)
            parts.append(
                f'{"No longer run" if column.old else command}. {column.scored.capitalize()}: '
                'mean (minimum - maximum) over seeds'
                f'{RESET if "[" in scores else ""}.'
            )
            parts[-1] += f' {NOT_ASKED} {column.not_asked}' if FAILED in scores else ''
            parts.append(scores)
    absent = missing(found, seeds)
    if absent:
        parts += ['## Not run', '\n'.join(absent)]
    text = '\n\n'.join(parts) + '\n'
    files.write(output / 'leaderboard.md', text)
    files.write(output / cells.FILE, json.dumps(found, separators=(',', ':')) + '\n')
    return text
