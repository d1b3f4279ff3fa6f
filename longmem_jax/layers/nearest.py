"""First-in-first-out entries (keys and values), and the nearest of them to each query.

Entries are searched in blocks with a running list of the best, so that the scores of all entries never
exist at once. On a mesh with a `memory` axis every device keeps and searches its own shard, and the
best of all shards are merged. Nothing here has a gradient.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES, memory_rows
from longmem_jax.layers.attention_rules import NEVER
from longmem_jax.layers.top_k import top_k

SEARCHES = ('exact', 'approximate', 'bucketed')
DTYPES = ('float32', 'bfloat16', 'int8')


@flax.struct.dataclass
class Rows:
    """A ring of entries per lane and head; `rows_...` are sharded over the mesh axis `memory`.

    Attributes:
      rows_keys, rows_values: [batch, heads, size, width]; entry `count % size` is written next.
      rows_key_scale, rows_value_scale: float32 [batch, heads, size, 1] of int8 entries, else None.
      count: int32 [batch], entries written since the last reset, until all are filled; from then on
        one of size .. 2 size - 1 with the same remainder, so that it never outgrows its type.
    """

    rows_keys: jax.Array
    rows_values: jax.Array
    rows_key_scale: Any
    rows_value_scale: Any
    count: jax.Array


def no_rows(batch: int, heads: int, size: int, width: int, dtype: str) -> Rows:
    """An empty ring of `size` entries; `dtype` is one of `DTYPES`, or 'float64' for float64 models."""
    zeros = jnp.zeros((batch, heads, size, width), dtype)
    scale = jnp.zeros((batch, heads, size, 1), jnp.float32) if dtype == 'int8' else None
    return Rows(zeros, zeros, scale, scale, jnp.zeros((batch,), jnp.int32))


def _quantized(new: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array | None]:
    """Entries as they are stored, and their scales (int8 only)."""
    if dtype != jnp.int8:
        return new.astype(dtype), None
    new = new.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(new).max(axis=-1, keepdims=True), 1e-30) / 127
    return jnp.round(new / scale).astype(jnp.int8), scale


def _axes(batch: int, size: int) -> tuple[tuple[str, ...], int]:
    """Mesh axes of the lanes, and the number of shards of the memory, on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    num_shards = mesh.shape.get('memory', 1) if mesh.shape else 1
    if num_shards == 1:
        return (), 1
    lanes = tuple(axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1)
    count = 1
    for axis in lanes:
        count *= mesh.shape[axis]
    return (lanes if batch % count == 0 else ()), memory_rows(size, num_shards)


def _on_devices(
    function: Callable[[Rows, Any, Any], Any], ring: Rows, per_row: Any, returns_ring: bool
) -> Any:
    """`function(ring, per_row, base)` on every shard; `base` is the index of its first entry."""
    batch, _, size, _ = ring.rows_keys.shape
    lanes, num_shards = _axes(batch, size)
    if num_shards == 1:
        return function(ring, per_row, 0)
    by_lane = P(lanes or None)
    by_entry = P(lanes or None, None, 'memory')
    ring_specs = Rows(
        by_entry, by_entry, by_entry if ring.rows_key_scale is not None else None,
        by_entry if ring.rows_value_scale is not None else None, by_lane,
    )  # fmt: skip

    def on_shard(ring: Rows, per_row: Any) -> Any:
        return function(ring, per_row, jax.lax.axis_index('memory') * (size // num_shards))

    return jax.shard_map(
        on_shard,
        in_specs=(ring_specs, by_lane),
        out_specs=ring_specs if returns_ring else by_lane,
        axis_names={*lanes, 'memory'},
        check_vma=False,
    )(ring, per_row)


def write(ring: Rows, keys: jax.Array, values: jax.Array, num_valid: jax.Array) -> Rows:
    """Writes the first `num_valid` (int32 [batch]) of `keys` and `values` over the oldest entries.

    Args:
      ring: the entries.
      keys, values: [batch, heads, n, width].
      num_valid: if more than the size of the ring, the last ones are kept.
    """
    capacity = ring.rows_keys.shape[2]

    def write_shard(ring: Rows, per_row: Any, base: Any) -> Rows:
        keys, values, num_valid = per_row
        number = jnp.arange(keys.shape[2], dtype=jnp.int32)[None]
        written = ring.count + num_valid
        index = (ring.count[:, None] + number) % capacity - base
        size = ring.rows_keys.shape[2]
        mask = (number < num_valid[:, None]) & (number >= num_valid[:, None] - capacity)
        index = jnp.where(mask & (index >= 0), index, size)  # out of bounds: not written

        def write_at(entries: jax.Array | None, new: jax.Array) -> jax.Array | None:
            if entries is None:
                return None
            write = jax.vmap(lambda lane, index, new: lane.at[:, index].set(new, mode='drop'))
            return write(entries, index, new.astype(entries.dtype))

        (packed_keys, key_scale), (packed_values, value_scale) = (
            _quantized(jax.lax.stop_gradient(new), ring.rows_keys.dtype) for new in (keys, values)
        )
        return Rows(
            write_at(ring.rows_keys, packed_keys),
            write_at(ring.rows_values, packed_values),
            write_at(ring.rows_key_scale, key_scale),
            write_at(ring.rows_value_scale, value_scale),
            jnp.where(written < capacity, written, capacity + written % capacity),
        )

    return _on_devices(write_shard, ring, (keys, values, num_valid), True)


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
            number = jnp.arange(block, dtype=jnp.int32)
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

    return jax.lax.stop_gradient(_on_devices(find, ring, queries, False))
