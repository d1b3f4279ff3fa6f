"""Learned scores by distance, one table for all heads and layers (Sukhbaatar et al., 2019).

A query is multiplied with the vector of its distance to a key. Nothing is added to keys; distances
beyond the table have no term.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.by_distance import lean
from longmem_jax.contract import Fields, ModelSettings
from longmem_jax.kernels.attention_products import dot
from longmem_jax.layers import initializers


class NearPositions(nn.Module):
    """The table, owned by the model and passed to every layer as `shared`.

    Attributes:
      settings: sizes of the model.
      num_distances: distances 1 .. num_distances have a vector each.
    """

    settings: ModelSettings
    num_distances: int

    def setup(self) -> None:
        init = initializers.with_axes(nn.initializers.normal(1.0), ('distance', 'head_dim'))
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
    columns = window + queries.shape[2] - 1
    table = table[: min(columns, table.shape[0])].astype(queries.dtype)
    # Rows of zeros in the table cost less than columns next to the scores.
    rows = jnp.pad(table[::-1], [(columns - table.shape[0], 2), (0, 0)])
    return lean(dot(queries, rows))


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


def shared_table(fields: Fields, name: str) -> Callable[..., NearPositions]:
    """`LayerType.shared` of a layer whose field `name` is the number of distances in the table."""

    def make(settings: ModelSettings, **kwargs: Any) -> NearPositions:
        return NearPositions(settings, fields[name], **kwargs)

    return make
