"""Weighted sums of rows of a large table, by token, and their gradients.

512 tokens that read 128 rows of 256 float32 numbers read 67 MB: the caller may say how many tokens are
read at once. The gradient of the table is dense.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def _cut(chunk: int, *arrays: jax.Array) -> list[jax.Array]:
    """Arrays [tokens, ...] as [chunks, chunk, ...], the last chunk filled up with zeros."""
    cut = []
    for array in arrays:
        padding = [(0, -len(array) % chunk)] + [(0, 0)] * (array.ndim - 1)
        array = jnp.pad(array, padding)
        cut.append(array.reshape(-1, chunk, *array.shape[1:]))
    return cut


def _read(table: jax.Array, weights: jax.Array, at: jax.Array) -> jax.Array:
    """`weighted_rows` of all tokens at once."""
    # A row that many tokens read would stop growing in bfloat16, and so would its gradient.
    wide = jnp.promote_types(table.dtype, jnp.float32)
    rows = table.astype(wide).at[at].get(mode='promise_in_bounds')
    return jnp.einsum('tk,tkd->td', weights.astype(wide), rows).astype(table.dtype)


def weighted_rows(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> jax.Array:
    """The sum of some rows of a table for every token, by weights.

    Args:
      table: [rows, width].
      weights: [tokens, k].
      at: int32 [tokens, k], rows of the table.
      chunk: tokens whose rows are copied out of the table at once; 0 = all. With fewer, rows are
        read again in the backward pass, and derivatives are of reverse mode only.

    Returns:
      [tokens, width] in the dtype of the table; sums are float32 at least.
    """
    if not chunk or chunk >= len(at):
        return _read(table, weights, at)
    return _by_chunks(table, weights, at, chunk)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _by_chunks(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> jax.Array:
    """`weighted_rows` of `chunk` tokens at a time."""
    cut = tuple(_cut(chunk, weights, at))
    sums = jax.lax.map(lambda inputs: _read(table, *inputs), cut)
    return sums.reshape(-1, table.shape[1])[: len(at)]


def _forward(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> Any:
    return _by_chunks(table, weights, at, chunk), (table, weights, at)


def _backward(chunk: int, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    table, weights, at = saved
    # JAX's own derivative of a loop would add up a whole table in every step.
    wide = jnp.promote_types(table.dtype, jnp.float32)

    def add(total: jax.Array, inputs: Any) -> tuple[jax.Array, jax.Array]:
        weights, at, cotangent = inputs
        rows = weights.astype(wide)[..., None] * cotangent.astype(wide)[:, None]
        held = table.at[at].get(mode='promise_in_bounds')
        by_weight = jnp.einsum('td,tkd->tk', cotangent, held)
        return total.at[at].add(rows, mode='promise_in_bounds'), by_weight

    cut = tuple(_cut(chunk, weights, at, cotangent))
    total, by_weight = jax.lax.scan(add, jnp.zeros(table.shape, wide), cut)
    by_weight = by_weight.reshape(-1, at.shape[1])[: len(at)]
    return total.astype(table.dtype), by_weight.astype(weights.dtype), None


_by_chunks.defvjp(_forward, _backward)
