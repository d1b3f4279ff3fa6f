"""The nearest entries of a ring to each query.

Entries are searched in blocks with a running list of the best, so that the scores of all entries never
exist at once. On a mesh with a `memory` axis every device keeps and searches its own shard, and the
best of all shards are merged. Nothing here has a gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.attention_products import NEVER
from longmem_jax.kernels.cpu.top_k import top_k
from longmem_jax.layers.ring import Rows, on_devices

SEARCHES = ('exact', 'approximate', 'bucketed')


def _bucketed(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The best of each of k buckets of every k-th entry, as in the released search."""
    number = scores.shape[-1]
    buckets = scores.reshape(*scores.shape[:-1], number // k, k)
    index = buckets.argmax(axis=-2).astype(jnp.int32)
    best = jnp.take_along_axis(buckets, index[..., None, :], axis=-2)[..., 0, :]
    return best, index * k + jnp.arange(k, dtype=jnp.int32).reshape((1,) * (index.ndim - 1) + (k,))


def _search(
    ring: Rows,
    queries: jax.Array,
    base: int | jax.Array,
    k: int,
    method: str,
    recall: float,
    block_size: int,
) -> tuple[jax.Array, jax.Array]:
    """Scores and indices of the best entries on this device: [batch, heads, n, k] each."""
    size = ring.rows_keys.shape[2]
    block = min(block_size, size) if method != 'bucketed' else size
    while size % block:
        block -= 1
    take = min(k, block)
    choose = {
        'exact': None,
        'approximate': functools.partial(jax.lax.approx_max_k, recall_target=recall),
        'bucketed': _bucketed,
    }[method]

    def best_of(start: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.lax.dynamic_slice_in_dim(ring.rows_keys, start, block, axis=2)
        scores = jnp.einsum(
            'bhnd,bhmd->bhnm',
            queries.astype(keys.dtype) if keys.dtype == jnp.bfloat16 else queries,
            keys if keys.dtype != jnp.int8 else keys.astype(queries.dtype),
            preferred_element_type=jnp.float32,
        ).astype(jnp.float32)
        if ring.rows_key_scale is not None:
            scale = jax.lax.dynamic_slice_in_dim(ring.rows_key_scale, start, block, axis=2)
            scores = scores * scale[..., 0][:, :, None]
        filled = (ring.count - base - start)[:, None, None]
        if choose is None:
            scores, index = top_k(scores, take, filled)
        else:
            number = jnp.arange(block, dtype=jnp.int32)[None, None, None]
            mask = number < filled[..., None]
            scores, index = choose(jnp.where(mask, scores, jnp.float32(NEVER)), take)
        return scores, index.astype(jnp.int32) + base + start

    if block == size:
        return best_of(0)
    best = best_of(0)

    def join(best: Any, number: int | jax.Array) -> tuple[Any, None]:
        both = [
            jnp.concatenate(pair, -1) for pair in zip(best, best_of(number * block), strict=True)
        ]
        scores, index = top_k(both[0], min(k, both[0].shape[-1]))
        return (scores, jnp.take_along_axis(both[1], index, axis=-1)), None

    if take < k:  # blocks smaller than k: the list grows to k first
        number = 1
        while best[0].shape[-1] < k:
            best, _ = join(best, number)
            number += 1
        return jax.lax.scan(join, best, jnp.arange(number, size // block, dtype=jnp.int32))[0]
    return jax.lax.scan(join, best, jnp.arange(1, size // block, dtype=jnp.int32))[0]


def nearest(
    ring: Rows, queries: jax.Array, k: int, method: str, recall: float, block_size: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The k entries with the largest inner product with every query.

    Args:
      ring: the entries; unwritten ones are not found.
      queries: [batch, heads, n, width].
      k: at most the size of the ring.
      method: 'exact'; 'approximate' (`lax.approx_max_k` with target `recall`; exact except on TPUs);
        'bucketed', the best of each of k interleaved buckets.
      recall: see `method`.
      block_size: entries searched at once.

    Returns:
      keys, values: [batch, heads, n, k, width] in the dtype of the queries, zeros where fewer entries
      are filled; bool [batch, heads, n, k], which were found; int32 [batch, heads, n, k], their
      positions in the ring, undefined where not found.
    """
    ring, queries = jax.lax.stop_gradient((ring, queries))

    def find(ring: Rows, queries: jax.Array, base: Any) -> tuple[jax.Array, ...]:
        size = ring.rows_keys.shape[2]
        scores, index = _search(ring, queries, base, min(k, size), method, recall, block_size)
        sharded = not isinstance(base, int)
        if sharded:
            scores, index = (
                jax.lax.all_gather(local, 'memory', axis=3, tiled=True) for local in (scores, index)
            )
            scores, best = top_k(scores, k)
            index = jnp.take_along_axis(index, best, axis=-1)
        found = scores > NEVER / 2
        entries = index
        here = found & (index >= base) & (index < base + size)
        index = jnp.where(here, index - base, 0)
        gather = jax.vmap(jax.vmap(lambda entries, index: entries[index]))

        def read(stored: jax.Array, scale: jax.Array | None) -> jax.Array:
            vectors = gather(stored, index).astype(queries.dtype)
            if scale is not None:
                vectors = vectors * gather(scale, index).astype(queries.dtype)
            vectors = jnp.where(here[..., None], vectors, jnp.zeros_like(vectors))
            return jax.lax.psum(vectors, 'memory') if sharded else vectors

        return (
            read(ring.rows_keys, ring.rows_key_scale),
            read(ring.rows_values, ring.rows_value_scale),
            found,
            entries,
        )

    return jax.lax.stop_gradient(on_devices(find, ring, queries, False))
