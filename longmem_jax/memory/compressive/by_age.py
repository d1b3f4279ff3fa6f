"""Scores of slots by their age, moved to the columns of the slots.

There is a vector for every age. A query that sees s new slots has the youngest at column s + old - 1 of
the slots, so its scores, oldest first, move right by s.
"""

import jax
import jax.numpy as jnp

from longmem_jax.attention.by_distance import lean_right
from longmem_jax.kernels.attention_products import dot


def of_segment(
    queries: jax.Array, table: jax.Array, first: jax.Array, rate: int, slots: int
) -> jax.Array:
    """Scores of all queries of a segment.

    Query p sees p // rate new slots, and one more if p % rate >= first. So all queries move as a static
    slice of a flat array does, and some by one column more: nothing is gathered.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      table: [old, head_dim], the youngest slot first.
      first: int32 [batch], position of the first query that sees a new slot, below `rate`.
      rate: queries from one new slot to the next.
      slots: columns of the result, at least old + n / rate, rounded up.

    Returns:
      [batch, heads, n, slots], float32 at least; 0 where there is no age.
    """
    batch, heads, n, width = queries.shape
    groups = -(-n // rate)
    padded = jnp.pad(queries, [(0, 0), (0, 0), (0, groups * rate - n), (0, 0)])
    by_place = jnp.swapaxes(padded.reshape(batch, heads, groups, rate, width), 2, 3)
    # Zeros around the table become the zeros around the scores.
    rows = jnp.pad(table[::-1].astype(queries.dtype), [(1, slots + 1 - table.shape[0]), (0, 0)])
    scores = dot(by_place.reshape(batch, heads, rate * groups, width), rows)
    moved = lean_right(scores.reshape(batch, heads, rate, groups, slots + 2))
    moved = jnp.swapaxes(moved, 2, 3).reshape(batch, heads, groups * rate, slots + 1)[:, :, :n]
    one_more = jnp.arange(n, dtype=jnp.int32)[None] % rate >= first[:, None]
    return jnp.where(one_more[:, None, :, None], moved[..., :-1], moved[..., 1:])


def at_shifts(queries: jax.Array, table: jax.Array, seen: jax.Array, slots: int) -> jax.Array:
    """Scores of queries that see any number of new slots: for streams.

    Args:
      queries, table, slots: as in `of_segment`.
      seen: int32 [batch, n], number of new slots seen, each in 0 .. slots - old.

    Returns:
      As `of_segment`.
    """
    by_age = dot(queries, table[::-1].astype(queries.dtype))
    return shift_right(by_age, seen, slots - table.shape[0])


def shift_right(rows: jax.Array, steps: jax.Array, at_most: int) -> jax.Array:
    """Moves every row of scores right by its own number of columns, filling with zeros.

    Takes log2(at_most) steps, which move rows by 1, 2, 4, ... columns where the bits of `steps` are
    set. A gather would take one step, but its derivative is a scatter of all scores; that of a
    selection is another selection.

    Args:
      rows: [batch, heads, queries, columns].
      steps: int32 [batch, queries], each in 0 .. at_most.
      at_most: largest number of columns, static.

    Returns:
      [batch, heads, queries, columns + at_most].
    """
    rows = jnp.pad(rows, [(0, 0)] * 3 + [(0, at_most)])
    for bit in range(at_most.bit_length()):
        step = min(1 << bit, rows.shape[3])
        moved = jnp.pad(rows, [(0, 0)] * 3 + [(step, 0)])[..., : rows.shape[3]]
        moves = (steps >> bit) & 1 == 1
        rows = jnp.where(moves[:, None, :, None], moved, rows)
    return rows
