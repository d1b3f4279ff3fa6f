"""Learned scores by distance, one table for all heads and layers (Sukhbaatar et al., 2019).

A query is multiplied with the vector of its distance to a key. Nothing is added to keys; distances
beyond the table have no term.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.kernels.cpu.attention_products import dot
from longmem_jax.kernels.cpu.by_distance import lean


class NearPositions(nn.Module):
    """The table, owned by the model and passed to every layer as `shared`.

    Attributes:
      settings: sizes of the model.
      num_distances: distances 1 .. num_distances have a vector each.
    """

    settings: ModelSettings
    num_distances: int

    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(1.0), ('distance', 'head_dim'))
        self.table = self.param('table', init, (self.num_distances, self.settings.head_dim))

    def __call__(self) -> jax.Array:
        """float32 [num_distances, head_dim]; row d - 1 is for distance d."""
        return self.table


def whole_segment(queries: jax.Array, table: jax.Array, window: int) -> jax.Array:
    """Scores of all queries of a segment with the keys of the window before it and its own.

    Args:
      queries: [batch, heads, length, head_dim], scaled.
      table: [num_distances, head_dim].
      window: keys before the segment; those beyond `num_distances` score 0.

    Returns:
      [batch, heads, length, window + length], float32 at least; undefined at distances < 1.
    """
    return _whole_segment(queries, table, window)


def _rows(queries: jax.Array, table: jax.Array, window: int) -> tuple[jax.Array, int]:
    """The rows of the table that `whole_segment` needs, and the number of columns before theirs."""
    columns = window + queries.shape[2] - 1
    table = table[: min(columns, table.shape[0])].astype(queries.dtype)
    return table[::-1], columns - table.shape[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _whole_segment(queries: jax.Array, table: jax.Array, window: int) -> jax.Array:
    rows, before = _rows(queries, table, window)
    # Rows of zeros in the table cost less than columns next to the scores.
    return lean(dot(queries, jnp.pad(rows, [(before, 2), (0, 0)])))


def _whole_forward(queries: jax.Array, table: jax.Array, window: int) -> tuple[jax.Array, Any]:
    return _whole_segment(queries, table, window), (queries, table)


def _whole_backward(window: int, residuals: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    # Not the derivative of the products with rows of zeros, which would be larger.
    def product(queries: jax.Array, table: jax.Array) -> jax.Array:
        rows, before = _rows(queries, table, window)
        return lean(jnp.pad(dot(queries, rows), [(0, 0)] * 3 + [(before, 2)]))

    return jax.vjp(product, *residuals)[1](gradient)


_whole_segment.defvjp(_whole_forward, _whole_backward)


def at_distances(queries: jax.Array, table: jax.Array, distance: jax.Array) -> jax.Array:
    """Scores at any distances, by a gather: for streams, where lanes are at different positions.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      table: [num_distances, head_dim].
      distance: int32 [batch, n, keys].

    Returns:
      [batch, heads, n, keys], float32 at least; 0 beyond the table.
    """
    by_distance = dot(queries, table.astype(queries.dtype))
    inside = (distance >= 1) & (distance <= table.shape[0])
    index = jnp.where(inside, distance - 1, 0)[:, None]
    shape = (*by_distance.shape[:3], distance.shape[-1])
    scores = jnp.take_along_axis(by_distance, jnp.broadcast_to(index, shape), axis=-1)
    return jnp.where(inside[:, None], scores, jnp.zeros_like(scores))


def of_tokens(
    queries: jax.Array, table: jax.Array, offset: int | jax.Array, distance: jax.Array
) -> jax.Array:
    """Scores of the next tokens of a stream.

    Args:
      queries, table, distance: as in `at_distances`.
      offset: key index of the first query; if it is an int, the last query is at the last key.

    Returns:
      [batch, heads, n, keys], float32 at least; undefined at distances < 1.
    """
    if isinstance(offset, int):
        return whole_segment(queries, table, offset)
    return at_distances(queries, table, distance)


def shared_table(fields: Any, name: str) -> Callable[..., NearPositions]:
    """`Entry.shared` of a layer whose field `name` is the number of distances in the table."""

    def make(settings: ModelSettings, **kwargs: Any) -> NearPositions:
        return NearPositions(settings, fields[name], **kwargs)

    return make
