"""Scores by distance, moved to their keys: products with a table, biases, and their derivatives.

A row per query holds scores by distance, the largest first. Moving row i of n to the left by n - 1 - i
puts them in the order of the keys; on the flat array that is a slice. The derivatives are written by
hand for speed. Reverse mode only (`jax.custom_vjp`).
"""

import functools

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _slide(rows: jax.Array, first: int) -> jax.Array:
    """[..., n, columns + 1] from element `first` of the flat array on, as [..., n, columns]."""
    *lead, n, columns = rows.shape
    flat = rows.reshape(*lead, n * columns)[..., first : first + n * (columns - 1)]
    return flat.reshape(*lead, n, columns - 1)


def _slide_forward(rows: jax.Array, first: int) -> tuple[jax.Array, None]:
    return _slide(rows, first), None


def _slide_backward(first: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (_slide_back(gradient, first),)


_slide.defvjp(_slide_forward, _slide_backward)


def _slide_back(moved: jax.Array, first: int) -> jax.Array:
    """The transpose of `_slide`: [..., n, columns] as [..., n, columns + 1], zeros at both ends."""
    *lead, n, columns = moved.shape
    flat = moved.reshape(*lead, n * columns)
    before, after = (jnp.zeros((*lead, size), moved.dtype) for size in (first, n - first))
    # A copy of all rows; a pad, or an update of zeros, would compute every index.
    flat = jnp.concatenate([before, flat, after], axis=-1)
    return flat.reshape(*lead, n, columns + 1)


def add_at(scores: jax.Array, more: jax.Array, first: int) -> jax.Array:
    """Adds to some columns, in place where the compiler can.

    Args:
      scores: [batch, heads, queries, keys].
      more: [batch, heads, queries, n], in the dtype of `scores`.
      first: the first of the n columns.

    Returns:
      Like `scores`.
    """
    return _add_at(scores, more, first, more.shape[3])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _add_at(scores: jax.Array, more: jax.Array, first: int, number: int) -> jax.Array:
    changed = scores[..., first : first + number] + more
    return jax.lax.dynamic_update_slice(scores, changed, (0, 0, 0, first))


def _add_forward(
    scores: jax.Array, more: jax.Array, first: int, number: int
) -> tuple[jax.Array, None]:
    return _add_at(scores, more, first, number), None


def _add_backward(
    first: int, number: int, _: None, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return gradient, gradient[..., first : first + number]


_add_at.defvjp(_add_forward, _add_backward)


@jax.custom_vjp
def _product(queries: jax.Array, rows: jax.Array) -> jax.Array:
    """[heads, n, head_dim] by [heads, rows, head_dim]: [heads, n, rows], float32 at least.

    Nothing as large as the result is transposed, in neither direction.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    return jnp.einsum('hnd,hcd->hnc', queries, rows, preferred_element_type=wide)


def _product_forward(
    queries: jax.Array, rows: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(queries, rows), (queries, rows)


def _product_backward(
    residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    queries, rows = residuals
    wide = gradient.dtype
    gradient = gradient.astype(rows.dtype)
    to_queries = jnp.einsum('hnc,hcd->hnd', gradient, rows, preferred_element_type=wide)
    to_rows = jnp.einsum('hnd,hnc->hdc', queries, gradient, preferred_element_type=wide)
    return to_queries.astype(queries.dtype), jnp.swapaxes(to_rows, 1, 2).astype(rows.dtype)


_product.defvjp(_product_forward, _product_backward)


def moved_scores(queries: jax.Array, rows: jax.Array) -> jax.Array:
    """Products of queries with a table, moved to the keys.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      rows: [heads, columns, head_dim], in the dtype of the queries; the largest distance first.

    Returns:
      [batch, heads, n, columns], float32 at least; undefined where there is no distance.
    """
    batch, heads, n, width = queries.shape
    flat = jnp.swapaxes(queries, 0, 1).reshape(heads, batch * n, width)
    # A row of zeros in the table costs less than a column next to the scores.
    scores = _product(flat, jnp.pad(rows, [(0, 0), (0, 1), (0, 0)]))
    return jnp.swapaxes(lean(scores.reshape(heads, batch, n, -1)), 0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
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
    moved = lean(jnp.broadcast_to(padded[:, None], (heads, n, columns + 1)))
    return jnp.broadcast_to(moved[None], (batch, heads, n, columns))


def _bias_forward(rows: jax.Array, batch: int, n: int) -> tuple[jax.Array, None]:
    return moved_bias(rows, batch, n), None


def _bias_backward(batch: int, n: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    # Over the queries first, then over lanes: what is added over lanes (and devices) is small, and no
    # large array is summed over its first axis, which is slow on CPUs. As a product with ones the
    # whole array would be transposed.
    return (_slide_back(gradient, n - 1).sum(axis=2).sum(axis=0)[:, :-1],)


moved_bias.defvjp(_bias_forward, _bias_backward)
