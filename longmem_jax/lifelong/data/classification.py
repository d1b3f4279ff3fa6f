r"""Five data sets of text classification as one stream (de Masson d'Autume et al., 2019).

The files are those of Zhang et al. (2015): `train.csv` and `test.csv`, quoted, without a header; the
class comes first and counts from 1, and a new line in a text is the two characters `\n`. All 33
classes are known beforehand, and those of Yelp are those of Amazon. Every set gives as many rows as the
others.

Cleaning:
  plain   the columns joined by a blank, escapes undone
  mll     as in MetaLifelongLanguage: a title, a full stop, and the text; the parts of Yahoo joined by
          nothing; rows without one of their parts left out; lower case, without links, without runs of
          blanks and of `.`, `?`, `!`
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError, unknown
from longmem_jax.files import looked_for
from longmem_jax.lifelong.data.texts import Marked, choose
from longmem_jax.lifelong.rows import Rows
from longmem_jax.lifelong.stream import Task
from longmem_jax.problems import defaults_and_rules, of_section

CLASSES = 33


class _Set(NamedTuple):
    """A data set.

    Attributes:
      folders: names that its folder may have.
      columns: how many columns files may have, with the class.
      first: its first class among all.
      classes: their number.
    """

    folders: tuple[str, ...]
    columns: tuple[int, ...]
    first: int
    classes: int


SETS = {
    'yelp': _Set(('yelp', 'yelp_review_full_csv'), (2,), 0, 5),
    'amazon': _Set(('amazon', 'amazon_review_full_csv'), (3,), 0, 5),
    'ag_news': _Set(('ag_news', 'ag_news_csv'), (3,), 5, 4),
    'dbpedia': _Set(('dbpedia', 'dbpedia_csv'), (3,), 9, 14),
    # As distributed, or title, question and answer in one column already.
    'yahoo': _Set(('yahoo', 'yahoo_answers_csv'), (4, 2), 23, 10),
}
ORDERS = {
    'i': ('yelp', 'ag_news', 'dbpedia', 'amazon', 'yahoo'),
    'ii': ('dbpedia', 'yahoo', 'ag_news', 'amazon', 'yelp'),
    'iii': ('yelp', 'yahoo', 'amazon', 'dbpedia', 'ag_news'),
    'iv': ('ag_news', 'yelp', 'amazon', 'yahoo', 'dbpedia'),
}
SETTINGS, FIELDS = defaults_and_rules(
    rows=(115_000, (1, 10**9)),  # to train on, of every set
    test_rows=(7_600, (1, 10**9)),
    max_length=(128, (8, 2**15)),  # tokens of a row, with its marks
    cleaning=('plain', ('plain', 'mll')),  # or 'mll'
    seed=(42, int),  # of which rows are taken
)


class Examples(NamedTuple):
    """Cleaned texts with classes among the 33, int32 [texts]."""

    texts: list[str]
    classes: np.ndarray

    def take(self, numbers: np.ndarray) -> 'Examples':
        """Some of them."""
        return Examples([self.texts[i] for i in numbers], self.classes[numbers])


class Splits(NamedTuple):
    """The examples of a set."""

    train: Examples
    test: Examples


def check(settings: Mapping[str, Any]) -> list[str]:
    """Problems of the settings, each beginning with the name of a field."""
    return of_section(settings, FIELDS)


def _plain(name: str, columns: Sequence[str]) -> str:
    text = ' '.join(columns)
    if name == 'ag_news':  # its backslashes are line ends of the agencies
        return text.replace('\\', ' ')
    return text.replace('\\n', '\n').replace('\\r', '\n').replace('\\"', '"')


_MLL = (
    (re.compile(r'\\[nr]'), ' '),
    (re.compile(r'\\"'), '"'),
    (re.compile(r'(https?://|www\.)\S+'), ' '),
    (re.compile(r'([.?!])(\s*\1)+'), r'\1'),
    (re.compile(r'\$'), '$ '),
    (re.compile(r'\s+'), ' '),
)


def _mll(name: str, columns: Sequence[str]) -> str:
    if not all(column.strip() for column in columns):
        return ''
    text = ('' if name == 'yahoo' else '. ').join(columns).lower()
    for pattern, new in _MLL:
        text = pattern.sub(new, text)
    return text.strip()


CLEANING: dict[str, Callable[[str, Sequence[str]], str]] = {'plain': _plain, 'mll': _mll}


def _folder(path: str, name: str) -> Path:
    root = Path(path).expanduser()
    found = [root / folder for folder in SETS[name].folders if (root / folder).is_dir()]
    if not path or not found:
        raise UsageError(
            f'config.data.path = {path!r}{looked_for(path)}: has no folder '
            f'{" or ".join(SETS[name].folders)} with train.csv and test.csv, as '
            'Zhang et al. (2015) distribute them.'
        )
    return found[0]


def read_file(file: Path, name: str, cleaning: str) -> Examples:
    """The examples of a file of one of `SETS`, cleaned by one of `CLEANING`.

    Those without a text, and blank lines, are left out.

    Raises:
      UsageError: the file cannot be read, has no rows, other columns or another class; the message
        names the row.
    """
    source, clean, texts, classes = SETS[name], CLEANING[cleaning], [], []
    try:
        with open(file, newline='', encoding='utf-8', errors='replace') as lines:
            for number, row in enumerate(csv.reader(lines, strict=True), 1):
                if not row:  # a blank line
                    continue
                where = f'{file}, row {number}'
                if len(row) not in source.columns:
                    wanted = ' or '.join(map(str, source.columns))
                    raise UsageError(
                        f'{where}: has {len(row)} columns, and {name} has {wanted}: the class, and '
                        'the parts of the text, quoted.'
                    )
                label = row[0].strip()
                if not label.isdecimal() or not 1 <= int(label) <= source.classes:
                    raise UsageError(
                        f'{where}: the class is {row[0][:40]!r}; {name} has 1 to {source.classes}, '
                        'in the first column, and no header.'
                    )
                text = clean(name, row[1:])
                if text.strip():
                    texts.append(text)
                    classes.append(source.first + int(label) - 1)
    except (OSError, csv.Error) as error:
        raise UsageError(f'{file}: cannot be read as csv ({error}).') from error
    if not texts:
        raise UsageError(f'{file}: has no rows with a text.')
    return Examples(texts, np.asarray(classes, np.int32))


def read(
    path: str, settings: Mapping[str, Any], names: Sequence[str] = tuple(SETS)
) -> dict[str, Splits]:
    """As many examples of all sets; `path` has a folder for each.

    Raises:
      UsageError: wrong settings, no such files, or too few rows in one; as `read_file`.
    """
    if problems := check(settings):
        raise UsageError('; '.join(problems) + '.')
    for name in names:
        if name not in SETS:
            raise UsageError(f'{unknown("task", name, SETS)}.')
    found = {}
    for name in names:
        folder, seed = _folder(path, name), settings['seed']
        given = read_file(folder / 'train.csv', name, settings['cleaning'])
        asked = read_file(folder / 'test.csv', name, settings['cleaning'])
        train = choose(len(given.texts), settings['rows'], f'{folder / "train.csv"}', seed)
        if len(asked.texts) < settings['test_rows']:
            raise UsageError(
                f'{folder / "test.csv"}: has {len(asked.texts):,} usable rows, and test_rows = '
                f'{settings["test_rows"]:,}; lower it.'
            )
        test = np.random.default_rng(seed).permutation(len(asked.texts))[: settings['test_rows']]
        found[name] = Splits(given.take(train), asked.take(test))
    return found


def training_texts(examples: Mapping[str, Splits]) -> list[str]:
    """The texts that a stream shows, to pretrain on and to learn a vocabulary from."""
    return [text for splits in examples.values() for text in splits.train.texts]


def tasks(examples: Mapping[str, Splits], tokenizer: Tokenizer, max_length: int) -> dict[str, Task]:
    """Rows of all sets; a row's answer is its class, int32 [rows]. Long texts lose their ends.

    Raises:
      UsageError: a tokenizer without [CLS] and [SEP].
    """
    marked = Marked(tokenizer)

    def rows(given: Examples) -> Rows:
        parts = [marked.join(ids[: max_length - 2]) for ids in marked.all_ids(given.texts)]
        return marked.rows(parts, max_length, given.classes)

    return {name: Task(*map(rows, splits)) for name, splits in examples.items()}
