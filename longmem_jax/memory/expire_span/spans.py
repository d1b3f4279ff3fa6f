"""Spans, masks and the deletion of Expire-Span (Sukhbaatar et al., 2021), as functions on arrays."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.layers.attention_products import float32_type
from longmem_jax.layers.switching import switch
from longmem_jax.layers.window import push


@flax.struct.dataclass
class ExpireSpanState:
    """Memories of one layer; hidden vectors in the compute dtype.

    Attributes:
      window: [batch, position_length, d_model], the last tokens, right-aligned.
      window_count: int32 [batch], how many of them are filled.
      buffer: [batch, capacity - position_length, d_model]; older memories that are alive come
        first, oldest first; zeros behind them.
      distance: int32 like `buffer`'s first two axes: places from each to the next query.
      count: int32 [batch], memories alive in the buffer.
      dropped: int32 [batch], memories that were alive and found no room, in this document so far.
    """

    window: jax.Array
    window_count: jax.Array
    buffer: jax.Array
    distance: jax.Array
    count: jax.Array
    dropped: jax.Array


def expire_spans(
    hidden: jax.Array, kernel: jax.Array, bias: jax.Array, max_span: int, pre_div: float
) -> jax.Array:
    """Spans e in (0, max_span), float32 at least: Eq. 3, and Eq. 8 with `pre_div` (b undivided).

    Args:
      hidden: [batch, n, d_model].
      kernel: [d_model], w.
      bias: scalar, b.
    """
    wide = float32_type(hidden)
    logits = (hidden.astype(wide) / pre_div) @ kernel.astype(wide) + bias.astype(wide)
    return max_span * jax.nn.sigmoid(logits)


def ramp_mask(spans: jax.Array, distance: jax.Array, ramp: int) -> jax.Array:
    """Soft mask m of Eq. 5: 1 while the span lasts, then falling to 0 over `ramp` tokens.

    Args:
      spans: float [batch, 1, keys].
      distance: int32 [batch | 1, queries, keys].

    Returns:
      float [batch, queries, keys].
    """
    remaining = spans - distance.astype(spans.dtype)
    return jnp.clip(remaining / ramp + 1, 0, 1)


def ramp_loss(
    spans: jax.Array,
    distance: jax.Array,
    soft: jax.Array,
    visible: jax.Array,
    ramp: int,
    length: int,
) -> jax.Array:
    """The L1 loss of Sec. 4.2, [batch]: over pairs under the ramp only, `r / (ramp * length)`.

    Only its gradient is used (r is negative there): it shortens spans, by 1 / ramp for every query
    during which a memory expires.

    Args:
      spans: float [batch, 1, keys].
      distance: int32 [batch | 1, queries, keys].
      soft: float [batch, queries, keys], of `ramp_mask`.
      visible: bool [batch, queries, keys], pairs that count.
      ramp: R of Eq. 5.
      length: queries that the sum is divided by.
    """
    falling = visible & (soft > 0) & (soft < 1)
    remaining = jnp.where(falling, spans - distance.astype(spans.dtype), jnp.zeros_like(soft))
    return remaining.sum(axis=(1, 2)) / (ramp * length)


def masks(
    distance: jax.Array,
    spans: jax.Array,
    size: int,
    width: int,
    count: jax.Array,
    window_count: jax.Array,
    num_queries: jax.Array,
    ramp: int,
) -> tuple[jax.Array, jax.Array]:
    """Soft mask (Eq. 5) and loss (Sec. 4.2) of a segment's queries over all that they may see.

    Keys are the first `size` entries of the buffer, the window of `width`, and the segment.

    Args:
      distance: int32 [batch, queries, size + width + segment], from each query back to each key.
      spans: float [batch, size + width + segment], of the keys.
      size: entries of the buffer that are read; the first `count` of them are filled.
      width: entries of the window; the last `window_count` of them are filled.
      count, window_count: int32 [batch].
      num_queries: int32 [batch], queries that are no padding; the others add nothing to the loss.
      ramp: R of Eq. 5.

    Returns:
      float [batch, queries, keys] in [0, 1], 0 where nothing is seen, and float [batch].
    """
    column = jnp.arange(distance.shape[2], dtype=jnp.int32)[None]
    filled = jnp.where(
        column < size, column < count[:, None], column - size >= width - window_count[:, None]
    )
    visible = filled[:, None] & (distance >= 1)
    soft = ramp_mask(spans[:, None], distance, ramp)
    soft = jnp.where(visible, soft, jnp.zeros_like(soft))
    length = distance.shape[1]
    asked = jnp.arange(length, dtype=jnp.int32)[None, :, None] < num_queries[:, None, None]
    return soft, ramp_loss(spans[:, None], distance, soft, visible & asked, ramp, length)


def expire(
    rows: jax.Array,
    distance: jax.Array,
    spans: jax.Array,
    filled: jax.Array,
    ramp: int,
    room: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Keeps what can still be seen, in front and in order; Eq. 5 is 0 for ever for the rest.

    Where more is alive than there is room for, the memories that would expire last are kept.

    Args:
      rows: [batch, n, d_model].
      distance: int32 [batch, n], to the next query.
      spans: float [batch, n].
      filled: bool [batch, n].
      ramp: R of Eq. 5.
      room: memories that can be kept.

    Returns:
      rows [batch, min(n, room), d_model], distance likewise, int32 [batch] alive, and int32
      [batch] alive but dropped.
    """
    remaining = spans + ramp - distance.astype(spans.dtype)
    alive = filled & (remaining > 0)
    total = alive.sum(axis=1, dtype=jnp.int32)
    if rows.shape[1] > room:
        last = jnp.where(alive, -remaining, jnp.asarray(jnp.inf, remaining.dtype))
        rank = jnp.argsort(jnp.argsort(last, axis=1, stable=True), axis=1)
        alive = alive & (rank < room)
    count = alive.sum(axis=1, dtype=jnp.int32)
    order = jnp.argsort(~alive, axis=1, stable=True)[:, : min(rows.shape[1], room)]
    kept = jnp.arange(order.shape[1], dtype=jnp.int32)[None] < count[:, None]
    rows = jnp.take_along_axis(rows, order[..., None], axis=1)
    distance = jnp.take_along_axis(distance, order, axis=1)
    rows = jnp.where(kept[..., None], rows, jnp.zeros_like(rows))
    return rows, jnp.where(kept, distance, 0), count, total - count


def write(
    sizes: tuple[int, ...],
    ramp: int,
    state: ExpireSpanState,
    hidden: jax.Array,
    num_valid: jax.Array,
    old_spans: jax.Array,
    spans: jax.Array,
) -> ExpireSpanState:
    """The memories after a segment; without gradient.

    Args:
      sizes: static sizes of the buffer, see `switching.switch`.
      ramp: R of Eq. 5.
      state: memories before it.
      hidden: [batch, length, d_model], inputs of the layer, tokens first.
      num_valid: int32 [batch], how many of them are tokens.
      old_spans: float [batch, capacity - position_length], spans of the buffer, not shortened.
      spans: float [batch, position_length + length], likewise of window and segment.
    """
    hidden = hidden.astype(state.window.dtype)
    width, length, room = state.window.shape[1], hidden.shape[1], state.buffer.shape[1]
    window, window_count = push(state.window, state.window_count, hidden, num_valid)
    place = jnp.arange(length, dtype=jnp.int32)[None]
    # The first `num_valid` places of window and segment leave the window.
    leaving = jnp.concatenate([state.window, hidden], axis=1)[:, :length]
    filled = (place < num_valid[:, None]) & (place >= width - state.window_count[:, None])
    away = width + num_valid[:, None] - place

    def branch(size, operands, _):
        state, leaving, filled, away, old_spans, spans, num_valid = operands
        old = jnp.arange(size, dtype=jnp.int32)[None] < state.count[:, None]
        rows, distance, count, dropped = expire(
            jnp.concatenate([state.buffer[:, :size], leaving], axis=1),
            jnp.concatenate([state.distance[:, :size] + num_valid[:, None], away], axis=1),
            jnp.concatenate([old_spans[:, :size], spans[:, :length]], axis=1),
            jnp.concatenate([old, filled], axis=1),
            ramp,
            room,
        )
        corner = (0,) * state.buffer.ndim
        return (
            jax.lax.dynamic_update_slice(state.buffer, rows, corner),
            jax.lax.dynamic_update_slice(state.distance, distance, corner[:2]),
            count,
            dropped,
        )

    buffer, distance, count, dropped = switch(
        branch,
        sizes,
        state.count.max(),
        (state, leaving, filled, away, old_spans, spans, num_valid),
        (),
    )
    return ExpireSpanState(window, window_count, buffer, distance, count, state.dropped + dropped)
