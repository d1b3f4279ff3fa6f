"""Attention to the filled part of a long cache, in a loop with as many turns as it needs.

A turn reads a block of keys, whose scores stay in the cache of a CPU. So many tokens at once take half
of the time of all scores at once, and no scores of the whole cache are held.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.attention.online import Sums, no_sums
from longmem_jax.attention.rules import Rules
from longmem_jax.layers.switching import per_device

BLOCK = (
    512  # keys of a turn; of 128 to 512 all are as fast on CPUs, and fewer turns suit other devices
)


def attend_to_filled(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    count: jax.Array,
    *,
    slots: int,
    offset: int | jax.Array,
    window: int,
    scale: float | None,
) -> jax.Array:
    """`attend` to the last `count` of `slots` keys and to those after them, causal.

    Every device reads what its own batch rows need.

    Args:
      queries: [batch, heads, n, head_dim], the first with key index `offset`.
      keys, values: [batch, kv_heads, keys, head_dim], in any dtype.
      count: int32 [batch], number of filled slots.
      slots: keys of which only some are filled, the first ones of all.
      offset: at least `slots`; an int, or int32 [] or [batch].
      window: only distances below it are seen.
      scale: as in `Rules`.

    Returns:
      [batch, heads, n, head_dim] in the dtype of the queries.
    """
    settings = _Settings(slots, window, scale, min(BLOCK, keys.shape[2]))
    offset = jnp.broadcast_to(jnp.asarray(offset, jnp.int32), count.shape)
    rows = (queries, keys, values, count, offset)
    return per_device(lambda _, rows: _read(settings, *rows), None, rows)


class _Settings(NamedTuple):
    """See `attend_to_filled`; `block` is the number of keys of a turn."""

    slots: int
    window: int
    scale: float | None
    block: int


# JAX traces it once for all layers with the same settings and shapes.
@functools.partial(jax.jit, static_argnums=0)
def _read(
    settings: _Settings,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    count: jax.Array,
    offset: jax.Array,
) -> jax.Array:
    """See `attend_to_filled`; blocks are counted from the last key on."""
    slots, window, scale, block = settings
    num_keys, num_queries = keys.shape[2], queries.shape[2]
    rules = Rules(offset=offset, first=slots - count, window=window, scale=scale)
    scaled, rules = rules.prepared(queries, num_keys, block)

    def add(index: jax.Array, sums: Sums, masked: bool) -> Sums:
        stop = num_keys - index * block
        start = jnp.maximum(stop - block, 0)
        some_keys, some_values = (
            jax.lax.dynamic_slice_in_dim(array, start, block, 2).astype(queries.dtype)
            for array in (keys, values)
        )
        scores, seen = rules.scores(scaled, some_keys, start, num_keys)
        # Before the first key there are none: the last block may have some of the one after it.
        new = (start + jnp.arange(block, dtype=jnp.int32) < stop)[None, None, None]
        return sums.add(scores, seen & new if masked else None, some_values)

    # Some query sees some key from `first` up to `last`. All see all from `low` up to `high`, for
    # which no mask is needed.
    first, last = slots - count.max(), offset.max() + num_queries - 1
    low = jnp.maximum(slots - count.min(), offset.max() + num_queries - window)
    high = offset.min()
    whole = functools.partial(add, masked=False), functools.partial(add, masked=True)
    branches = (lambda index, sums: sums, *whole)

    def turn(sums: Sums, index: jax.Array) -> tuple[Sums, None]:
        stop = num_keys - index * block
        masked = (stop - block < low) | (stop - 1 > high)
        seen = (stop > first) & (stop - block <= last)
        which = jnp.where(seen, jnp.where(masked, 2, 1), 0)
        return jax.lax.switch(which, branches, index, sums), None

    turns = jnp.arange(-(-num_keys // block), dtype=jnp.int32)
    sums, _ = jax.lax.scan(turn, no_sums(queries, values.shape[3]), turns)
    return sums.result(queries.dtype)
