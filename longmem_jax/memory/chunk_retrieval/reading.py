"""Reading outside of training: the filled slots alone, in two loops over blocks of them.

The first loop finds the gates of all blocks, the second attends to the chosen ones by an online softmax.
So scores of all slots are never held, and what is not filled costs nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.online import Sums, no_sums
from longmem_jax.attention.rules import Rules
from longmem_jax.kernels.attention_products import dot, float32_type
from longmem_jax.layers.positions import following
from longmem_jax.layers.switching import per_device
from longmem_jax.memory.chunk_retrieval.blocks import (
    Choice,
    block_means,
    choose,
    chosen_scores,
    gates_of,
    of_slots,
)
from longmem_jax.memory.chunk_retrieval.far import near_scores, scores_of, with_near

TURN = 512  # slots of a turn of the loops, about
FEW = 64  # with fewer queries a turn has more slots, and scores are kept


class Far(flax.struct.PyTreeNode):
    """What scores at the largest distance need: queries of `far_queries`, keys without positions."""

    queries: jax.Array
    keys: jax.Array


class Rows(flax.struct.PyTreeNode):
    """What is read.

    Attributes:
      queries: [batch, heads, n, head_dim], scaled, with positions.
      keys, values: [batch, kv_heads, slots, head_dim], keys with positions; whole blocks.
      offset: int32 [batch], slot of the first query.
      far: None = all distances are the true ones.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    offset: jax.Array
    far: Far | None


class _Settings(NamedTuple):
    choice: Choice
    clamp: int
    turn: int


def attend_to_chosen(choice: Choice, clamp: int, rows: Rows) -> jax.Array:
    """Attention of every query to the blocks that it chooses, [batch, heads, n, head_dim].

    Every device reads what its own batch rows need.

    Args:
      clamp: the largest distance that counts, where `rows.far` is not None.
    """
    size, slots = choice.block_length, rows.keys.shape[2]
    turn = TURN if rows.queries.shape[2] >= FEW else max(TURN, slots // 4)
    turn = min(max(turn // size, 1) * size, slots)
    settings = _Settings(choice, clamp, turn)
    return per_device(lambda _, rows: _read(settings, rows), None, rows)


# JAX traces it once for all layers with the same settings and shapes.
@functools.partial(jax.jit, static_argnums=0)
def _read(settings: _Settings, rows: Rows) -> jax.Array:
    """See `attend_to_chosen`."""
    choice, _, turn = settings
    size, slots, (batch, heads, number) = (
        choice.block_length,
        rows.keys.shape[2],
        rows.queries.shape[:3],
    )
    at = following(rows.offset, number)[:, None, :, None]
    keeps = number < FEW
    by_means = choice.gate == 'mean' and not (choice.landmarks or rows.far or keeps)

    def first(index: jax.Array) -> jax.Array:
        """The last turn may have slots of the one before."""
        return jnp.minimum(index * turn, slots - turn)

    def find(found: tuple[jax.Array, jax.Array], index: jax.Array) -> tuple[jax.Array, jax.Array]:
        start, (gates, kept) = first(index), found
        if by_means:
            grouped = rows.queries.reshape(batch, rows.keys.shape[1], -1, rows.queries.shape[3])
            means = block_means(_turn_of(rows.keys, start, turn), size)
            new = dot(grouped.astype(means.dtype), means).reshape(batch, heads, number, -1)
        else:
            scores = _scores(settings, rows, start)
            new = gates_of(choice, scores)
            if keeps:
                kept = jax.lax.dynamic_update_slice_in_dim(kept, scores, start, axis=3)
        return jax.lax.dynamic_update_slice_in_dim(gates, new, start // size, axis=3), kept

    def add(sums: Sums, index: jax.Array) -> Sums:
        start = first(index)
        slot = _slots(start, turn)
        if keeps:
            scores = jax.lax.dynamic_slice_in_dim(kept, start, turn, axis=3)
        else:
            scores = _scores(settings, rows, start)
        some = jax.lax.dynamic_slice_in_dim(chosen, start // size, turn // size, axis=3)
        mask, bias = of_slots(choice, at, slot, some, scores)
        mask = mask & (slot <= at) & (slot >= index * turn)
        scores = scores if bias is None else scores + bias
        return sums.add(scores, mask, _turn_of(rows.values, start, turn))

    filled = rows.offset.max() + number

    def in_turns(step: Callable[[Any, jax.Array], Any], carry: Any) -> Any:
        """Of as many turns as there may be, those with filled slots."""

        def one(carry: Any, index: jax.Array) -> tuple[Any, None]:
            some = index * turn < filled
            return jax.lax.cond(some, step, lambda carry, _: carry, carry, index), None

        return jax.lax.scan(one, carry, jnp.arange(-(-slots // turn), dtype=jnp.int32))[0]

    none = [
        jnp.zeros((batch, heads, number, width), float32_type(rows.queries))
        for width in (slots // size, slots if keeps else 0)
    ]
    gates, kept = in_turns(find, tuple(none))
    chosen = choose(gates, at // size, choice.top_k, choice.held, choice.sinks, choice.near)
    sums: Sums = in_turns(add, no_sums(rows.queries, rows.values.shape[3]))
    return sums.result(rows.values.dtype)


def all_scores(choice: Choice, clamp: int, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Scores of all slots, and which are seen; both [batch, heads, n, slots]. See `attend_to_chosen`."""
    if rows.far is None:
        scores = scores_of(rows.queries, rows.keys)
    else:
        near = near_scores(rows.queries, rows.keys, rows.offset, clamp)
        scores = with_near(scores_of(rows.far.queries, rows.far.keys), near, rows.offset, clamp)
    rules = Rules(offset=rows.offset, scale=1.0)
    return chosen_scores(choice, rows.queries, rows.keys, rules, scores)


def _turn_of(array: jax.Array, start: jax.Array, turn: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, turn, axis=2)


def _slots(start: jax.Array, turn: int) -> jax.Array:
    """Numbers of the slots of a turn, int32 [1, 1, 1, turn]."""
    return (start + jnp.arange(turn, dtype=jnp.int32))[None, None, None]


def _scores(settings: _Settings, rows: Rows, start: jax.Array) -> jax.Array:
    """Scores of the slots of a turn, [batch, heads, n, turn]."""
    _, clamp, turn = settings

    def of_near() -> jax.Array:
        return scores_of(rows.queries, _turn_of(rows.keys, start, turn))

    far = rows.far
    if far is None:
        return of_near()

    def of_far() -> jax.Array:
        return scores_of(far.queries, _turn_of(far.keys, start, turn))

    def of_both() -> jax.Array:
        at = following(rows.offset, rows.queries.shape[2])[:, None, :, None]
        is_near = at - _slots(start, turn) < clamp
        return jnp.where(is_near, of_near(), of_far())

    largest = rows.offset.max() + rows.queries.shape[2] - 1 - start
    least = rows.offset.min() - (start + turn - 1)
    which = jnp.where(largest < clamp, 0, jnp.where(least >= clamp, 1, 2))
    scores: jax.Array = jax.lax.switch(which, (of_near, of_far, of_both))
    return scores
