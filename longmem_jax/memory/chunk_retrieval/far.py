"""Rotary positions of which all distances beyond the largest one count as this one.

With c = `clamp_length` the score of query i and key j is, in terms of rotations R to a position,

    q_i R(i - j) k_j / sqrt(d)    if i - j < c, else    q_i R(c) k_j / sqrt(d)

as in ReRoPE (Su, 2023), and in InfLLM for its blocks (Xiao et al., 2024). So there are two products: one
of all keys, which have no position, and one of the few near keys, which have theirs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.attention.rules import Rules

Rotate = Callable[[jax.Array, int | jax.Array], jax.Array]


class Near(NamedTuple):
    """Scores of the keys that are nearer than the largest distance that counts.

    Attributes:
      scores: [batch, heads, n, width], scaled.
      start: int32 [batch], slot of the first of these keys.
    """

    scores: jax.Array
    start: jax.Array


def scores_of(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """q . k, [batch, heads, n, keys]; query head h reads key head h // group."""
    return Rules(offset=0, scale=1.0).scores(queries, keys, 0, keys.shape[2])[0]


def far_queries(rotate: Rotate, queries: jax.Array, clamp: int) -> jax.Array:
    """Every query [batch, heads, n, head_dim] at position `clamp`, for keys at position 0.

    `rotate` gives rotary positions from an int, or int32 [batch], on.
    """
    batch, heads, number, width = queries.shape
    alone = queries.reshape(batch, heads * number, 1, width)
    # At position 0 too, in place of all the keys: some rotations have a gain.
    return rotate(rotate(alone, clamp), 0).reshape(queries.shape)


def near_scores(queries: jax.Array, keys: jax.Array, offset: jax.Array, clamp: int) -> Near:
    """Scores of the keys at distances below `clamp`.

    Args:
      queries: with positions, scaled; the first has the key index `offset`, int32 [batch].
      keys: with positions.
    """
    width = min(clamp + queries.shape[2], keys.shape[2])
    start = jnp.clip(offset - clamp, 0, keys.shape[2] - width)
    take = jax.vmap(lambda rows, at: jax.lax.dynamic_slice_in_dim(rows, at, width, 1))
    return Near(scores_of(queries, take(keys, start)), start)


def with_near(scores: jax.Array, near: Near, offset: jax.Array, clamp: int) -> jax.Array:
    """Scores of all keys, with those of near keys in their place.

    Args:
      scores: [batch, heads, n, keys], of the queries of `far_queries`; as many keys as are held and
        as the segment has, or more.
      offset: int32 [batch], the key index of the first query.
    """
    # Fewer keys than near ones are read only while all of them are near: then they start at 0.
    width = min(near.scores.shape[3], scores.shape[3])
    at = offset[:, None] + jnp.arange(scores.shape[2], dtype=jnp.int32)
    slot = near.start[:, None] + jnp.arange(width, dtype=jnp.int32)
    is_near = at[:, None, :, None] - slot[:, None, None, :] < clamp

    def put(all_keys: jax.Array, new: jax.Array, is_near: jax.Array, start: jax.Array) -> jax.Array:
        old = jax.lax.dynamic_slice_in_dim(all_keys, start, width, 2)
        new = jnp.where(is_near, new, old)
        return jax.lax.dynamic_update_slice_in_dim(all_keys, new, start, 2)

    return jax.vmap(put)(scores, near.scores[..., :width], is_near, near.start)
