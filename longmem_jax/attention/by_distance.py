"""Scores by distance, moved to their keys: products with a table, and biases.

A row per query holds scores by distance, the largest first. Moving row i of n to the left by n - 1 - i
puts them in the order of the keys; on the flat array that is a slice.
"""

import jax
import jax.numpy as jnp


def skew(rows: jax.Array, width: int) -> jax.Array:
    """Moves row i of n to the left by n - 1 - i and keeps `width` columns.

    Entries shifted in from the right are undefined (distances below zero, masked later).

    Args:
      rows: [..., n, columns] with columns >= width.
      width: columns of the result.

    Returns:
      [..., n, width].
    """
    *lead, n, columns = rows.shape
    padded = jnp.pad(rows, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])
    flat = padded.reshape(*lead, n * (columns + 1))[..., n:]
    return flat.reshape(*lead, n, columns)[..., :width]


def lean(rows: jax.Array) -> jax.Array:
    """Moves row i of n left by n - 1 - i: a slice of the flat array, with a slice as derivative.

    Args:
      rows: [..., n, columns + 1].

    Returns:
      [..., n, columns]; entries shifted in from the right are undefined.
    """
    return _slide(rows, rows.shape[-2] - 1)


def lean_right(rows: jax.Array) -> jax.Array:
    """Moves row i of n right by i, likewise.

    Args:
      rows: [..., n, columns + 1].

    Returns:
      [..., n, columns]; the i entries shifted into row i are the last ones of row i - 1.
    """
    return _slide(rows, 0)


def _slide(rows: jax.Array, first: int) -> jax.Array:
    """[..., n, columns + 1] from element `first` of the flat array on, as [..., n, columns]."""
    *lead, n, columns = rows.shape
    flat = rows.reshape(*lead, n * columns)
    # The derivative of a split joins rows and zeros; that of a slice pads, which computes every index.
    parts = jax.lax.split(flat, (first, n * (columns - 1), n - first), axis=len(lead))
    return parts[1].reshape(*lead, n, columns - 1)


def moved_scores(queries: jax.Array, rows: jax.Array) -> jax.Array:
    """Products of queries with a table, moved to the keys.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      rows: [heads, columns, head_dim], in the dtype of the queries; the largest distance first.

    Returns:
      [batch, heads, n, columns], float32 at least; undefined where there is no distance.
    """
    batch, heads, n, width = queries.shape
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    # One product per head: as one of batch and heads, its derivatives would sum over both.
    flat = jnp.swapaxes(queries, 0, 1).reshape(heads, batch * n, width)
    # A row of zeros in the table costs less than a column next to the scores.
    rows = jnp.pad(rows, [(0, 0), (0, 1), (0, 0)])
    scores = jnp.einsum('hnd,hcd->hnc', flat, rows, preferred_element_type=wide)
    return jnp.swapaxes(lean(scores.reshape(heads, batch, n, -1)), 0, 1)


def moved_bias(rows: jax.Array, batch: int, n: int) -> jax.Array:
    """A bias by distance, moved to the keys of every query.

    Args:
      rows: [heads, columns], the largest distance first.
      batch, n: number of lanes and of queries.

    Returns:
      [batch, heads, n, columns]; undefined where there is no distance.
    """
    heads, columns = rows.shape
    padded = jnp.pad(rows, [(0, 0), (0, 1)])
    # The gradient is summed over queries first: over lanes, and so over devices, only small sums are
    # added, and CPUs are slow to add large arrays along their first axis.
    by_lane = jnp.broadcast_to(padded[:, None], (batch, heads, 1, columns + 1))
    return lean(jnp.broadcast_to(by_lane, (batch, heads, n, columns + 1)))
