"""What the pages say about numbers, as claims that a machine decides.

python -m experiments.claims [--stale | --write | --read_pages]

`claims.toml` has a claim per sentence: the cells of JSON files that it rests on, and what must hold
for them. Printed is every claim with its verdict: it holds, it fails, cells are missing, or it holds
and is stale, since the code of its memory, without comments, docstrings and texts of fields, is not
what it was when its cells were measured (the table `again` has changes after which cells came out the
same; these make none stale). The exit code is 1 if one fails or lacks cells. `--stale` prints the
commands that measure stale ones again. `--write` writes the sentences, with the numbers of the cells,
into the pages, between `<span id="claim-NAME">` and `</span>`. `--read_pages` reads tables that only a
page has into `page.json`, see `page_tables.py`.

A path of cells is 'FILE: key / key / ...', FILE of the table `files`; `*` is every key, `a|b` are two.
What must hold is an expression, see `claim_language.py`.
"""

import ast
import functools
import itertools
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import page_tables, provenance
from experiments.claim_language import Cells, number, true
from experiments.options import make_parser
from experiments.second_reading.rows import NAMED
from longmem_jax import files
from longmem_jax.memory.registry import LAYERS

FILE = Path(__file__).with_suffix('.toml')
WIDTH = 140
NUMBER = re.compile(r'\{([^{}:]+):([^{}]*)\}')  # in the text of a claim
SPAN = re.compile(r'(<span id="claim-([\w]+)">)(.*?)(</span>)', re.DOTALL)
RULES = ('floors', 'look up')  # how rows begin that are of no memory
STALE = 'stale'  # the id of the sentence of a page about its stale claims


class Missing(Exception):
    """Cells that are not there."""


class Claim(NamedTuple):
    """A claim of `claims.toml`.

    Attributes:
      name: of its place in the pages.
      text: the sentence; `{expression:format}` is a number.
      memories: that it speaks of; names of the table `code`.
      pages: that have the sentence.
      cells: names to a path, or to several.
      holds: what must be true.
    """

    name: str
    text: str
    memories: list[str]
    pages: list[str]
    cells: dict[str, str | list[str]]
    holds: str


@functools.cache
def _content() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def claims() -> list[Claim]:
    """All claims, in the order of the file."""
    return [Claim(**given) for given in _content()['claim']]


def code() -> dict[str, list[str]]:
    """Memory to the paths of its code."""
    return _content()['code']


@functools.cache
def _tree(file: str) -> Any:
    path = FILE.parent / _content()['files'].get(file, file)
    if not path.exists():
        raise Missing(f'{file} is not there')
    return json.loads(path.read_text())


def _below(tree: Any, path: list[str], run: dict[str, Any], keys: tuple[str, ...]) -> Iterator[Any]:
    """Numbers, keys and origins of what a path leads to."""
    if isinstance(tree, dict):
        run, tree = run | tree.get('run', {}), tree.get('rows', tree)
    if isinstance(tree, list):
        tree, path = {str(seed): value for seed, value in enumerate(tree)}, path or ['*']
    if isinstance(tree, int | float) and path in ([], ['mean'], ['min'], ['max']):
        # A number instead of a mean and a range: all seeds have it.
        yield tree, ', '.join(keys), run
        return
    known = [key for key in tree if key != 'run'] if isinstance(tree, dict) else []
    first, *rest = path or ['']
    several = first == '*' or '|' in first
    for key in known if first == '*' else first.split('|'):
        if key not in known:
            at = f' of {", ".join(keys)}' if keys else ''
            raise Missing(f'no {key!r} among {", ".join(known) or "numbers"}{at}')
        yield from _below(tree[key], rest, run, (*keys, key) if several else keys)


def found(paths: str | list[str]) -> tuple[Cells, list[dict[str, Any]]]:
    """The cells of a path, or of several, and where they come from.

    Raises:
      Missing: there are none.
    """
    cells = []
    for path in [paths] if isinstance(paths, str) else paths:
        file, _, inside = path.partition(': ')
        try:
            more = list(_below(_tree(file), [key.strip() for key in inside.split(' / ')], {}, ()))
        except Missing as error:
            raise Missing(f'{path}: {error}') from None
        if not more:
            raise Missing(f'{path}: no cells')
        cells += more
    values, keys, runs = zip(*cells, strict=True)
    return Cells(np.asarray(values, float), keys), list(runs)


def cells_of(claim: Claim) -> dict[str, Cells]:
    """Names to cells."""
    return {name: found(paths)[0] for name, paths in claim.cells.items()}


def sentence(claim: Claim) -> str:
    """The text with the numbers of the cells."""
    cells = cells_of(claim)
    return NUMBER.sub(lambda match: format(number(match[1], cells), match[2]), claim.text)


@functools.cache
def code_of_rows() -> dict[str, list[str]]:
    """Rows of tables to the memories of the table `code` that they are of.

    Names of `:memory=`, and rows of the second reading.
    """
    rows: dict[str, list[str]] = {}
    for entry in LAYERS.values():
        module = entry.layer.module.__module__.replace('.', '/')
        own = [
            memory
            for memory, paths in code().items()
            if any(f'{module}.py'.startswith(path) for path in paths)
        ]
        if own:
            rows |= dict.fromkeys(entry.recipe.by_name, own)
    return rows | {n: rows[row.memory] for n, row in NAMED.items() if row.memory in rows}


def _code_of(row: str) -> list[str] | None:
    """The memories that a row is of: none, if it is a rule without parameters; None = not known."""
    return [] if row.startswith(RULES) else code_of_rows().get(row)


def aged(claim: Claim) -> Iterator[tuple[str, dict[str, Any], bool | None]]:
    """Memories, runs of cells that are of them, and whether the code was changed after the run.

    Cells of a row with the name of a memory are of this one, others of all memories of the claim.
    """
    for paths in claim.cells.values():
        for path in [paths] if isinstance(paths, str) else paths:
            file, _, inside = path.partition(': ')
            for keys in itertools.product(*(part.split('|') for part in inside.split(' / '))):
                named = [_code_of(key.strip()) for key in keys]
                memories = next((of for of in named if of is not None), claim.memories)
                for run in found(f'{file}: {" / ".join(keys)}')[1]:
                    yield from ((of, run, changed(run.get('commit'), of)) for of in memories)


@functools.cache
def _program(blob: str) -> str | None:
    """What a file of Python does: its syntax tree without comments, docstrings and texts of fields.

    Of a file that is not Python, its text; None = git does not have it.
    """
    text = provenance.git('cat-file', 'blob', blob)
    try:
        tree = ast.parse(text or '')
    except (SyntaxError, ValueError):
        return text
    if text is None:
        return None
    for node in ast.walk(tree):
        body = getattr(node, 'body', None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant):
                del body[0]
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'field':
            words = node.args[1:2]
            if words and isinstance(words[0], ast.Constant) and isinstance(words[0].value, str):
                del node.args[1]
    return ast.dump(tree)


@functools.cache
def _differs(one: str, other: str, memory: str) -> bool | None:
    """Whether the code of a memory is not the same at two commits; None = git does not know.

    Comments, docstrings, texts of fields and layout are no code.
    """
    given = ('diff', '--raw', '--no-renames', '--no-abbrev', one, other, '--', *code()[memory])
    lines = provenance.git(*given)
    if lines is None:
        return None
    unknown = False
    for line in lines.splitlines():
        about, file = line.split('\t')
        _, _, before, after, status = about.split()
        if status != 'M' or not file.endswith('.py'):
            return True
        programs = _program(before), _program(after)
        unknown |= None in programs
        if None not in programs and programs[0] != programs[1]:
            return True
    return None if unknown else False


@functools.cache
def changed(commit: str | None, memory: str, known: tuple[str, ...] = ()) -> bool | None:
    """Whether the code of a memory was changed after a commit; None = git does not know.

    A change counts for nothing if cells that were measured before it came out the same after it: the
    table `again` says which, with a commit before and one after; `known` are those that led here.
    """
    later = _differs(commit, 'HEAD', memory) if commit else None
    return later and not any(
        once['code'] == memory
        and once['after'] not in known
        and _differs(once['before'], commit, memory) is False
        and changed(once['after'], memory, (*known, once['after'])) is False
        for once in _content().get('again', [])
    )


def stale(claim: Claim) -> bool | None:
    """Whether cells are older than the code of their memory; None = not known."""
    ages = {age for _, _, age in aged(claim)}
    return True if True in ages else None if None in ages else False


def holds(claim: Claim) -> bool:
    """Whether the cells are as the claim says; raises `Missing`."""
    return true(claim.holds, cells_of(claim))


def verdict(claim: Claim) -> str:
    """'holds', 'fails', 'cells missing: ...', or 'holds, ' and what is known about the age."""
    try:
        if not holds(claim):
            return 'fails'
    except Missing as error:
        return f'cells missing: {error}'
    return {True: 'holds, stale', None: 'holds, age not known', False: 'holds'}[stale(claim)]


def about_age(page: str) -> str:
    """The sentence of a page about the claims in it whose cells are older than the code."""
    names = sorted({
        memory
        for claim in claims() if page in claim.pages
        for memory, _, age in aged(claim)
        if age
    })  # fmt: skip
    if not names:
        return 'The numbers given here were measured with the code that their memories have now.'
    return (
        'The code of these memories was changed after their numbers on this page were measured: '
        f'{", ".join(f"`{name}`" for name in names)} (`python -m experiments.claims --stale` has the '
        'commands that measure again).'
    )


def render(page: str, text: str, ages: bool = False) -> str:
    """The text of a page with the sentences of its claims; with `ages`, also that about the age."""
    by_name = {claim.name: claim for claim in claims()}

    def replaced(match: re.Match[str]) -> str:
        start, name, old, end = match.groups()
        if name == STALE and (not ages or provenance.COMMIT is None):
            return match[0]  # without git nobody knows
        new = about_age(page) if name == STALE else sentence(by_name[name])
        return match[0] if old.split() == new.split() else f'{start}{new}{end}'

    return SPAN.sub(replaced, text)


def _wrapped(text: str) -> str:
    """A paragraph or an item of a list with lines of at most `WIDTH`."""
    item = re.match(r'(- |\d+\. )?', text)
    indent = ' ' * len(item[0]) if item else ''
    # No line may begin with a sign that makes it another kind of paragraph.
    kept = re.sub(r' (?=[-+>#] |id=")', '\0', ' '.join(text.split()))
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    lines = wrapper.wrap(kept)
    return '\n'.join(lines).replace('\0', ' ')


def write() -> None:
    """Writes the sentences of all claims into their pages."""
    for page in sorted({page for claim in claims() for page in claim.pages}):
        path = provenance.ROOT / page
        # Paragraphs, items of lists and lines of tables, each with what separates it from the next.
        parts = re.split(r'(\n\n+|\n(?=(?:[-|]|\d+\.) ))', path.read_text())
        for place, part in enumerate(parts):
            new = render(page, part, ages=True)
            if new != part:
                end = '\n' * part.endswith('\n')
                parts[place] = new if part.startswith('|') else _wrapped(new) + end
        files.write(path, ''.join(parts))


def main(given: list[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = make_parser(__doc__)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument('--stale', action='store_true', help='commands that measure again')
    chosen.add_argument('--write', action='store_true', help='the sentences into the pages')
    chosen.add_argument('--read_pages', action='store_true', help='tables of pages into page.json')
    options = parser.parse_args(given)
    if options.read_pages:
        for file in sorted(FILE.parent.glob(f'*/{page_tables.FILE}')):
            page_tables.read(file)
        return 0
    if options.write:
        try:
            write()
        except Missing as error:
            print(f'Nothing more is written: {error}')
            return 1
        return 0
    if options.stale:
        if provenance.COMMIT is None:
            print('This is no git checkout, so nobody knows which numbers are older than the code.')
        again: dict[str, list[str]] = {}
        for claim in claims():
            try:
                runs = [run for _, run, age in aged(claim) if age]
            except Missing as error:
                print(f'# {claim.name}: cells missing: {error}')
                continue
            for run in runs:
                again.setdefault(run['command'], []).append(claim.name)
        for command, names in again.items():
            print(f'{command}  # {", ".join(dict.fromkeys(names))}')
        return 0
    failed = 0
    for claim in claims():
        found_ = verdict(claim)
        failed += not found_.startswith('holds')
        said = sentence(claim) if found_.startswith('holds') else f'{claim.holds}: {claim.text}'
        print(f'{claim.name} {found_}. {said}')
    print(f'{len(claims())} claims, {failed} of them fail or lack cells.')
    return int(failed > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
