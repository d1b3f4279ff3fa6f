"""Patterns in both directions, and parts of tensors without reading the rest."""

import itertools

import numpy as np
import pytest

from longmem_jax.hosts.patterns import pattern

SIZES = dict(d=6, h=4, k=3, three=3, o=5, i=2)
LAYOUTS = (
    'd -> d', 'o i -> i o', '(h k) d -> d h k', 'd (h k) -> h k d', '(h k) d -> h k d',
    'd (three h k) -> three d h k', '(h three k) d -> three d h k', '(three h k) -> three h k',
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


def test_the_layouts_mean_what_they_say():
    tensor = np.arange(12).reshape(4, 3)  # two heads of two, from three inputs
    ours = pattern('(h k) d -> d h k').take(
        lambda index: tensor[index], (slice(0, None),) * 3, (3, 2, 2)
    )
    assert ours[2, 1, 0] == tensor[2, 2] and ours[0, 0, 1] == tensor[1, 0]
