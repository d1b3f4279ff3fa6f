"""How Expire-Span writes a segment: in one of a few static sizes, every device its own batch rows."""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.attention.window import push
from longmem_jax.layers.switching import bound, per_device, switch
from longmem_jax.memory.expire_span.maths import ExpireSpanState, expire
from longmem_jax.segment import count_round


def sizes_to_write(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every second of the sizes that are read, with the largest: a write costs little."""
    return sizes[::-2][::-1]


def _keep(
    size: int,
    state: ExpireSpanState,
    leaving: jax.Array,
    filled: jax.Array,
    leaving_distance: jax.Array,
    old_spans: jax.Array,
    spans: jax.Array,
    num_valid: jax.Array,
    *,
    ramp: int,
) -> tuple[jax.Array, ...]:
    """Buffer and distances after a segment, and how many are live and dropped; see `write`."""
    old = jnp.arange(size, dtype=jnp.int32)[None] < state.count[:, None]
    vectors, distance, count, dropped = expire(
        jnp.concatenate([state.buffer[:, :size], leaving], axis=1),
        jnp.concatenate([state.distance[:, :size] + num_valid[:, None], leaving_distance], axis=1),
        jnp.concatenate([old_spans[:, :size], spans[:, : leaving.shape[1]]], axis=1),
        jnp.concatenate([old, filled], axis=1),
        ramp,
        state.buffer.shape[1],
    )
    corner = (0,) * state.buffer.ndim
    return (
        jax.lax.dynamic_update_slice(state.buffer, vectors, corner),
        jax.lax.dynamic_update_slice(state.distance, distance, corner[:2]),
        count,
        dropped,
    )


def _write(sizes: tuple[int, ...], ramp: int, rows: tuple[Any, ...]) -> ExpireSpanState:
    """`write` of the batch rows of one device, its other arguments."""
    state, hidden, num_valid, old_spans, spans = rows
    hidden = hidden.astype(state.window.dtype)
    width, length = state.window.shape[1], hidden.shape[1]
    window, window_count = push(state.window, state.window_count, hidden, num_valid)
    position = jnp.arange(length, dtype=jnp.int32)[None]
    # The first `num_valid` positions of window and segment leave the window.
    leaving = jnp.concatenate([state.window, hidden], axis=1)[:, :length]
    filled = (position < num_valid[:, None]) & (position >= width - state.window_count[:, None])
    leaving_distance = width + num_valid[:, None] - position

    buffer, distance, count, dropped = switch(
        bound(_keep, ramp=ramp),
        sizes_to_write(sizes),
        state.count.max(),
        *(state, leaving, filled, leaving_distance, old_spans, spans, num_valid),
    )
    total = count_round(state.dropped, dropped)
    return ExpireSpanState(window, window_count, buffer, distance, count, total)


def write(
    sizes: tuple[int, ...],
    ramp: int,
    state: ExpireSpanState,
    hidden: jax.Array,
    num_valid: jax.Array,
    old_spans: jax.Array,
    spans: jax.Array,
) -> ExpireSpanState:
    """The memories after a segment, without gradient; every device writes its own batch rows.

    Args:
      sizes: static sizes of the buffer that are read, see `switching.switch`.
      ramp: R of Eq. 5.
      state: memories before the segment.
      hidden: [batch, length, d_model], inputs of the layer, tokens first.
      num_valid: int32 [batch], number of tokens.
      old_spans: float [batch, capacity - position_length], spans of the buffer, without the
        random limit.
      spans: float [batch, position_length + length], spans of window and segment, likewise.
    """
    rows = state, jax.lax.stop_gradient(hidden), num_valid, old_spans, spans
    return per_device(lambda _, rows: _write(sizes, ramp, rows), (), rows)
