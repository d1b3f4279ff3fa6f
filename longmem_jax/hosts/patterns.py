"""One line per tensor that says how theirs is laid out in ours, read in both directions.

A pattern such as `'(h k) d -> d h k'` names the axes of their tensor on the left and of our parameters
on the right; axes in brackets are flattened into one. Where a tensor of theirs holds several parameters
of ours, such as queries, keys and values in one, the first axis on the right counts them.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Slices = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A layout.

    Axes of their tensor, each a tuple of flattened axes, outermost first, and axes of ours.
    """

    theirs: tuple[tuple[str, ...], ...]
    ours: tuple[str, ...]

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """Sizes of the axes if ours have this shape."""
        return dict(zip(self.ours, shape, strict=True))

    def their_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of their tensor if ours have this shape."""
        sizes = self.sizes(shape)
        return tuple(math.prod(sizes[axis] for axis in axes) for axes in self.theirs)

    def take(
        self, read: Callable[[Slices], np.ndarray], index: Slices, shape: Sequence[int]
    ) -> np.ndarray:
        """A part of our parameters, reading no more of their tensor than it consists of.

        `index` has slices of our axes, of step 1; `shape` is that of our parameters.
        """
        sizes = self.sizes(shape)
        ranges = {
            axis: range(size)[part] for (axis, size), part in zip(sizes.items(), index, strict=True)
        }
        runs = [_runs(axes, sizes, ranges) for axes in self.theirs]
        part = _join(read, runs, ())
        order = [axis for axes in self.theirs for axis in axes]
        part = part.reshape([len(ranges[axis]) for axis in order])
        return part.transpose([order.index(axis) for axis in self.ours])

    def put(self, ours: np.ndarray) -> np.ndarray:
        """Their tensor from our whole parameters: the pattern from right to left."""
        order = [axis for axes in self.theirs for axis in axes]
        turned = ours.transpose([self.ours.index(axis) for axis in order])
        return np.ascontiguousarray(turned.reshape(self.their_shape(ours.shape)))


def _runs(
    axes: tuple[str, ...], sizes: Mapping[str, int], ranges: Mapping[str, range]
) -> list[slice]:
    """The parts of a flattened axis that `ranges` of its axes consist of, in order, as few as can be."""
    last = len(axes) - 1
    while last > 0 and len(ranges[axes[last]]) == sizes[axes[last]]:
        last -= 1
    inner = math.prod(sizes[axis] for axis in axes[last + 1 :])
    chosen, runs = ranges[axes[last]], []
    for outer in itertools.product(*(ranges[axis] for axis in axes[:last])):
        start = 0
        for axis, number in zip(axes, outer, strict=False):
            start = start * sizes[axis] + number
        start *= sizes[axes[last]]
        runs.append(slice((start + chosen.start) * inner, (start + chosen.stop) * inner))
    return runs


def _join(
    read: Callable[[Slices], np.ndarray], runs: Sequence[Sequence[slice]], chosen: Slices
) -> np.ndarray:
    """Reads all combinations of runs of the axes from `len(chosen)` on, and joins them."""
    axis = len(chosen)
    if axis == len(runs):
        return read(chosen)
    parts = [_join(read, runs, (*chosen, run)) for run in runs[axis]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)


@functools.cache
def pattern(text: str) -> Pattern:
    """Reads a pattern such as `'(h k) d -> d h k'`."""
    left, _, right = text.partition('->')
    theirs = tuple(
        tuple(match[1].split()) if match[1] else (match[0],)
        for match in re.finditer(r'\(([^)]*)\)|\w+', left)
    )
    return Pattern(theirs, tuple(right.split()))
