"""Arrays of any length that are made as they are read, and never held whole."""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Part(NamedTuple):
    """`length` entries; `read(start, stop)` gives those from start to stop."""

    length: int
    read: Callable[[int, int], np.ndarray]


def part(entries: np.ndarray) -> Part:
    """Entries that are held."""
    return Part(len(entries), lambda start, stop: entries[start:stop])


class Streamed:
    """Parts one after another; read as an array is, by index, slice, or array of indices."""

    def __init__(self, parts: Sequence[Part], dtype: Any):
        """Reads nothing yet."""
        self._parts, self._dtype = [each for each in parts if each.length], dtype
        self._ends = list(itertools.accumulate(each.length for each in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, np.ndarray):
            return np.asarray([self[each] for each in index], self._dtype)
        if not isinstance(index, slice):
            at = range(len(self))[index]
            return self[at : at + 1][0]
        start, stop, step = index.indices(len(self))
        found, number = [np.zeros((0,), self._dtype)], bisect_right(self._ends, start)
        while start < stop:
            before = self._ends[number - 1] if number else 0
            end = min(stop, self._ends[number])
            found.append(self._parts[number].read(start - before, end - before))
            start, number = end, number + 1
        return np.concatenate(found).astype(self._dtype)[::step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self._dtype)
