"""One line per tensor that says how theirs is laid out in ours, read in both directions.

A pattern such as `'(h k) d -> d h k'` names the axes of their tensor on the left and of our parameters
on the right; axes in brackets are flattened into one, and `1` is an axis of that size, not of ours.

Where a tensor of theirs holds several parameters of ours, such as queries, keys and values in one, the
first axis on the right counts them. If they differ in shape, every one has a pattern of its own, in
`'h d -> d h + (h k) d -> d h k by 2'`: the first axis of theirs then has 2 blocks, and every block its
share of each parameter, one after another; without `by`, one block.
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

    @property
    def _order(self) -> list[str]:
        """Our axes in the order of theirs."""
        return [axis for axes in self.theirs for axis in axes if axis != '1']

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """Sizes of the axes if ours have this shape."""
        return dict(zip(self.ours, shape, strict=True)) | {'1': 1}

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
            axis: range(sizes[axis])[part] for axis, part in zip(self.ours, index, strict=True)
        } | {'1': range(1)}
        runs = [_runs(axes, sizes, ranges) for axes in self.theirs]
        part = _join(read, runs, ())
        part = part.reshape([len(ranges[axis]) for axis in self._order])
        return part.transpose([self._order.index(axis) for axis in self.ours])

    def put(self, ours: np.ndarray) -> np.ndarray:
        """Their tensor from our whole parameters: the pattern from right to left."""
        turned = ours.transpose([self.ours.index(axis) for axis in self._order])
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


Shapes = Sequence[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a tensor of theirs holds parameters of ours: by one pattern for all, or by one for each."""

    patterns: tuple[Pattern, ...]
    blocks: int

    def _parts(self, shapes: Shapes) -> list[tuple[int, ...]]:
        """The part of every parameter in a block, as a shape."""
        parts = [rule.their_shape(shape) for rule, shape in zip(self.patterns, shapes, strict=True)]
        return [(shape[0] // self.blocks, *shape[1:]) for shape in parts]

    def their_shape(self, shapes: Shapes) -> tuple[int, ...]:
        """The shape of their tensor if our parameters have these shapes."""
        if len(self.patterns) == 1:
            counted = (len(shapes),) if len(shapes) > 1 else ()
            return self.patterns[0].their_shape((*counted, *shapes[0]))
        parts = self._parts(shapes)
        return (self.blocks * sum(part[0] for part in parts), *parts[0][1:])

    def take(
        self, read: Callable[[Slices], np.ndarray], number: int, index: Slices, shapes: Shapes
    ) -> np.ndarray:
        """As `Pattern.take`, of the parameter `number` of those that have `shapes`."""
        if len(self.patterns) == 1 and len(shapes) == 1:
            return self.patterns[0].take(read, index, shapes[0])
        if len(self.patterns) == 1:
            whole, own = (len(shapes), *shapes[0]), slice(number, number + 1)
            return self.patterns[0].take(read, (own, *index), whole)[0]
        rows = [part[0] for part in self._parts(shapes)]
        size, total, before = rows[number], sum(rows), sum(rows[:number])

        def read_own(cuts: Slices) -> np.ndarray:
            first, last = cuts[0].start, cuts[0].stop
            borders = [*range((first // size + 1) * size, last, size)]
            runs = zip([first, *borders], [*borders, last], strict=True)
            parts = []
            for start, stop in runs:
                shift = start // size * (total - size) + before
                parts.append(read((slice(start + shift, stop + shift), *cuts[1:])))
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return self.patterns[number].take(read_own, index, shapes[number])

    def put(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Their tensor from our whole parameters."""
        if len(self.patterns) == 1:
            return self.patterns[0].put(np.stack(arrays) if len(arrays) > 1 else arrays[0])
        parts = [rule.put(array) for rule, array in zip(self.patterns, arrays, strict=True)]
        blocks = [part.reshape(self.blocks, -1, *part.shape[1:]) for part in parts]
        return np.concatenate(blocks, axis=1).reshape(-1, *parts[0].shape[1:])


@functools.cache
def layout(text: str) -> Layout:
    """Reads a pattern, or several of one tensor."""
    patterns, _, blocks = text.partition(' by ')
    return Layout(tuple(pattern(part) for part in patterns.split(' + ')), int(blocks or 1))


@functools.cache
def pattern(text: str) -> Pattern:
    """Reads a pattern such as `'(h k) d -> d h k'`."""
    left, _, right = text.partition('->')
    theirs = tuple(
        tuple(match[1].split()) if match[1] else (match[0],)
        for match in re.finditer(r'\(([^)]*)\)|\w+', left)
    )
    return Pattern(theirs, tuple(right.split()))
