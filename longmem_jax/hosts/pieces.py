"""Several tensors of files that are one parameter: a tensor per expert, or per part of a convolution.

Tables name them as one. In `'a.weight + b.weight'` the tensors stand one after another along the first
axis, wherever that was cut. In `'experts.{e}.weight'` there is one for every `{e}` from 0 on, and they
are stacked along a new first axis.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

AND, EACH = ' + ', '{e}'


def prefixed(prefix: str, name: str) -> str:
    """The name in a table with a prefix before each of its tensors."""
    return AND.join(prefix + part for part in name.split(AND))


class Pieces(NamedTuple):
    """The tensors of files that are one.

    Attributes:
      names: of the tensors.
      rows: of each, along the first axis of the whole.
      stacked: that axis is not one of theirs.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    stacked: bool

    @classmethod
    def each(cls, name: str, number: int) -> 'Pieces':
        """A tensor for every number from 0 on in place of `{e}`."""
        names = tuple(name.replace(EACH, str(each)) for each in range(number))
        return cls(names, (1,) * number, True)

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The shape of the whole; None = these shapes of the pieces do not fit together."""
        rest = {shape if self.stacked else shape[1:] for shape in shapes}
        if len(rest) != 1 or not (self.stacked or all(shapes)):
            return None
        return (sum(self.rows), *rest.pop())

    def _parts(self) -> Iterator[tuple[str, int, int]]:
        """Every name, with its first row and the one after its last."""
        ends = (0, *itertools.accumulate(self.rows))
        return zip(self.names, ends, ends[1:], strict=False)

    def read(
        self, read: Callable[[str, tuple[slice, ...]], np.ndarray], index: tuple[slice, ...]
    ) -> np.ndarray:
        """A part of the whole, by parts of the pieces that it consists of."""
        rows, rest = index[0], index[1:]
        parts = []
        for name, first, end in self._parts():
            start, stop = max(rows.start, first), min(rows.stop, end)
            if start < stop and self.stacked:
                parts.append(read(name, rest)[None])
            elif start < stop:
                parts.append(read(name, (slice(start - first, stop - first), *rest)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def cut(self, whole: Callable[[], np.ndarray]) -> dict[str, Callable[[], np.ndarray]]:
        """Name of every piece to a function that makes it; `whole` makes all of them."""

        def piece(first: int, end: int) -> np.ndarray:
            rows = whole()
            return np.ascontiguousarray(rows[first] if self.stacked else rows[first:end])

        return {name: functools.partial(piece, first, end) for name, first, end in self._parts()}


def pieces_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Pieces | None:
    """What a name in a table stands for, if the files (`shapes` by name) have its pieces."""
    if EACH in name:
        numbered = (name.replace(EACH, str(number)) in shapes for number in itertools.count())
        number = sum(itertools.takewhile(bool, numbered))
        return Pieces.each(name, number) if number else None
    names = tuple(name.split(AND))
    if len(names) == 1 or not all(part in shapes for part in names):
        return None
    return Pieces(names, tuple(shapes[part][0] if shapes[part] else 0 for part in names), False)
