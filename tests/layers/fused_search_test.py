"""The fused attention to nearest rows against all scores at once, by Pallas's interpreter."""

import chex
import jax
import jax.numpy as jnp
import pytest

from longmem_jax.layers import fused_search

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 13, 8  # no multiples of blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of queries and of rows, the last ones not full."""
    monkeypatch.setattr(fused_search, 'BLOCK_QUERIES', 8)
    monkeypatch.setattr(fused_search, 'BLOCK_ROWS', 16)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def vectors(size=70):
    """Queries, keys and values; lane 0 is filled, lane 1 in part; beyond that nothing is a number."""
    count = jnp.asarray([size, size // 3], jnp.int32)
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


@pytest.mark.parametrize('k', [1, 5, 30], ids='k={}'.format)
def test_reads_the_nearest_rows(k):
    """Of k = 30 and 23 filled rows, all are read. Small k, so that bins hold what they must."""
    arguments = vectors()
    levels = {30: 5}.get(k, fused_search.LEVELS)  # as many as a bin of 70 rows in 16 bins has
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_search, 'LEVELS', levels)
        found = with_derivatives(lambda *a: fused_search.attend_nearest(*a, k), *arguments)
    wanted = with_derivatives(lambda *a: all_at_once(*a, k), *arguments)
    chex.assert_trees_all_close(found, wanted, atol=2e-5)
