"""Numbers that only a page has, as JSON beside it: the tables of a folder's pages in `page.json`.

`page.json` names tables by their heading, in whichever page of the folder, and, below it, their number;
`read` fills in the rows. A row is named by its first columns ('... reset' by the row before it, too) and
has its other columns by their headings: a number, a list of numbers, or mean, min and max. A test holds
both equal. Programs that write JSON of their own need no such file.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments import provenance
from longmem_jax import files
from longmem_jax.errors import UsageError

FILE = 'page.json'
NUMBER = r'[-+]?(?:\d[\d,]*)?(?:\.\d+)?'
SPREAD = re.compile(rf'({NUMBER}) \(({NUMBER}) - ({NUMBER})\)(?:, [a-z ]+)?')
LISTED = re.compile(rf'{NUMBER}(?:(?:, | / ){NUMBER})*')


def _number(text: str) -> float:
    value = float(text.replace(',', ''))
    return int(value) if value.is_integer() else value


def cell(text: str) -> Any:
    """A cell as JSON; None if it is neither a number, a list of numbers nor 'mean (min - max)'.

    What is in brackets behind one number is left out.
    """
    text = text.replace('*', '').strip()
    if spread := SPREAD.fullmatch(text):
        return dict(zip(('mean', 'min', 'max'), map(_number, spread.groups()), strict=True))
    text = re.sub(rf'^({NUMBER}) \([^()]*\)$', r'\1', text)
    if not re.search(r'\d', text) or not LISTED.fullmatch(text):
        return None
    found = [_number(item) for item in re.split(', | / ', text)]
    return found if len(found) > 1 else found[0]


def tables(page: str) -> Iterator[tuple[str, int, list[list[str]]]]:
    """Heading, number of the first line, and the cells of every table, headings first."""
    heading, lines = '', page.splitlines()
    for number, line in enumerate(lines):
        if line.startswith('#'):
            heading = line.lstrip('# ')
        if line.startswith('|') and not lines[number - 1].startswith('|'):
            found = []
            for row in lines[number:]:
                if not row.startswith('|'):
                    break
                cells = row.strip()[1:-1].replace('`', '').split('|')
                found.append([each.strip() for each in cells])
            yield heading, number + 1, found


def _named(names: Iterable[str]) -> Iterator[str]:
    """Names in which '...' stands for the name before."""
    before = ''
    for name in names:
        name = name.replace(' / ', '/')  # ' / ' separates the keys of a path
        before = before if name.startswith('...') else name
        yield f'{before}, {name[4:]}' if name.startswith('...') else name


def rows(table: list[list[str]], keys: int) -> dict[str, dict[str, Any]]:
    """The rows of a table by the names in their first `keys` columns."""
    heads = list(_named(table[0]))[keys:]
    names = _named(', '.join(line[:keys]) for line in table[2:])
    found = {}
    for name, line in zip(names, table[2:], strict=True):
        cells = dict(zip(heads, map(cell, line[keys:]), strict=True))
        found[name] = {head: value for head, value in cells.items() if value is not None}
    return found


def on_pages(file: Path) -> Iterator[tuple[str, Path, int, dict[str, dict[str, Any]]]]:
    """Name, page, first line and rows of every table of a `page.json`, as the pages have them."""
    named: dict[str, list[tuple[Path, int, list[list[str]]]]] = {}
    for page in sorted(file.parent.glob('*.md')):
        for heading, line, table in tables(page.read_text()):
            named.setdefault(heading, []).append((page, line, table))
    for name, given in json.loads(file.read_text()).items():
        page, line, table = named[given['heading']][given.get('number', 1) - 1]
        yield name, page, line, rows(table, given.get('keys', 1))


def _commits(page: Path) -> list[str]:
    """The commit of every line.

    Raises:
      UsageError: outside of a git checkout.
    """
    blame = provenance.git('blame', '-s', '--abbrev=11', '--', str(page))
    if blame is None:
        raise UsageError(
            f'{page}: only git knows since when its numbers are there; use a checkout.'
        )
    return [line.split()[0].lstrip('^') for line in blame.splitlines()]


def read(file: Path) -> None:
    """Writes the rows of the pages into a `page.json`; changed rows get the commit of their line.

    Raises:
      UsageError: outside of a git checkout.
    """
    content, parts, of_page = json.loads(file.read_text()), [], functools.cache(_commits)
    for name, page, line, found in on_pages(file):
        about, lines, commits = content[name], [], of_page(page)
        known = about.pop('rows', {})
        for place, (row, cells) in enumerate(found.items()):
            run = {'run': {'commit': commits[line + 1 + place]}}
            old = known.get(row, {})
            same = {'run': old.get('run')} | cells == old
            lines.append(f'  {json.dumps(row)}: {json.dumps(old if same else run | cells)}')
        head, shown = json.dumps(about)[:-1], ',\n'.join(lines)
        parts.append(f' {json.dumps(name)}: {head}, "rows": {{\n{shown}\n }}}}')
    files.write(file, '{\n' + ',\n'.join(parts) + '\n}\n')
