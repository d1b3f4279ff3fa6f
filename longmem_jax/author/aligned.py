"""Chunks that begin where a document has a multiple of `chunk` tokens, in every lane at its own places.

For memories whose numbers depend on the borders: those that compute all gradients of a mini-batch at the
weights before it.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

State = Any


class Chunks(flax.struct.PyTreeNode):
    """Where the chunks of every lane are.

    Attributes:
      source: int32 [batch, chunks, chunk], the token at every place of every chunk.
      there: bool [batch, chunks, chunk], whether the place has a token.
      place: int32 [batch, n], chunk and place in it of every token, as one number.
    """

    source: jax.Array
    there: jax.Array
    place: jax.Array


def chunks(before: jax.Array, valid: jax.Array, start: jax.Array | None, chunk: int) -> Chunks:
    """Cuts a sequence where its documents have a multiple of `chunk` tokens.

    A document that begins inside the sequence would need a chunk, so a sequence of short ones would need
    as many chunks as tokens. But the first `chunk` tokens of such documents all begin with the same
    weights, so that neighbours share chunks: these end at a border of one of them, or where the
    sequence has a multiple of `chunk` tokens. So there are at most three times as many chunks.

    Args:
      before: int32 [batch], tokens of the document before these.
      valid: bool [batch, n]; padding comes last.
      start: bool [batch, n], documents begin with these tokens; None = with none.
      chunk: tokens between two borders.
    """
    n = valid.shape[1]
    number = jnp.arange(n, dtype=jnp.int32)[None]
    position = before[:, None] + number
    most = (n + 2 * chunk - 2) // chunk
    if start is None:
        cut = position % chunk == 0
    else:
        most = min(n, 3 * (n // chunk) + 3)
        last = jax.lax.cummax(jnp.where(start, number, -1), axis=1)
        position = jnp.where(last < 0, position, number - last)
        shared = (last >= 0) & (position < chunk)
        goes_on = jnp.pad(shared & (position < chunk - 1), ((0, 0), (1, 0)))[:, :-1]
        cut = jnp.where(start, ~goes_on, position % chunk == 0)
        cut |= shared & (number % chunk == 0)
    needed = valid if start is None else valid | start  # a start at padding resets the state
    of_token = jnp.cumsum(cut & needed & (number > 0), axis=1, dtype=jnp.int32)
    each = jnp.arange(most + 1, dtype=jnp.int32)[None, :, None]
    # Where every chunk begins; n = there is no such chunk.
    begins = (of_token[:, None] < each).sum(axis=2, dtype=jnp.int32)
    source = begins[:, :-1, None] + jnp.arange(chunk, dtype=jnp.int32)[None, None]
    # Padding stays with the last tokens as far as there is room: it needs no chunk.
    there = source < begins[:, 1:, None]
    place = number - jnp.take_along_axis(begins, of_token, axis=1)
    place = of_token * chunk + jnp.minimum(place, chunk - 1)
    return Chunks(jnp.minimum(source, n - 1), there, place)


def _taken(leaf: jax.Array, numbers: jax.Array, axis: int) -> jax.Array:
    """Entries of `leaf` [batch, ...] along an axis, by lane; numbers int32 [batch, ...]."""
    take = functools.partial(jnp.take, axis=axis - 1, mode='clip')
    return jax.vmap(take)(leaf, numbers)


def read_chunks(
    read: Callable[..., Any],
    where: Chunks,
    state: State,
    inputs: tuple[jax.Array, ...],
    flags: Any,
) -> tuple[State, Any]:
    """Reads chunk after chunk; those that no lane has are skipped.

    Args:
      read: `(state, flags, inputs) -> (state, y)` for one chunk of all lanes.
      where: the chunks.
      state: leaves [batch, heads, ...].
      inputs: arrays [batch, heads, n, ...].
      flags: leaves bool [batch, n].

    Returns:
      The state after the last chunk, and y with leaves [batch, heads, n, ...].
    """
    batch, number, chunk = where.source.shape

    def cut(leaf: jax.Array, axis: int) -> jax.Array:
        taken = _taken(leaf, where.source.reshape(batch, -1), axis)
        there = where.there.reshape(batch, *(1,) * (axis - 1), -1, *(1,) * (leaf.ndim - axis - 1))
        taken = jnp.where(there, taken, jnp.zeros_like(taken))
        shape = (*leaf.shape[:axis], number, chunk, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(taken.reshape(shape), axis, 0)

    def join(leaf: jax.Array) -> jax.Array:
        leaf = jnp.moveaxis(leaf, 0, 2)
        leaf = leaf.reshape(*leaf.shape[:2], number * chunk, *leaf.shape[4:])
        return _taken(leaf, where.place, 2)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(state: State, part: Any) -> tuple[State, Any]:
        is_used, *given = part

        def skip(state: State, *given: Any) -> tuple[State, Any]:
            y = jax.eval_shape(read, state, *given)[1]
            return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), y)

        return jax.lax.cond(is_used, read, skip, state, *given)

    parts = (
        where.there.any(axis=(0, 2)),
        jax.tree.map(lambda leaf: cut(leaf, 1), flags),
        tuple(cut(leaf, 2) for leaf in inputs),
    )
    state, y = jax.lax.scan(body, state, parts)
    return state, jax.tree.map(join, y)
