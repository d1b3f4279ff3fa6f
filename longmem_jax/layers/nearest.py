"""First-in-first-out rows of keys and values, and the nearest of them to each query.

Rows are searched in blocks with a running list of the best, so that scores of all rows never exist
at once. On a mesh with a `memory` axis every device keeps and searches its part of the rows, and
the best of all parts are merged. Nothing here has a gradient but what is read of the rows found.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES, memory_rows
from longmem_jax.layers.attention_rules import NEVER

SEARCHES = ('exact', 'approximate', 'bucketed')
DTYPES = ('float32', 'bfloat16', 'int8')


@flax.struct.dataclass
class Rows:
    """A ring of rows per lane and head; `rows_...` lie on the mesh axis `memory`, by their rows.

    Attributes:
      rows_keys, rows_values: [batch, heads, size, width]; row `count % size` is written next.
      rows_key_scale, rows_value_scale: float32 [batch, heads, size, 1] of int8 rows, else None.
      count: int32 [batch], rows written since the memory was empty.
    """

    rows_keys: jax.Array
    rows_values: jax.Array
    rows_key_scale: Any
    rows_value_scale: Any
    count: jax.Array


def no_rows(batch: int, heads: int, size: int, width: int, dtype: str) -> Rows:
    """An empty ring; `dtype` is one of `DTYPES`, or 'float64' for float64 models."""
    room = jnp.zeros((batch, heads, size, width), dtype)
    scale = jnp.zeros((batch, heads, size, 1), jnp.float32) if dtype == 'int8' else None
    return Rows(room, room, scale, scale, jnp.zeros((batch,), jnp.int32))


def _packed(new, dtype):
    """Rows as they are stored, and their scale."""
    if dtype != jnp.int8:
        return new.astype(dtype), None
    new = new.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(new).max(axis=-1, keepdims=True), 1e-30) / 127
    return jnp.round(new / scale).astype(jnp.int8), scale


def _axes(batch: int, size: int) -> tuple[tuple[str, ...], int]:
    """Mesh axes of the lanes and number of parts of the rows that the current mesh asks for."""
    mesh = jax.sharding.get_abstract_mesh()
    parts = mesh.shape.get('memory', 1) if mesh.shape else 1
    if parts == 1:
        return (), 1
    lanes = tuple(axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1)
    count = 1
    for axis in lanes:
        count *= mesh.shape[axis]
    return (lanes if batch % count == 0 else ()), memory_rows(size, parts)


def _on_devices(function, ring: Rows, laned: Any, out_rows: bool):
    """`function(ring, laned, base)` where the rows lie; `base` is the number of the first one."""
    batch, _, size, _ = ring.rows_keys.shape
    lanes, parts = _axes(batch, size)
    if parts == 1:
        return function(ring, laned, 0)
    lane = P(lanes or None)
    row = P(lanes or None, None, 'memory')
    places = Rows(
        row, row, row if ring.rows_key_scale is not None else None,
        row if ring.rows_value_scale is not None else None, lane,
    )  # fmt: skip

    def own(ring, laned):
        return function(ring, laned, jax.lax.axis_index('memory') * (size // parts))

    return jax.shard_map(
        own,
        in_specs=(places, lane),
        out_specs=places if out_rows else lane,
        axis_names={*lanes, 'memory'},
        check_vma=False,
    )(ring, laned)


def write(ring: Rows, keys: jax.Array, values: jax.Array, num_valid: jax.Array) -> Rows:
    """Writes the first `num_valid` (int32 [batch]) of `keys` and `values` over the oldest rows.

    Args:
      ring: the rows.
      keys, values: [batch, heads, n, width].
      num_valid: at most the size of the ring; of more, the last ones are kept.
    """
    whole = ring.rows_keys.shape[2]

    def place(ring, laned, base):
        keys, values, num_valid = laned
        number = jnp.arange(keys.shape[2], dtype=jnp.int32)[None]
        at = (ring.count[:, None] + number) % whole - base
        size = ring.rows_keys.shape[2]
        kept = (number < num_valid[:, None]) & (number >= num_valid[:, None] - whole)
        at = jnp.where(kept & (at >= 0), at, size)  # beyond the rows: not written

        def put(rows, new):
            if rows is None:
                return None
            write = jax.vmap(lambda lane, at, new: lane.at[:, at].set(new, mode='drop'))
            return write(rows, at, new.astype(rows.dtype))

        (packed_keys, key_scale), (packed_values, value_scale) = (
            _packed(jax.lax.stop_gradient(new), ring.rows_keys.dtype) for new in (keys, values)
        )
        return Rows(
            put(ring.rows_keys, packed_keys),
            put(ring.rows_values, packed_values),
            put(ring.rows_key_scale, key_scale),
            put(ring.rows_value_scale, value_scale),
            ring.count + num_valid,
        )

    return _on_devices(place, ring, (keys, values, num_valid), True)


def top_k(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k greatest of the last axis and their indices, exactly.

    The k best lie in the k groups whose greatest are the best, so only those are looked through.

    Args:
      scores: float32 [..., n], n >= k.
    """
    number = scores.shape[-1]
    group = max(1, round((number / k) ** 0.5))
    if group < 4 or number % group:
        return jax.lax.top_k(scores, k)
    groups = scores.reshape(*scores.shape[:-1], number // group, group)
    _, chosen = jax.lax.top_k(groups.max(axis=-1), k)
    inside = jnp.take_along_axis(groups, chosen[..., None], axis=-2)
    best, at = jax.lax.top_k(inside.reshape(*scores.shape[:-1], k * group), k)
    return best, jnp.take_along_axis(chosen, at // group, axis=-1) * group + at % group


def _bucketed(scores, k):
    """The best of each of k buckets of every k-th row, as the released search finds them."""
    number = scores.shape[-1]
    buckets = scores.reshape(*scores.shape[:-1], number // k, k)
    at = buckets.argmax(axis=-2).astype(jnp.int32)
    best = jnp.take_along_axis(buckets, at[..., None, :], axis=-2)[..., 0, :]
    return best, at * k + jnp.arange(k, dtype=jnp.int32).reshape((1,) * (at.ndim - 1) + (k,))


def _search(ring, queries, base, k, method, recall, block_size):
    """Scores and row numbers of the best rows of this device: [batch, heads, n, k] each."""
    size = ring.rows_keys.shape[2]
    block = min(block_size, size) if method != 'bucketed' else size
    while size % block:
        block -= 1
    take = min(k, block)
    choose = {
        'exact': top_k,
        'approximate': functools.partial(jax.lax.approx_max_k, recall_target=recall),
        'bucketed': _bucketed,
    }[method]

    def best_of(start):
        part = jax.lax.dynamic_slice_in_dim(ring.rows_keys, start, block, axis=2)
        scores = jnp.einsum(
            'bhnd,bhmd->bhnm',
            queries.astype(part.dtype) if part.dtype == jnp.bfloat16 else queries,
            part if part.dtype != jnp.int8 else part.astype(queries.dtype),
            preferred_element_type=jnp.float32,
        ).astype(jnp.float32)
        if ring.rows_key_scale is not None:
            scale = jax.lax.dynamic_slice_in_dim(ring.rows_key_scale, start, block, axis=2)
            scores = scores * scale[..., 0][:, :, None]
        number = base + start + jnp.arange(block, dtype=jnp.int32)
        filled = number[None] < ring.count[:, None]
        scores = jnp.where(filled[:, None, None], scores, jnp.asarray(NEVER, scores.dtype))
        scores, at = choose(scores, take)
        return scores, at.astype(jnp.int32) + base + start

    if block == size:
        return best_of(0)
    found = best_of(0)

    def join(found, number):
        both = [
            jnp.concatenate(pair, -1) for pair in zip(found, best_of(number * block), strict=True)
        ]
        scores, at = jax.lax.top_k(both[0], min(k, both[0].shape[-1]))
        return (scores, jnp.take_along_axis(both[1], at, axis=-1)), None

    if take < k:  # blocks smaller than k: the list grows to k first
        number = 1
        while found[0].shape[-1] < k:
            found, _ = join(found, number)
            number += 1
        return jax.lax.scan(join, found, jnp.arange(number, size // block, dtype=jnp.int32))[0]
    return jax.lax.scan(join, found, jnp.arange(1, size // block, dtype=jnp.int32))[0]


def nearest(
    ring: Rows, queries: jax.Array, k: int, method: str, recall: float, block_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The k rows of greatest inner product with every query.

    Args:
      ring: the rows; those not yet written are not found.
      queries: [batch, heads, n, width].
      k: at most the size of the ring.
      method: 'exact'; 'approximate' (`lax.approx_max_k`, `recall` its target, approximate on TPUs
        alone); 'bucketed', the best of each of k interleaved buckets.
      recall: see `method`.
      block_size: rows searched at once.

    Returns:
      keys, values: [batch, heads, n, k, width] of the dtype of the queries, zeros where fewer rows
      are filled; bool [batch, heads, n, k], which were found.
    """
    ring, queries = jax.lax.stop_gradient((ring, queries))

    def find(ring, queries, base):
        size = ring.rows_keys.shape[2]
        scores, at = _search(ring, queries, base, min(k, size), method, recall, block_size)
        split = not isinstance(base, int)
        if split:
            scores, at = (
                jax.lax.all_gather(part, 'memory', axis=3, tiled=True) for part in (scores, at)
            )
            scores, best = jax.lax.top_k(scores, k)
            at = jnp.take_along_axis(at, best, axis=-1)
        found = scores > NEVER / 2
        own = found & (at >= base) & (at < base + size)
        at = jnp.where(own, at - base, 0)
        gather = jax.vmap(jax.vmap(lambda rows, at: rows[at]))

        def rows(kept, scale):
            part = gather(kept, at).astype(queries.dtype)
            if scale is not None:
                part = part * gather(scale, at).astype(queries.dtype)
            part = jnp.where(own[..., None], part, jnp.zeros_like(part))
            return jax.lax.psum(part, 'memory') if split else part

        return (
            rows(ring.rows_keys, ring.rows_key_scale),
            rows(ring.rows_values, ring.rows_value_scale),
            found,
        )

    return jax.lax.stop_gradient(_on_devices(find, ring, queries, False))
