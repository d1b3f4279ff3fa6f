"""Documents, and how they may be cut into smaller ones."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Protocol


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
      (start, end) of every part that is not empty; together they are the whole text.
    """
    borders = [0]
    for number in range(1, pieces):
        at = max(len(text) * number // pieces, borders[-1])
        line = text.find(b'\n', at, at + max(len(text) // pieces // 2, 1))
        borders.append(line + 1 if line >= 0 else at)
    borders.append(len(text))
    return [(a, b) for a, b in zip(borders, borders[1:], strict=False) if b > a]


class Pieces:
    """A source whose documents are cut in `pieces`, so that one long text can fill many lanes."""

    def __init__(self, source: Source, pieces: int):
        """Reads every document once to find the borders."""
        self._source = source
        self._parts = [
            (index, start, end)
            for index in range(len(source))
            for start, end in cut(source[index].text, pieces)
        ]
        self._last: tuple[int, Document] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Document:
        number, start, end = self._parts[index]
        if self._last is None or self._last[0] != number:
            self._last = (number, self._source[number])
        document = self._last[1]
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
