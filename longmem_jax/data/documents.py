"""Documents, and how they may be cut into smaller ones."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Protocol

SPLITS = ('train', 'validation', 'test')  # in this order: tasks draw by the number of a split


@dataclasses.dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
      name: where it came from.
      text: its bytes, UTF-8 where it is text.
    """

    name: str
    text: bytes


class Source(Protocol):
    """The documents of one split, read one at a time: `len(source)` and `source[i]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


def cut(text: bytes, pieces: int) -> list[tuple[int, int]]:
    """Borders of `pieces` contiguous parts of nearly equal size, at line ends where there are any.

    Returns:
      (start, end) of every part; together they are the whole text. Parts of a short text may be
      empty. A part ends behind a line, else behind a blank, else between two UTF-8 characters.
    """
    borders, window = [0], max(len(text) // pieces // 2, 1)
    for number in range(1, pieces):
        borders.append(_border(text, max(len(text) * number // pieces, borders[-1]), window))
    borders.append(len(text))
    return list(itertools.pairwise(borders))


def _border(text: bytes, at: int, window: int) -> int:
    """The first good place for a cut in `text[at:at + window]`."""
    for mark in (b'\n', b' '):
        found = text.find(mark, at, at + window)
        if found >= 0:
            return found + 1
    for place in range(at, min(at + 4, len(text))):  # a UTF-8 character has at most 4 bytes
        if text[place] & 0xC0 != 0x80:
            return place
    return at


class Pieces:
    """A source whose documents are cut in `pieces`, so that one long text can fill many lanes."""

    def __init__(self, source: Source, pieces: int):
        """Reads nothing yet."""
        self._source, self._pieces = source, pieces
        self._last: tuple[int, Document, list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return len(self._source) * self._pieces

    def __getitem__(self, index: int) -> Document:
        number, part = divmod(index, self._pieces)
        last = self._last  # one look: another thread may put its own there
        if last is None or last[0] != number:
            document = self._source[number]
            last = self._last = (number, document, cut(document.text, self._pieces))
        document, (start, end) = last[1], last[2][part]
        return Document(f'{document.name}[{start}:{end}]', document.text[start:end])


def split_seeded(names: Sequence[str], split: str) -> list[str]:
    """About nine tenths, one twentieth and one twentieth of `names`, the same on every machine.

    Args:
      names: names of documents; the order does not matter.
      split: 'train', 'validation' or 'test'; none of them is empty with three names or more.
    """
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    held = max(len(ordered) // 20, 1)
    parts = {
        'test': ordered[:held],
        'validation': ordered[held : 2 * held],
        'train': ordered[2 * held :],
    }
    return sorted(parts[split])
