"""What is strange about `config.data`: files that are not text, and settings that nothing uses."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.documents import FRACTIONS, SPLITS
from longmem_jax.data.other_files import warning_of
from longmem_jax.data.parallel import file_of
from longmem_jax.data.text_files import (
    LISTS,
    NAMES,
    files_below,
    find_files,
    has_splits,
    kind_of,
)
from longmem_jax.errors import UsageError, number_of

FILES = 8  # of every split
MOST_UNKNOWN = 0.1  # share of tokens; texts that were written for a vocabulary have less


def warnings_of(data: Any) -> Iterator[str]:
    """Sentences about what is probably a mistake, for a run to print.

    The data are read all the same.
    """
    root = Path(data.path).expanduser()
    if data.source not in ('text', 'parallel') or not data.path or not root.exists():
        return
    if data.source == 'parallel':
        yield from _of_files(_pairs(root, data.pairs.languages))
        return
    if root.is_dir() and tuple(data.fractions) != FRACTIONS and has_splits(root):
        yield (
            f'config.data.fractions = {tuple(data.fractions)} is not used: {root} is a folder '
            'with its own splits'
        )
    if data.documents == 'folder':
        return
    if root.is_dir() and not has_splits(root):
        folders = sorted(each.name for each in root.iterdir() if each.is_dir())
        if folders := [name for name in folders if name[0] not in '._']:
            yield (
                f'{root}: its files are the texts, and the folders in it are not read '
                f'({", ".join(folders[:4])}{", ..." if len(folders) > 4 else ""})'
            )
    yield from _of_lists(root)
    yield from _of_files(_files(root, data.fractions))


def _of_lists(root: Path) -> Iterator[str]:
    """A sentence for each folder of a split whose tables are not read, since other files are there."""
    for name in itertools.chain.from_iterable(NAMES.values()):
        files: list[Path] = []
        with contextlib.suppress(UsageError, OSError):  # who reads it says why
            files = files_below(root / name)
        texts = [file for file in files if kind_of(file) not in LISTS]
        if texts and len(texts) < len(files):
            (table,) = [file for file in files if file not in texts][:1]
            yield (
                f'{table} is not read, since {texts[0].name} is there: beside other files a table is '
                'taken for a list of them. If it has the texts, take the other files away'
            )


def _of_files(files: list[Path]) -> Iterator[str]:
    """A sentence for each file that looks like something else than a text."""
    for file in files:
        looks = warning_of(file)
        if looks:
            yield (
                f'{file} {looks}, but is read as a text in UTF-8; convert it to UTF-8, or give another '
                'config.data.path'
            )


def division(data: Any) -> str:
    """Which texts of a folder without splits are kept for validation and test; '' of other data."""
    root = Path(data.path).expanduser()
    if data.source != 'text' or data.documents == 'folder' or not data.path or not root.is_dir():
        return ''
    if has_splits(root):
        return ''
    names = {
        split: [file.name for file in find_files(root, split, data.fractions)] for split in SPLITS
    }
    shown = {
        split: ', '.join(names[split][:4]) + (', ...' if len(names[split]) > 4 else '')
        for split in ('validation', 'test')
    }
    return (
        f'{root} has no splits, so its texts are divided: {len(names["train"])} for training, '
        f'{shown["validation"]} for validation, {shown["test"]} for the test.'
    )


def of_unknown(corpus: AnyCorpus) -> Iterator[str]:
    """A sentence if a good part of the first document's tokens are those of what is not known."""
    if (unknown := getattr(corpus.tokenizer, 'unknown', None)) is None:
        return
    tokens = corpus[0].tokens
    if len(tokens) and (share := np.mean(tokens == unknown)) > MOST_UNKNOWN:
        yield (
            f'{share:.0%} of the first document are tokens that this vocabulary does not have: scores '
            'are those of a text without them. Use a vocabulary that was learned from such a text '
            '(config.data.tokenizer)'
        )


def of_pairs(corpus: AnyCorpus) -> Iterator[str]:
    """A sentence if pairs of a translator's split are left out of training, or cut in evaluation."""
    if left_out := getattr(corpus, 'left_out', 0):
        yield (
            f'{left_out:,} of {left_out + len(corpus):,} pairs are left out, since a side is empty or '
            'longer than config.data.pairs.max_source or max_target'
        )
    if cut := getattr(corpus, 'cut', 0):
        yield (
            f'{cut:,} of {number_of(len(corpus), "pair")} are cut, since a side is longer than '
            'config.data.pairs.max_source or max_target'
        )


def _files(root: Path, fractions: Any) -> list[Path]:
    """The file, or the first files of every split."""
    if root.is_file():
        return [root]
    found = []
    for split in SPLITS:
        try:
            found += find_files(root, split, fractions)[:FILES]
        except UsageError:  # who reads it says why
            continue
    return found


def _pairs(root: Path, languages: Iterable[str]) -> list[Path]:
    """The files of pairs of texts."""
    found = []
    for split in SPLITS:
        for language in languages:
            with contextlib.suppress(UsageError, OSError):  # who reads it says why
                found.append(file_of(root, split, language))
    return found
