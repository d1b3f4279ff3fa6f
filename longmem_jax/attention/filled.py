"""Attention to the filled part of a long cache, in a loop with as many turns as it needs.

A turn reads a block of keys, whose scores stay in the cache of a CPU. So many tokens at once take half
of the time of all scores at once, and no scores of the whole cache are held.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend
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
    offset: int,
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
      offset: at least `slots`.
      window: only distances below it are seen.
      scale: as in `Rules`.

    Returns:
      [batch, heads, n, head_dim] in the dtype of the queries.
    """
    settings = _Settings(slots, offset, window, scale, min(BLOCK, keys.shape[2]))
    return per_device(lambda _, rows: _read(settings, *rows), None, (queries, keys, values, count))


class _Settings(NamedTuple):
    """See `attend_to_filled`; `block` is the number of keys of a turn."""

    slots: int
    offset: int
    window: int
    scale: float | None
    block: int

    def rules(self, count: jax.Array) -> Rules:
        first = self.slots - count
        return Rules(offset=self.offset, first=first, window=self.window, scale=self.scale)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _filled(
    settings: _Settings,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """See `attend_to_filled`; blocks are counted from the last key on."""
    num_keys, num_queries, block = keys.shape[2], queries.shape[2], settings.block
    slots, offset, window = settings[:3]
    scaled, rules = settings.rules(count).prepared(queries, num_keys, block)

    def add(sums: Sums, index: jax.Array, masked: bool) -> Sums:
        stop = num_keys - index * block
        start = jnp.maximum(stop - block, 0)
        some_keys, some_values = (
            jax.lax.dynamic_slice_in_dim(array, start, block, 2).astype(queries.dtype)
            for array in (keys, values)
        )
        scores, seen = rules.scores(scaled, some_keys, start, num_keys)
        # Before the first key there are none: the last block may have some of the one after it.
        new = start + jnp.arange(block, dtype=jnp.int32) < stop
        return sums.add(scores, seen & new if masked else None, some_values)

    # All queries see all keys from `low` up to `offset`: these blocks need no mask.
    low = jnp.maximum(slots - count.min(), offset + num_queries - window)
    turns = -(-(count.max() + num_keys - slots) // block)
    newest = -(-(num_keys - 1 - offset) // block)
    whole = jnp.clip((num_keys - low) // block, newest, turns) - newest
    sums = jax.lax.fori_loop(
        0, whole, lambda i, sums: add(sums, newest + i, False), no_sums(queries, values.shape[3])
    )
    sums = jax.lax.fori_loop(
        0, turns - whole, lambda i, sums: add(sums, jnp.where(i < newest, i, i + whole), True), sums
    )
    return sums.result(queries.dtype)


@_filled.defjvp
def _derivative(
    settings: _Settings, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """Of all keys at once, since a loop of unknown length has no backward pass."""
    *arrays, count = primals

    def whole(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        keys, values = (array.astype(queries.dtype) for array in (keys, values))
        return attend(queries, keys, values, settings.rules(count))

    return jax.jvp(whole, tuple(arrays), tangents[:-1])


# JAX traces it once for all layers with the same settings and shapes.
_read = jax.jit(_filled, static_argnums=0)
