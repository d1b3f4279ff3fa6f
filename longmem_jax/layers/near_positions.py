"""Learned scores of near distances, one table for all heads and layers (Sukhbaatar et al., 2019).

A query is multiplied with the vector of the distance to a key; nothing is added to keys, and
distances beyond the table have no term at all.
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
    """The table, owned by the model and given to every layer as `shared`.

    Attributes:
      settings: sizes of the model.
      num_distances: distances 1 .. num_distances have a vector.
    """

    settings: ModelSettings
    num_distances: int

    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(1.0), ('distance', 'head_dim'))
        self.table = self.param('table', init, (self.num_distances, self.settings.head_dim))

    def __call__(self) -> jax.Array:
        """float32 [num_distances, head_dim]; row d - 1 belongs to distance d."""
        return self.table


@jax.custom_vjp
def lean(rows: jax.Array) -> jax.Array:
    """Moves row i of n to the left by n - 1 - i: a slice of the flat array, and so is its derivative.

    Args:
      rows: [..., n, columns + 1].

    Returns:
      [..., n, columns]; entries shifted in from the right are undefined.
    """
    *lead, n, columns = rows.shape
    flat = rows.reshape(*lead, n * columns)[..., n - 1 : -1]
    return flat.reshape(*lead, n, columns - 1)


def _lean_forward(rows):
    return lean(rows), None


def _lean_backward(_, gradient):
    *lead, n, columns = gradient.shape
    flat = jnp.zeros((*lead, n * (columns + 1)), gradient.dtype)
    # Written into zeros, which is one copy, where a pad would compute every index.
    flat = jax.lax.dynamic_update_slice(
        flat, gradient.reshape(*lead, n * columns), (0,) * len(lead) + (n - 1,)
    )
    return (flat.reshape(*lead, n, columns + 1),)


lean.defvjp(_lean_forward, _lean_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def spread(table: jax.Array, batch: int, length: int) -> jax.Array:
    """A table by distance at the place of every query and key of a segment.

    Args:
      table: [heads, columns + 1]; for the last query, by key.
      batch, length: lanes and queries.

    Returns:
      [batch, heads, length, columns].
    """
    shape = (batch, table.shape[0], length, table.shape[1])
    return lean(jnp.broadcast_to(table[None, :, None], shape))


def _spread_forward(table, batch, length):
    return spread(table, batch, length), None


def _spread_backward(batch, length, _, gradient):
    (rows,) = _lean_backward(None, gradient)
    # Sums as products: fused with what comes before them they would take several times as long.
    ones = jnp.ones((*rows.shape[:2], 8, length), rows.dtype)
    sums = jnp.einsum('bhrq,bhqk->bhrk', ones, rows)
    return (sums[:, :, 0].sum(axis=0),)


spread.defvjp(_spread_forward, _spread_backward)


def whole_segment(queries: jax.Array, table: jax.Array, window: int) -> jax.Array:
    """Scores of all queries of a segment with the keys of a window before it and of itself.

    Args:
      queries: [batch, heads, length, head_dim], scaled.
      table: [num_distances, head_dim].
      window: keys before the segment; those beyond `num_distances` score 0.

    Returns:
      [batch, heads, length, window + length], float32 at least; undefined at distances < 1.
    """
    length = queries.shape[2]
    table = table[: min(window + length - 1, table.shape[0])].astype(queries.dtype)
    rows = dot(queries, table[::-1])
    left = window + length - 1 - table.shape[0]
    return lean(jnp.pad(rows, [(0, 0)] * 3 + [(left, 2)]))


def at_distances(queries: jax.Array, table: jax.Array, distance: jax.Array) -> jax.Array:
    """Scores at any distances, by a gather: for streams, where lanes stand at different places.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      table: [num_distances, head_dim].
      distance: int32 [batch, n, keys].

    Returns:
      [batch, heads, n, keys], float32 at least; 0 outside of the table.
    """
    rows = dot(queries, table.astype(queries.dtype))
    inside = (distance >= 1) & (distance <= table.shape[0])
    at = jnp.where(inside, distance - 1, 0)[:, None]
    shape = (*rows.shape[:3], distance.shape[-1])
    found = jnp.take_along_axis(rows, jnp.broadcast_to(at, shape), axis=-1)
    return jnp.where(inside[:, None], found, jnp.zeros_like(found))


def shared_table(fields: Any, name: str) -> Callable[..., NearPositions]:
    """`Entry.shared` of a layer whose field `name` says how many distances are told apart."""

    def make(settings: ModelSettings, **kwargs: Any) -> NearPositions:
        return NearPositions(settings, fields[name], **kwargs)

    return make
