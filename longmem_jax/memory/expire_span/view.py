"""What a page shows of Expire-Span: memories by what is left of their spans, what is read, all spans."""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.attention.ramp import ramp_mask
from longmem_jax.memory.expire_span.maths import ExpireSpanState, filled_columns
from longmem_jax.memory.expire_span.reading import weights_of_segment
from longmem_jax.views import Held, Read, Seen, Series


def held(layer: Any, state: ExpireSpanState) -> dict[str, Held]:
    """The vectors of buffer and window, each with the mask of Eq. 5 for the next query."""
    room, width = state.buffer.shape[1], state.window.shape[1]
    spans = layer.spans(jnp.concatenate([state.buffer, state.window], axis=1))
    recent = width - jnp.arange(width, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (state.count.shape[0], width))
    ages = jnp.concatenate([state.distance, recent], axis=1)
    filled = filled_columns(room, state.count, width, state.window_count, 0)
    left = ramp_mask(spans - ages.astype(spans.dtype), layer.ramp)
    return {'memories': Held(jnp.where(filled, left, 0.0).astype(jnp.float32), ages)}


def read(seen: Seen) -> dict[str, Read]:
    """The attention to buffer, window and segment; a token never reads itself."""
    layer = seen.layer
    project, params = layer.params()
    rows = layer.rows(layer.normalize(seen.x), seen.state, seen.segment.num_valid)
    fields = dict(max_span=layer.max_span, pre_div=layer.pre_div, ramp=layer.ramp)
    weights = weights_of_segment(params, rows, project=project, **fields)
    batch, width, length = weights.shape[0], seen.state.window.shape[1], seen.x.shape[1]
    near = jnp.arange(width + length, dtype=jnp.int32)[None] - width
    near = jnp.broadcast_to(near, (batch, width + length))
    places = jnp.concatenate([-seen.state.distance, near], axis=1)
    return {'attention': Read(weights.astype(jnp.float32), places[:, None, None])}


def series(seen: Seen) -> Series:
    """The span of every token as it is written."""
    return Series(by_token={'span, tokens': seen.layer.spans(seen.x)[..., None]})


def kept(layer: Any, x: jax.Array, age: jax.Array) -> jax.Array:
    """The mask of Eq. 5 for inputs of that many tokens ago; see `views.View.kept`."""
    spans = layer.spans(x)[:, None]
    return ramp_mask(spans - age[None].astype(spans.dtype), layer.ramp)
