"""Attention within spans: a key is seen by some queries, under a mask that falls after its span.

Adaptive-Span and Expire-Span differ in the spans alone. Scores are by content, and by near distances
(`near_positions`). `ATTEND` has the ways to compute it, by the name in `ModelSettings.kernels`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.attention.ramp import ramp_mask
from longmem_jax.attention.self_attention import write_at
from longmem_jax.attention.weight_dropout import factor_by_number
from longmem_jax.kernels import fused_spans
from longmem_jax.kernels.attention_products import RunningMix, dot, empty_mix, mix, weights_of
from longmem_jax.kernels.fused_plan import NEVER_SINCE
from longmem_jax.layers.positions import following
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.layers.switching import bound, switch

LATER = 1 << 24  # added to the numbers of keys after the memory, in the draws of dropout


class KeySpans(flax.struct.PyTreeNode):
    """Which queries of a segment see which keys, and how much of them.

    Attributes:
      since: int32 [batch | 1, keys], the first query that sees a key, 0 = the first of the segment.
      until: int32 likewise, the first query that no longer does; None = there is no such query.
      remaining: float [batch | 1, heads | 1, keys], tokens of a key's span that are left at query 0;
        None = there is no mask.
      numbers: int32 [keys], of the keys in the draws of dropout: the same for every size of a memory.
      ramp: tokens over which the mask falls.
    """

    since: jax.Array
    until: jax.Array | None
    remaining: jax.Array | None
    numbers: jax.Array
    ramp: int = flax.struct.field(pytree_node=False)

    def masks(self, queries: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Which keys the queries with these numbers (int32 [batch | 1, n]) see, and their soft mask.

        Returns:
          bool [batch | 1, 1, n, keys]; float [batch | 1, heads | 1, n, keys] or None.
        """
        seen = queries[..., None] >= self.since[:, None]
        if self.until is not None:
            seen = seen & (queries[..., None] < self.until[:, None])
        seen = seen[:, None]
        if self.remaining is None:
            return seen, None
        left = self.remaining[:, :, None] - queries[:, None, :, None].astype(self.remaining.dtype)
        soft = ramp_mask(left, self.ramp)
        return seen, jnp.where(seen, soft, jnp.zeros_like(soft))

    def part(self, first: int, end: int | None = None) -> 'KeySpans':
        """Of the keys from number `first` to `end`."""
        keys = slice(first, end)
        return jax.tree.map(lambda array: array[..., keys], self)


class Dropout(flax.struct.PyTreeNode):
    """Dropout of weights that is drawn by lane and key.

    Attributes:
      lanes: random keys [batch].
      rate: share of the weights that is dropped.
    """

    lanes: jax.Array
    rate: float = flax.struct.field(pytree_node=False)


def draw_dropout(module: nn.Module, lanes: int, train: bool) -> Dropout | None:
    """Dropout at the rate of a layer's settings for that many lanes; None = no dropout."""
    rate = module.settings.attention_dropout if train else 0.0
    return Dropout(jax.random.split(module.make_rng('dropout'), lanes), rate) if rate else None


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    table: jax.Array,
    spans: KeySpans,
    *,
    offset: int,
    first: int | jax.Array = 0,
    dropout: Dropout | None = None,
    block_size: int = 0,
) -> jax.Array:
    """Attends from a segment, or from some of its tokens, to a memory and the segment.

    Weights times soft masks, normalised again: Eq. 4 of Expire-Span, with the mask of Eq. 5.

    Args:
      queries: [batch, heads, n, head_dim], scaled.
      keys, values: [batch, kv_heads, keys, head_dim], of the memory and then of the segment.
      table: float [num_distances, head_dim], see `near_positions`.
      spans: of the keys.
      offset: number of keys before those of the segment.
      first: number of the first query in the segment, int or int32 [batch]; if it is an int, the last
        query is at the last key.
      dropout: None = none.
      block_size: with soft masks only, keys beyond the reach of the table are read in blocks of at most
        this many, with the same results; a quarter more is read at once. 0 = all at once.

    Returns:
      [batch, heads, n, head_dim] in the dtype of `values`.
    """
    numbers, wide = following(first, queries.shape[2]), queries.shape[1]
    old = _before_table(offset, table)
    count, block = blocks_of(old, block_size)
    drop = functools.partial(_factor, dropout)
    if count == 1:
        scores = _scores(queries, keys, table, offset, first)
        seen, soft = spans.masks(numbers)
        return mix(scores, repeat_heads(values, wide), seen, soft, drop(scores, spans.numbers))

    def soft_mask(spans: KeySpans) -> jax.Array:
        _, soft = spans.masks(numbers)
        assert soft is not None, 'block_size is for soft masks only'
        return soft

    near = spans.part(old)
    scores = _scores(queries, keys[:, :, old:], table, offset - old, first)
    recent = repeat_heads(values[:, :, old:], wide)
    running = empty_mix(queries).add(scores, recent, soft_mask(near), drop(scores, near.numbers))

    def read_block(running: RunningMix, inputs: Any) -> tuple[RunningMix, None]:
        keys, values, spans = inputs
        scores = dot(queries, repeat_heads(keys, wide))
        factor = drop(scores, spans.numbers)
        return running.add(scores, repeat_heads(values, wide), soft_mask(spans), factor), None

    def cut(array: jax.Array, axis: int, filler: int = 0) -> jax.Array:
        array = jax.lax.slice_in_dim(array, 0, old, axis=axis)
        padding = [(0, 0)] * array.ndim
        padding[axis] = (0, count * block - old)
        array = jnp.pad(array, padding, constant_values=filler)
        shape = (*array.shape[:axis], count, block, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis, 0)

    by_block = KeySpans(
        since=cut(spans.since, 1, NEVER_SINCE),
        until=None if spans.until is None else cut(spans.until, 1),
        remaining=None if spans.remaining is None else cut(spans.remaining, 2),
        numbers=cut(spans.numbers, 0),
        ramp=spans.ramp,
    )
    step = jax.checkpoint(read_block, prevent_cse=False)
    running, _ = jax.lax.scan(step, running, (cut(keys, 2), cut(values, 2), by_block))
    return running.result(values.dtype)


def attend_fused(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    table: jax.Array,
    spans: KeySpans,
    *,
    offset: int,
    dropout: Dropout | None = None,
    block_size: int = 0,
) -> jax.Array:
    """`attend` of a whole segment by the fused kernel: its blocks, its draws of dropout."""
    del block_size
    never = jnp.full_like(spans.since, NEVER_SINCE)
    return fused_spans.attend_spans(
        queries,
        keys,
        values,
        table,
        offset=offset,
        since=spans.since,
        until=never if spans.until is None else spans.until,
        remaining=None if spans.remaining is None else spans.remaining.astype(jnp.float32),
        ramp=spans.ramp,
        numbers=spans.numbers,
        dropout=0.0 if dropout is None else dropout.rate,
        lane_keys=None if dropout is None else dropout.lanes,
    )


ATTEND = {'plain': attend, 'fused': attend_fused}


def weights(
    queries: jax.Array, keys: jax.Array, table: jax.Array, spans: KeySpans, *, offset: int
) -> jax.Array:
    """The weights of `attend` for a whole segment, [batch, heads, length, keys], for inspection."""
    seen, soft = spans.masks(following(0, queries.shape[2]))
    return weights_of(_scores(queries, keys, table, offset, 0), seen, soft)


def with_tokens(cache: Any, index: int | jax.Array, hidden: jax.Array, **of_keys: jax.Array) -> Any:
    """The cache of an open segment with its next tokens.

    Args:
      cache: has `keys` of the memory and the segment, and `hidden` of the segment.
      index: position of the first of these tokens in the segment, see `MemoryLayer.extend`.
      hidden: [batch, n, d_model], inputs of the layer.
      **of_keys: what the cache has of every key: `keys` [batch, kv_heads, n, head_dim], or `spans`
        [batch, n].
    """
    place = cache.keys.shape[2] - cache.hidden.shape[1] + index
    written = {
        name: write_at(getattr(cache, name), new, place, 2 if new.ndim == 4 else 1)
        for name, new in of_keys.items()
    }
    return cache.replace(hidden=write_at(cache.hidden, hidden, index, 1), **written)


def read_next(
    read: Callable[..., jax.Array],
    sizes: tuple[int, ...],
    needed: jax.Array,
    index: int | jax.Array,
    *operands: Any,
    **fields: Any,
) -> jax.Array:
    """What the next tokens of an open segment read, in the smallest size that is enough.

    Args:
      read: `(size, *operands, first, index=, **fields)`. The position of the first token in the
        segment is `first` (int32 [batch]) or `index` (int); the other is None.
      sizes, needed: as in `switching.switch`.
      index: that position, either way.
      *operands: of `read`, the cache with these tokens among them.
      **fields: static ones of `read`.
    """
    known = isinstance(index, int)
    read = bound(read, index=index if known else None, **fields)
    return switch(read, sizes, needed, *operands, None if known else index)


def blocks_of(size: int, block_size: int) -> tuple[int, int]:
    """Number and size of the blocks in which `size` keys are read: (1, size) if one is enough."""
    if not block_size or 4 * size <= 5 * block_size:
        return 1, size
    number = -(-size // block_size)
    return number, -(-size // number)


def _before_table(offset: int, table: jax.Array) -> int:
    """Number of keys that are beyond the distances of the table for all queries."""
    return max(offset - table.shape[0], 0)


def _scores(
    queries: jax.Array, keys: jax.Array, table: jax.Array, offset: int, first: int | jax.Array
) -> jax.Array:
    """Scores by content and by near distances; see `attend`."""
    scores = dot(queries, repeat_heads(keys, queries.shape[1]))
    old = _before_table(offset, table)
    if isinstance(first, int):
        near = near_positions.whole_segment(queries, table, offset - old + first)
    else:
        query = offset + following(first, queries.shape[2])
        column = jnp.arange(old, keys.shape[2], dtype=jnp.int32)
        near = near_positions.at_distances(queries, table, query[..., None] - column[None, None])
    near = near.astype(scores.dtype)
    return scores.at[..., old:].add(near) if old else scores + near


def _factor(dropout: Dropout | None, scores: jax.Array, numbers: jax.Array) -> jax.Array | None:
    if dropout is None:
        return None
    return factor_by_number(dropout.rate, dropout.lanes, numbers, scores)
