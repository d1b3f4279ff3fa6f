"""Packing: padding after all tokens, and everything back where it stood."""

import jax.numpy as jnp
import numpy as np

from longmem_jax.segment import Segment, pack


def test_packed_tokens_come_first_in_their_order():
    tokens = jnp.asarray([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9, 9]], jnp.int32)
    valid = jnp.asarray([[False, True, False, True], [True] * 4, [False] * 4])
    packed, packing = pack(Segment(tokens, valid, jnp.zeros((3,), bool)))
    np.testing.assert_array_equal(packed.tokens[0, :2], [6, 8])
    np.testing.assert_array_equal(packed.tokens[1], [1, 2, 3, 4])
    np.testing.assert_array_equal(packed.valid.sum(axis=1), [2, 4, 0])
    np.testing.assert_array_equal(packed.valid[0], [True, True, False, False])
    np.testing.assert_array_equal(packing.unpack(packed.tokens), tokens)


def test_results_of_any_rank_are_packed_and_unpacked():
    random = np.random.default_rng(0)
    valid = jnp.asarray(random.random((3, 6)) < 0.5)
    segment = Segment(jnp.zeros((3, 6), jnp.int32), valid, jnp.zeros((3,), bool))
    _, packing = pack(segment)
    for shape in ((3, 6), (3, 6, 2), (3, 6, 2, 4)):
        leaf = jnp.asarray(random.normal(size=shape), jnp.float32)
        there = packing.pack(leaf)
        np.testing.assert_array_equal(packing.unpack(there), leaf)
        for lane in range(3):
            number = int(valid[lane].sum())
            np.testing.assert_array_equal(there[lane, :number], leaf[lane][valid[lane]])
