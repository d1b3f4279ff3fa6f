"""Patterns in both directions, and parts of tensors without reading the rest."""

import itertools

import numpy as np
import pytest

from longmem_jax.hosts.patterns import layout, pattern

SIZES = dict(d=6, h=4, k=3, three=3, o=5, i=2, v=2)
LAYOUTS = (
    'd -> d', 'o i -> i o', '(h k) d -> d h k', 'd (h k) -> h k d', '(h k) d -> h k d',
    'd (three h k) -> three d h k', '(h three k) d -> three d h k', '(three h k) -> three h k',
    '(h k) 1 i -> i h k',
)  # fmt: skip


@pytest.mark.parametrize('text', LAYOUTS)
def test_parts_are_parts_of_the_whole(text):
    rule = pattern(text)
    shape = [SIZES[axis] for axis in rule.ours]
    ours = np.random.default_rng(0).normal(size=shape)
    theirs, count = rule.put(ours), [0]
    assert theirs.shape == rule.their_shape(shape) and theirs.flags.c_contiguous

    def read(index):
        part = theirs[index]
        count[0] += part.size
        return part

    halves = [(slice(0, size // 2), slice(size // 2, size), slice(0, size)) for size in shape]
    for index in itertools.product(*halves):
        count[0] = 0
        part = rule.take(read, index, shape)
        np.testing.assert_array_equal(part, ours[index])
        assert count[0] == ours[index].size, f'{index}: read {count[0]} numbers for {part.size}'


@pytest.mark.parametrize(
    'text',
    ['(h k) d -> d h k + h d -> d h by 2', 'h 1 d -> d h + (h k) 1 d -> d h k + o 1 d -> d o'],
)
def test_parameters_that_differ_in_shape_are_parts_of_one_tensor(text):
    rule = layout(text)
    shapes = [tuple(SIZES[axis] for axis in part.ours) for part in rule.patterns]
    arrays = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
    theirs = rule.put(arrays)
    assert theirs.shape == rule.their_shape(shapes)
    assert theirs.size == sum(array.size for array in arrays)
    for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        halves = [(slice(0, size // 2), slice(size // 2, size), slice(0, size)) for size in shape]
        for index in itertools.product(*halves):
            part = rule.take(lambda cuts: theirs[cuts], number, index, shapes)
            np.testing.assert_array_equal(part, array[index])


def test_every_block_has_its_share():
    queries, values = np.arange(4).reshape(4, 1), np.arange(10, 12).reshape(2, 1)
    found = layout('h d -> h d + h d -> h d by 2').put([queries, values])
    assert found[:, 0].tolist() == [0, 1, 10, 2, 3, 11]


def test_the_layouts_mean_what_they_say():
    tensor = np.arange(12).reshape(4, 3)  # two heads of two, from three inputs
    ours = pattern('(h k) d -> d h k').take(
        lambda index: tensor[index], (slice(0, None),) * 3, (3, 2, 2)
    )
    assert ours[2, 1, 0] == tensor[2, 2] and ours[0, 0, 1] == tensor[1, 0]
