"""What a page shows of Expire-Span: memories by what is left of their spans, what is read, all spans."""

from typing import Any

import jax.numpy as jnp

from longmem_jax.memory.expire_span.ramp import ramp_mask
from longmem_jax.memory.expire_span.spans import ExpireSpanState, filled_columns
from longmem_jax.views import Held, Read, Seen, Series


def held(layer: Any, state: ExpireSpanState) -> dict[str, Held]:
    """The vectors of buffer and window, each with the mask of Eq. 5 for the next query."""
    room, width = state.buffer.shape[1], state.window.shape[1]
    spans = layer.spans(jnp.concatenate([state.buffer, state.window], axis=1))
    recent = width - jnp.arange(width, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (state.count.shape[0], width))
    ages = jnp.concatenate([state.distance, recent], axis=1)
    filled = filled_columns(room, state.count, width, state.window_count, 0)
    left = ramp_mask(spans[:, None], ages[:, None], layer.ramp)[:, 0]
    return {'memories': Held(jnp.where(filled, left, 0.0).astype(jnp.float32), ages)}


def read(seen: Seen) -> dict[str, Read]:
    """The attention to buffer, window and segment; a token never reads itself."""
    weights = seen.layer.weights(seen.x, seen.state, seen.segment.num_valid)
    batch, width, length = weights.shape[0], seen.state.window.shape[1], seen.x.shape[1]
    near = jnp.arange(width + length, dtype=jnp.int32)[None] - width
    near = jnp.broadcast_to(near, (batch, width + length))
    places = jnp.concatenate([-seen.state.distance, near], axis=1)
    return {'attention': Read(weights.astype(jnp.float32), places[:, None, None])}


def series(seen: Seen) -> Series:
    """The span of every token as it is written."""
    return Series(by_token={'span, tokens': seen.layer.spans(seen.x)[..., None]})
