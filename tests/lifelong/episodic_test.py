"""The ring of an episodic memory against a list, and its neighbours against all distances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.lifelong import episodic

write = jax.jit(episodic.write)
nearest = jax.jit(episodic.nearest, static_argnames=('k', 'block'))


@given(
    capacity=st.sampled_from([0, 1, 3, 8]),
    batches=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), max_size=5),
)
def test_the_last_rows_are_kept_in_a_ring(capacity, batches):
    memory, written, number = episodic.empty(capacity, 2), [], 0
    for chosen in batches:
        numbers = np.arange(number, number + 4, dtype=np.int32)
        keys = np.stack([numbers, -numbers], axis=1).astype(np.float32)
        memory = write(memory, numbers, keys, np.asarray(chosen))
        written += [i for i, kept in zip(numbers, chosen, strict=True) if kept]
        number += 4
    kept = written[len(written) - capacity :] if len(written) > capacity else written
    size = int(memory.size)
    assert size == (len(kept) if capacity else 0)
    assert sorted(memory.numbers[:size].tolist()) == sorted(kept if capacity else [])
    for place in range(size):  # keys belong to their numbers, and entry `count % size` is next
        assert memory.keys[place].tolist() == [memory.numbers[place], -memory.numbers[place]]
        assert memory.numbers[place] == written[place::capacity][-1]


@functools.cache
def filled(capacity=50, count=37, dtype='float32'):
    keys = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    memory = episodic.empty(capacity, 3, dtype)
    return keys, write(memory, np.arange(count, dtype=np.int32) * 10, keys, np.ones(count, bool))


@pytest.mark.parametrize('block', [1, 7, 16, 50, 1000])
def test_the_nearest_are_those_of_all_distances(block):
    keys, memory = filled()
    queries = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    wanted = np.square(queries[:, None].astype(np.float64) - keys).sum(-1)
    order = np.argsort(wanted, axis=1)[:, :5]
    numbers, squared, found = nearest(memory, queries, k=5, block=block)
    assert found.all()
    np.testing.assert_array_equal(numbers, order * 10)
    np.testing.assert_allclose(squared, np.take_along_axis(wanted, order, 1), rtol=1e-5)


def test_more_queries_than_are_compared_at_a_time():
    keys, memory = filled()
    queries = np.random.default_rng(1).normal(size=(2 * episodic.QUERIES + 3, 3)).astype(np.float32)
    numbers, _, _ = nearest(memory, queries, k=1)
    wanted = np.square(queries[:, None] - keys).sum(-1).argmin(axis=1)
    np.testing.assert_array_equal(numbers[:, 0], wanted * 10)


def test_a_row_is_no_neighbour_of_itself():
    keys, memory = filled()
    numbers, squared, _ = nearest(memory, keys[:4], k=2, own=np.arange(4, dtype=np.int32) * 10)
    assert (squared > 0).all() and (numbers != np.arange(4)[:, None] * 10).all()
    numbers, squared, _ = nearest(memory, keys[:4], k=2)
    assert (squared[:, 0] == 0).all() and (numbers[:, 0] == np.arange(4) * 10).all()


def test_more_neighbours_than_rows():
    _, memory = filled(capacity=50, count=3)
    numbers, squared, found = nearest(memory, jnp.zeros((2, 3)), k=5)
    assert found.sum(axis=1).tolist() == [3, 3] and not found[:, 3:].any()
    assert jnp.isinf(squared[:, 3:]).all() and jnp.isfinite(squared[:, :3]).all()
    numbers, _, found = nearest(memory, jnp.zeros((2, 3)), k=60)
    assert numbers.shape == (2, 60) and found.sum() == 6


@pytest.mark.parametrize('capacity', [0, 5])
def test_a_memory_without_rows(capacity):
    memory = episodic.empty(capacity, 3)
    numbers, squared, found = nearest(memory, jnp.zeros((2, 3)), k=4)
    assert numbers.shape == (2, 4) and not found.any() and jnp.isinf(squared).all()
    numbers, had = episodic.draw(memory, jax.random.key(0), (2, 3))
    assert numbers.shape == (2, 3) and not had


def test_half_precision_keys():
    keys, memory = filled(dtype='float16')
    assert memory.keys.dtype == jnp.float16
    numbers, squared, _ = nearest(memory, keys[:4], k=1)
    assert (numbers[:, 0] == np.arange(4) * 10).all() and (squared < 1e-5).all()


@pytest.mark.slow
def test_draws_are_uniform_over_what_is_there():
    _, memory = filled(capacity=50, count=4)
    numbers, had = episodic.draw(memory, jax.random.key(1), (4_000,))
    values, counts = np.unique(numbers, return_counts=True)
    assert had and values.tolist() == [0, 10, 20, 30] and (abs(counts - 1_000) < 120).all()
