"""Weighted sums of rows of a large table, by token, and their gradients.

512 tokens that read 128 rows of 256 float32 numbers read 67 MB. On CPUs these are never stored, and
what is computed of them stays in the cache; elsewhere as many tokens are read at once as the caller
says. The gradient of the table is dense.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

AT_ONCE = 16  # rows per token that a pass over all tokens adds up
CACHED = 1 << 19  # bytes of rows that a step of the backward pass copies out of the table


def _padded(array: jax.Array, axis: int, multiple: int) -> jax.Array:
    """The array with zeros at the end of an axis, so that `multiple` divides its length."""
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, -array.shape[axis] % multiple)
    return jnp.pad(array, padding)


def _by_column(table: jax.Array, weights: jax.Array, at: jax.Array) -> jax.Array:
    """`weighted_rows` on CPUs: adds a row to every token, then the next; no rows are stored."""
    step = min(AT_ONCE, at.shape[1])
    weights, at = _padded(weights, 1, step), _padded(at, 1, step)

    def add(number: jax.Array, sums: jax.Array) -> jax.Array:
        for read in range(step):
            weight, row = (
                jax.lax.dynamic_slice_in_dim(array, number * step + read, 1, axis=1)
                for array in (weights, at)
            )
            rows = table.at[row[:, 0]].get(mode='promise_in_bounds')
            sums = sums + weight.astype(wide) * rows.astype(wide)
        return sums

    # As products of matrices do: a running sum in bfloat16 would lose most of its digits.
    wide = jnp.promote_types(table.dtype, jnp.float32)
    start = jnp.zeros((at.shape[0], table.shape[1]), wide)
    return jax.lax.fori_loop(0, at.shape[1] // step, add, start).astype(table.dtype)


def _cut(chunk: int, *arrays: jax.Array) -> list[jax.Array]:
    """Arrays [tokens, ...] as [chunks, chunk, ...], the last chunk filled up with zeros."""
    cut = []
    for array in arrays:
        array = _padded(array, 0, chunk)
        cut.append(array.reshape(-1, chunk, *array.shape[1:]))
    return cut


def _by_chunks(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> jax.Array:
    """`weighted_rows` of `chunk` tokens at a time."""

    def read(inputs: Any) -> jax.Array:
        weights, at = inputs
        return jnp.einsum('tk,tkd->td', weights, table.at[at].get(mode='promise_in_bounds'))

    tokens = len(at)
    if chunk >= tokens:
        return read((weights, at))
    sums = jax.lax.map(read, tuple(_cut(chunk, weights, at)))
    return sums.reshape(-1, table.shape[1])[:tokens]


def _gradients(
    table: jax.Array, weights: jax.Array, at: jax.Array, cotangent: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Cotangents of the table and of the weights, `chunk` tokens at a time.

    In two loops: on CPUs one loop for both takes half as long again.
    """

    def of_weights(inputs: Any) -> jax.Array:
        at, cotangent = inputs
        return jnp.einsum('td,tkd->tk', cotangent, table.at[at].get(mode='promise_in_bounds'))

    def add(total: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
        weights, at, cotangent = inputs
        rows = weights.astype(wide)[..., None] * cotangent.astype(wide)[:, None]
        return total.at[at].add(rows, mode='promise_in_bounds'), None

    # A row that many tokens read would stop growing in bfloat16.
    wide = jnp.promote_types(table.dtype, jnp.float32)
    tokens, total = len(at), jnp.zeros(table.shape, wide)
    if chunk >= tokens:
        total, _ = add(total, (weights, at, cotangent))
        return total.astype(table.dtype), of_weights((at, cotangent))
    weights, at, cotangent = _cut(chunk, weights, at, cotangent)
    total, _ = jax.lax.scan(add, total, (weights, at, cotangent))
    by_weight = jax.lax.map(of_weights, (at, cotangent))
    return total.astype(table.dtype), by_weight.reshape(-1, by_weight.shape[-1])[:tokens]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def weighted_rows(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> jax.Array:
    """The sum of some rows of a table for every token, by weights.

    Reverse-mode derivatives only; rows are read again in the backward pass.

    Args:
      table: [rows, width].
      weights: [tokens, k].
      at: int32 [tokens, k], rows of the table.
      chunk: tokens whose rows are copied out of the table at once; 0 = all. CPUs copy few.

    Returns:
      [tokens, width] in the dtype of the table; sums are float32 at least.
    """
    return jax.lax.platform_dependent(
        table,
        weights,
        at,
        cpu=_by_column,
        default=functools.partial(_by_chunks, chunk=chunk or len(at)),
    )


def _forward(table: jax.Array, weights: jax.Array, at: jax.Array, chunk: int) -> Any:
    return weighted_rows(table, weights, at, chunk), (table, weights, at)


def _backward(chunk: int, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    table, _, at = saved
    bytes_by_token = at.shape[1] * table.shape[1] * table.dtype.itemsize
    of_table, of_weights = jax.lax.platform_dependent(
        *saved,
        cotangent,
        cpu=functools.partial(_gradients, chunk=max(CACHED // bytes_by_token, 1)),
        default=functools.partial(_gradients, chunk=chunk or len(at)),
    )
    return of_table, of_weights, None


weighted_rows.defvjp(_forward, _backward)
