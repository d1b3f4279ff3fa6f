"""The equations of Expire-Span (Sukhbaatar et al., 2021), as functions on arrays, and its state."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.span_attention import LATER, KeySpans
from longmem_jax.contract import ModelSettings
from longmem_jax.kernels.attention_products import float32_type
from longmem_jax.kernels.fused_plan import NEVER_SINCE


class ExpireSpanState(flax.struct.PyTreeNode):
    """Memories of one layer; hidden vectors in the compute dtype.

    Attributes:
      window: [batch, position_length, d_model], the last tokens, right-aligned.
      window_count: int32 [batch], number of filled ones.
      buffer: [batch, capacity - position_length, d_model]; live older memories come
        first, oldest first, zeros after them.
      distance: int32 [batch, capacity - position_length], from each memory to the next query.
      count: int32 [batch], live memories in the buffer.
      dropped: int32 [batch], live memories dropped for lack of room, in this document so far, modulo
        2^31: only differences are read.
    """

    window: jax.Array
    window_count: jax.Array
    buffer: jax.Array
    distance: jax.Array
    count: jax.Array
    dropped: jax.Array


def empty_state(
    settings: ModelSettings, batch: int, width: int, room: int, zeros: bool
) -> ExpireSpanState:
    """A window of `width` vectors, which count where they are to be attended to, and no others."""
    none, dtype = jnp.zeros((batch,), jnp.int32), settings.dtype
    return ExpireSpanState(
        window=jnp.zeros((batch, width, settings.d_model), dtype),
        window_count=none + (width if zeros else 0),
        buffer=jnp.zeros((batch, room, settings.d_model), dtype),
        distance=jnp.zeros((batch, room), jnp.int32),
        count=none,
        dropped=none,
    )


def expire_spans(
    hidden: jax.Array, kernel: jax.Array, bias: jax.Array, max_span: int, pre_div: float
) -> jax.Array:
    """Spans e in (0, max_span), float32 at least: Eq. 3, and Eq. 8 with `pre_div` (b undivided).

    Args:
      hidden: [batch, n, d_model].
      kernel: [d_model], w.
      bias: scalar, b.
      max_span, pre_div: fields of `ExpireSpan`.

    Returns:
      [batch, n].
    """
    dtype = float32_type(hidden)
    # A span of thousands of tokens needs more than the bfloat16 or TF32 that accelerators default to.
    logits = jnp.matmul(
        hidden.astype(dtype) / pre_div, kernel.astype(dtype), precision=jax.lax.Precision.HIGHEST
    )
    return max_span * jax.nn.sigmoid(logits + bias.astype(dtype))


def cut(spans: jax.Array, limit: int) -> jax.Array:
    """Spans, none longer than `limit`; 0 = no limit."""
    return jnp.minimum(spans, limit) if limit else spans


def filled_columns(
    size: int, count: jax.Array, width: int, window_count: jax.Array, length: int
) -> jax.Array:
    """Which keys are filled, of `size` buffer entries, the window and `length` tokens of a segment.

    Args:
      size: entries of the buffer; the first `count` (int32 [batch]) of them are filled.
      count: int32 [batch].
      width: entries of the window; the last `window_count` (int32 [batch]) of them are filled.
      window_count: int32 [batch].
      length: tokens of the segment, all filled.

    Returns:
      bool [batch, size + width + length].
    """
    column = jnp.arange(size + width + length, dtype=jnp.int32)[None]
    return jnp.where(
        column < size, column < count[:, None], column - size >= width - window_count[:, None]
    )


def key_spans(
    spans: jax.Array,
    old_distance: jax.Array,
    count: jax.Array,
    width: int,
    window_count: jax.Array,
    ramp: int,
) -> KeySpans:
    """When the entries of the buffer, the window and the segment are seen, and for how long (Eq. 5).

    A query never sees itself. `KeySpans.remaining` is r of Eq. 5 at the first query.

    Args:
      spans: e of Eq. 3, float [batch, size + width + length].
      old_distance: int32 [batch, size], from the first query of the segment to entries of the buffer.
      count, width, window_count: as in `filled_columns`.
      ramp: R of Eq. 5.
    """
    batch, size = old_distance.shape
    length = spans.shape[1] - size - width
    recent = width - jnp.arange(width + length, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (batch, width + length))
    distance = jnp.concatenate([old_distance, recent], axis=1)
    filled = filled_columns(size, count, width, window_count, length)
    column = jnp.arange(spans.shape[1], dtype=jnp.int32)
    return KeySpans(
        since=jnp.where(filled, 1 - distance, NEVER_SINCE),
        until=None,
        remaining=(spans - distance.astype(spans.dtype))[:, None],
        numbers=jnp.where(column < size, column, column - size + LATER),
        ramp=ramp,
    )


def ramp_loss(keys: KeySpans, num_queries: jax.Array, length: int) -> jax.Array:
    """The L1 loss of Eq. 7, [batch]: over pairs on the ramp only (Sec. 4.2), `r / (R * length)`.

    Only its gradient is used (r is negative there): it shortens spans, by 1 / R for every query during
    which a memory expires. On the ramp of a key are the queries from the first after its span to the
    last before its end, so that the sum over queries has a closed form.

    Args:
      keys: of `key_spans`.
      num_queries: int32 [batch], queries that count, the first ones.
      length: number of queries that the sum is divided by.
    """
    assert keys.remaining is not None
    remaining = keys.remaining[:, 0]  # at query 0
    detached, dtype = jax.lax.stop_gradient(remaining), remaining.dtype
    first = jnp.maximum(jnp.floor(detached) + 1, jnp.maximum(keys.since, 0).astype(dtype))
    end = jnp.minimum(jnp.ceil(detached + keys.ramp), num_queries[:, None].astype(dtype))
    number = jnp.maximum(end - first, 0)
    total = number * (remaining - (first + end - 1) / 2)
    return total.sum(axis=1) / (keys.ramp * length)


def alive(spans: jax.Array, distance: jax.Array, filled: jax.Array, ramp: int) -> jax.Array:
    """Which memories a query still sees, m > 0 in Eq. 5: bool [batch, n].

    Args:
      spans: float [batch, n].
      distance: int32 [batch | 1, n], to the query.
      filled: bool [batch, n].
      ramp: R of Eq. 5.
    """
    return filled & (spans + ramp - distance.astype(spans.dtype) > 0)


def memory_size(
    state: ExpireSpanState, old_spans: jax.Array, spans: jax.Array, ramp: int
) -> jax.Array:
    """|C_t| of Eq. 6 for the first query after `state`: memories that are alive, int32 [batch].

    Args:
      state: memories before the segment.
      old_spans: float [batch, capacity - position_length], spans of the buffer.
      spans: float [batch, position_length], spans of the window.
      ramp: R of Eq. 5.
    """
    room, width = state.buffer.shape[1], state.window.shape[1]
    filled = filled_columns(room, state.count, width, state.window_count, 0)
    recent = width - jnp.arange(width, dtype=jnp.int32)[None]
    old = alive(old_spans, state.distance, filled[:, :room], ramp)
    return old.sum(axis=1, dtype=jnp.int32) + alive(spans, recent, filled[:, room:], ramp).sum(
        axis=1, dtype=jnp.int32
    )


def expire(
    vectors: jax.Array,
    distance: jax.Array,
    spans: jax.Array,
    filled: jax.Array,
    ramp: int,
    room: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Keeps memories that can still be seen, in front and in order; for others Eq. 5 stays 0.

    If there are more live memories than `room`, those that would expire first are dropped, of equal
    ones the newest: what is lost is the least that can be, the sum of the queries that would still
    have seen a memory.

    Args:
      vectors: [batch, n, d_model].
      distance: int32 [batch, n], to the next query.
      spans: float [batch, n].
      filled: bool [batch, n].
      ramp: R of Eq. 5.
      room: largest number of memories kept.

    Returns:
      vectors [batch, min(n, room), d_model]; distance [batch, min(n, room)]; number of live memories
      kept, and dropped, int32 [batch] each.
    """
    remaining = spans + ramp - distance.astype(spans.dtype)
    kept = alive(spans, distance, filled, ramp)
    total = kept.sum(axis=1, dtype=jnp.int32)
    if vectors.shape[1] > room:
        by_remaining = jnp.where(kept, -remaining, jnp.asarray(jnp.inf, remaining.dtype))
        rank = jnp.argsort(jnp.argsort(by_remaining, axis=1, stable=True), axis=1)
        kept = kept & (rank < room)
    count = kept.sum(axis=1, dtype=jnp.int32)
    order = jnp.argsort(~kept, axis=1, stable=True)[:, : min(vectors.shape[1], room)]
    filled = jnp.arange(order.shape[1], dtype=jnp.int32)[None] < count[:, None]
    vectors = jnp.take_along_axis(vectors, order[..., None], axis=1)
    distance = jnp.take_along_axis(distance, order, axis=1)
    vectors = jnp.where(filled[..., None], vectors, jnp.zeros_like(vectors))
    return vectors, jnp.where(filled, distance, 0), count, total - count
