"""Tables of the leaderboard in its pages: what stands between their marks is written by the command.

A page is a Markdown file beside `leaderboard.json`. `<!-- table: NAME -->` and `<!-- end -->`, each on a
line of its own, hold the table of a column, or with `summary` the one of all columns; with
`<!-- table: NAME of FILE -->` the cells are those of another file beside the page.
"""

import re
import statistics
from pathlib import Path
from typing import Any

from experiments import markdown
from experiments.leaderboard import cells, columns, rows, table
from longmem_jax import files
from longmem_jax.errors import UsageError

MARKED = re.compile(r'(<!-- table: (\w+)(?: of (\S+))? -->)\s.*?(<!-- end -->)', re.DOTALL)
SUMMARY = 'summary'


def of_column(column: columns.Column, by_row: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Right answers in % by size, best row first; with the rules that see a segment or everything."""
    (name,) = column.titles
    sizes = table.sizes(name, by_row)
    lines = []
    for row, several in table.memories(by_row).items():
        scores = [table.scored(several, name, size) for size in sizes]
        first = next(iter(several.values()))
        line = [f'`{row}`', str(len(several)), table.kilobytes(first)]
        line += [table.mean_score(column, of_size) if of_size else '' for of_size in scores]
        lines.append((-statistics.mean(score['kept'] for score in scores[0]), line))
    shown = [line for _, line in sorted(lines, key=lambda each: each[0])]
    for rule, found in table.of_rules(name, by_row, sizes).items():
        if not rule.endswith('the question'):
            shown.append([rule, '', ''] + ['' if s is None else f'{100 * s:.0f}' for s in found])
    config = rows.config_of(rows.BASELINE, 'tiny', column.task)
    lengths = {each.size: columns.longest(each.task) for each in column.asked(config, 'tiny')}
    heads = [f'{lengths[size]:,}' for size in sizes]
    return markdown.table(['row', 'seeds', 'state, kB', *heads], shown)


def write(output: Path, found: table.Found) -> None:
    """Writes the tables into the pages of `output`.

    Raises:
      UsageError: a page wants a table that there is not.
    """
    for page in sorted(output.glob('*.md')):
        text = page.read_text()

        def new(mark: re.Match[str], page: Path = page) -> str:
            name, file = mark[2], mark[3]
            there = cells.of_file(page.with_name(file)) if file else found
            if name == SUMMARY:
                made = table.summary(there)
            elif there.get(name):
                made = of_column(columns.COLUMNS[name], there[name])
            else:
                raise UsageError(f'{page}: has the mark of a table {name!r}, which has no cells')
            return f'{mark[1]}\n\n{made}\n\n{mark[4]}'

        written = MARKED.sub(new, text)
        if written != text:
            files.write(page, written)
