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
from longmem_jax.layers.attention_products import dot


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


@jax.custom_vjp
def lean(rows: jax.Array) -> jax.Array:
    """Moves row i of n left by n - 1 - i: a slice of the flat array, with a slice as derivative.

    Args:
      rows: [..., n, columns + 1].

    Returns:
      [..., n, columns]; entries shifted in from the right are undefined.
    """
    *lead, n, columns = rows.shape
    flat = rows.reshape(*lead, n * columns)[..., n - 1 : -1]
    return flat.reshape(*lead, n, columns - 1)


def _lean_forward(rows: jax.Array) -> tuple[jax.Array, None]:
    return lean(rows), None


def _lean_backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
    *lead, n, columns = gradient.shape
    flat = jnp.zeros((*lead, n * (columns + 1)), gradient.dtype)
    # An update of zeros is one copy; a pad would compute every index.
    flat = jax.lax.dynamic_update_slice(
        flat, gradient.reshape(*lead, n * columns), (0,) * len(lead) + (n - 1,)
    )
    return (flat.reshape(*lead, n, columns + 1),)


lean.defvjp(_lean_forward, _lean_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def spread(table: jax.Array, batch: int, length: int) -> jax.Array:
    """Repeats a table by distance for every query and key of a segment.

    Args:
      table: [heads, columns + 1]; entries for the last query, by key.
      batch, length: number of lanes and of queries.

    Returns:
      [batch, heads, length, columns].
    """
    shape = (batch, table.shape[0], length, table.shape[1])
    return lean(jnp.broadcast_to(table[None, :, None], shape))


def _spread_forward(table: jax.Array, batch: int, length: int) -> tuple[jax.Array, None]:
    return spread(table, batch, length), None


def _spread_backward(batch: int, length: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    (rows,) = _lean_backward(None, gradient)
    # Sums as matrix products: fused with the preceding operations they would be several times slower.
    ones = jnp.ones((*rows.shape[:2], 8, length), rows.dtype)
    sums = jnp.einsum('bhrq,bhqk->bhrk', ones, rows)
    return (sums[:, :, 0].sum(axis=0),)


spread.defvjp(_spread_forward, _spread_backward)


def whole_segment(queries: jax.Array, table: jax.Array, window: int) -> jax.Array:
    """Scores of all queries of a segment with the keys of the window before it and its own.

    Args:
      queries: [batch, heads, length, head_dim], scaled.
      table: [num_distances, head_dim].
      window: keys before the segment; those beyond `num_distances` score 0.

    Returns:
      [batch, heads, length, window + length], float32 at least; undefined at distances < 1.
    """
    length = queries.shape[2]
    table = table[: min(window + length - 1, table.shape[0])].astype(queries.dtype)
    by_distance = dot(queries, table[::-1])
    padding = window + length - 1 - table.shape[0]
    return lean(jnp.pad(by_distance, [(0, 0)] * 3 + [(padding, 2)]))


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


def shared_table(fields: Any, name: str) -> Callable[..., NearPositions]:
    """`Entry.shared` of a layer whose field `name` is the number of distances in the table."""

    def make(settings: ModelSettings, **kwargs: Any) -> NearPositions:
        return NearPositions(settings, fields[name], **kwargs)

    return make
