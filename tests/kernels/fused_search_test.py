"""The fused attention to nearest rows against all scores at once, by Pallas's interpreter."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.memorizing import nearest_recall, search_programs
from longmem_jax.kernels.tpu import fused_search
from tests.kernels.interpreted import interpret, normal

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 13, 8  # no multiples of blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of queries and of rows, the last ones not full; the interpreter runs them."""
    interpret(monkeypatch, fused_search, BLOCK_QUERIES=8, BLOCK_ROWS=16)


def vectors(size=70, part=23):
    """Queries, keys and values; lane 0 is filled, lane 1 in part; beyond that nothing is a number."""
    count = jnp.asarray([size, part], jnp.int32)
    filled = (jnp.arange(size) < count[:, None])[:, None, :, None]
    queries = normal(0, BATCH, HEADS, LENGTH, WIDTH)
    rows = [normal(seed, BATCH, HEADS, size, WIDTH) for seed in (1, 2)]
    return queries, *(jnp.where(filled, held, jnp.nan) for held in rows), count


def all_at_once(queries, keys, values, count, k):
    """Softmax over the k largest scores of all rows."""
    filled = jnp.arange(keys.shape[2]) < count[:, None]
    keys, values = (jnp.where(filled[:, None, :, None], rows, 0) for rows in (keys, values))
    scores = jnp.einsum('bhnd,bhmd->bhnm', queries, keys)
    scores = jnp.where(filled[:, None, None], scores, -jnp.inf)
    limit = jax.lax.top_k(jax.lax.stop_gradient(scores), k)[0][..., -1:]
    seen = (scores >= limit) & filled[:, None, None]
    scores = jnp.where(seen, scores, -1e30)
    weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0)
    return jnp.einsum('bhnm,bhmd->bhnd', weights, values)


def with_derivatives(function, queries, *rows):
    def value(queries):
        out = function(queries, *rows)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    (_, out), found = jax.jit(jax.value_and_grad(value, has_aux=True))(queries)
    return out, found


@pytest.mark.parametrize(('k', 'part'), [(1, 0), (5, 1), (30, 23)])
def test_reads_the_nearest_rows(k, part):
    """Of k = 30 and 23 filled rows, all are read. Small k, so that bins hold what they must."""
    arguments = vectors(part=part)
    levels = {30: 5}.get(k, fused_search.LEVELS)  # as many as a bin of 70 rows in 16 bins has
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_search, 'LEVELS', levels)
        found = with_derivatives(lambda *a: fused_search.attend_nearest(*a, k), *arguments)
    wanted = with_derivatives(lambda *a: all_at_once(*a, k), *arguments)
    chex.assert_trees_all_close(found, wanted, atol=2e-5)


def test_half_precision_rounds_only_its_inputs():
    queries, keys, values, count = vectors()
    queries, keys, values = (held.astype(jnp.bfloat16) for held in (queries, keys, values))
    exact = (held.astype(jnp.float32) for held in (queries, keys, values))
    wanted = with_derivatives(lambda *a: all_at_once(*a, 5), *exact, count)
    found = with_derivatives(
        lambda *a: fused_search.attend_nearest(*a, 5), queries, keys, values, count
    )
    assert {leaf.dtype for leaf in found} == {jnp.dtype(jnp.bfloat16)}
    chex.assert_trees_all_close(wanted, jax.tree.map(jnp.float32, found), atol=0.05)


def test_a_crowded_bin_lets_one_row_more_in():
    """Four of the five nearest in one bin of three: the limit is that of the sixth."""
    bins, k = fused_search.BLOCK_ROWS, 5
    number = 4 * bins
    scores = np.full((1, number), -1.0, np.float32)
    scores[0, [3 + i * bins for i in range(4)]] = 0.9, 0.8, 0.7, 0.6  # row 3 of every block
    scores[0, [5, 6]] = 0.5, 0.4
    queries, values = np.eye(1, number, dtype=np.float32), np.eye(number, dtype=np.float32)
    keys = np.pad(scores.T, [(0, 0), (0, number - 1)])
    found = fused_search.attend_nearest(
        *(jnp.asarray(held)[None, None] for held in (queries, keys, values)),
        jnp.asarray([number]),
        k,
    )
    read = set(np.flatnonzero(np.asarray(found)[0, 0, 0]))
    assert read == {3 + i * bins for i in range(4)} | {5, 6}
    # The emulation, with which the recall of the documentation is measured, has the same rows.
    assert set(np.flatnonzero(nearest_recall.found_fused(scores, k)[0])) == read


def test_periodic_rows_are_all_read(monkeypatch):
    """The documented number: every 512th of 8,192 rows is near, 3 of these 16 count for the limit."""
    monkeypatch.setattr(fused_search, 'BLOCK_ROWS', 512)
    scores = np.random.default_rng(0).normal(size=(4, 8192)).astype(np.float32)
    scores[:, 7::512] += 10
    assert set(nearest_recall.found_fused(scores, 32).sum(axis=1)) == {16 + 32 - 3}


def test_every_device_searches_for_its_own_lanes_and_heads():
    arguments = vectors()

    def function(*arguments):
        return fused_search.attend_nearest(*arguments, 5)

    alone = with_derivatives(function, *arguments)
    mesh = jax.make_mesh(
        (2, 1, 2, 2),
        ('data', 'fsdp', 'tensor', 'memory'),
        axis_types=(jax.sharding.AxisType.Auto,) * 4,
    )
    with jax.set_mesh(mesh):
        split = with_derivatives(function, *arguments)
    assert split[0].sharding.spec[:2] == ('data', 'tensor')
    chex.assert_trees_all_close(alone, jax.device_get(split), atol=2e-5)


def test_searches_whose_programs_are_compared_read_the_same(monkeypatch):
    monkeypatch.setattr(fused_search, 'BLOCK_ROWS', 128)  # a bin for every row
    arguments = vectors()
    exact, *others = (
        with_derivatives(functools.partial(search_programs.read, name), *arguments)
        for name in search_programs.SEARCHES
    )
    for found in others:
        chex.assert_trees_all_close(found, exact, atol=2e-5)
