"""Documents, and how to cut them into smaller ones."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Sequence
from typing import Protocol

from longmem_jax.errors import UsageError, unknown

SPLITS = ('train', 'validation', 'test')  # keep the order: the index of a split seeds the tasks
FRACTIONS = (0.9, 0.05, 0.05)  # of a whole without splits, unless a config has others


@dataclasses.dataclass(frozen=True)
class Document:
    """One text: where it came from, and its bytes, usually UTF-8."""

    name: str
    text: bytes


class Source(Protocol):
    """The documents of one split, read one at a time: `len(source)` and `source[i]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


def cut(text: bytes, pieces: int) -> list[tuple[int, int]]:
    """Splits a text into `pieces` contiguous parts of nearly equal size.

    Returns:
      (start, end) of every part; together they cover the text. Parts of a short text may be empty. A
      part ends after a line, else after a blank, else between two UTF-8 characters.
    """
    borders, window = [0], max(len(text) // pieces // 2, 1)
    for piece in range(1, pieces):
        borders.append(_border(text, max(len(text) * piece // pieces, borders[-1]), window))
    borders.append(len(text))
    return list(itertools.pairwise(borders))


def _border(text: bytes, at: int, window: int) -> int:
    """The first good position for a cut in `text[at:at + window]`."""
    for separator in (b'\n', b' '):
        index = text.find(separator, at, at + window)
        if index >= 0:
            return index + 1
    for position in range(at, min(at + 4, len(text))):  # a UTF-8 character has at most 4 bytes
        if text[position] & 0xC0 != 0x80:
            return position
    return at


class First:
    """The first documents of a source, at most `number`."""

    def __init__(self, source: Source, number: int):
        """Reads nothing."""
        self._source, self._number = source, number

    def __len__(self) -> int:
        return min(len(self._source), self._number)

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._source[index]


class Pieces:
    """A source whose documents are cut into `pieces`, so that one long text can fill many lanes."""

    def __init__(self, source: Source, pieces: int):
        """Reads nothing yet."""
        self._source, self._pieces = source, pieces
        self._last: tuple[int, Document, list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return len(self._source) * self._pieces

    def __getitem__(self, index: int) -> Document:
        whole, piece = divmod(index, self._pieces)
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] != whole:
            document = self._source[whole]
            last = self._last = (whole, document, cut(document.text, self._pieces))
        document, (start, end) = last[1], last[2][piece]
        return Document(f'{document.name}[{start}:{end}]', document.text[start:end])


def require_split(split: str) -> None:
    """Raises `UsageError` unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise UsageError(unknown('split', split, SPLITS))


def require_fractions(fractions: Sequence[float]) -> None:
    """Raises `UsageError` unless `config.data.fractions` are three shares."""
    if len(fractions) != 3 or min(fractions) <= 0 or sum(fractions) > 1 + 1e-6:
        raise UsageError(
            f'config.data.fractions = {tuple(fractions)}: must be three positive numbers, the '
            'training, validation and test parts, with a sum of at most 1.'
        )


def split_seeded(
    names: Sequence[str], split: str, fractions: Sequence[float] = FRACTIONS
) -> list[str]:
    """The names of a split, the same on every machine.

    Args:
      split: 'train', 'validation' or 'test'; with three names or more no split is empty.
      fractions: shares of the splits, rounded down for validation and test.

    Raises:
      UsageError: wrong shares.
    """
    require_fractions(fractions)
    ordered = sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).hexdigest())
    train, validation, test = (max(int(len(ordered) * share + 1e-6), 1) for share in fractions)
    if sum(fractions) > 1 - 1e-6:
        train = len(ordered)  # all others
    splits = {
        'test': ordered[:test],
        'validation': ordered[test : test + validation],
        'train': ordered[test + validation :][:train],
    }
    return sorted(splits[split])
