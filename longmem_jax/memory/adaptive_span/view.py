"""What a page shows of Adaptive-Span: the window under its mask, and what is read."""

from typing import Any

import jax.numpy as jnp

from longmem_jax.memory.adaptive_span.maths import AdaptiveSpanState
from longmem_jax.memory.adaptive_span.reading import weights_of_segment
from longmem_jax.views import Held, Read, Seen, held_window


def held(layer: Any, state: AdaptiveSpanState) -> dict[str, Held]:
    """The window, each vector with the mean over the heads of the mask for the next query."""
    window = held_window(state.count, layer.max_span)
    return {'window': window.replace(weights=window.weights * layer.in_span(window.ages[0])[None])}


def read(seen: Seen) -> dict[str, Read]:
    """The attention to memory and segment; a token never reads itself."""
    layer = seen.layer
    project, params = layer.params()
    rows = layer.rows(layer.normalize(seen.x), seen.state)
    weights = weights_of_segment(params, rows, project, layer.max_span, layer.ramp)
    weights = weights.astype(jnp.float32)
    places = jnp.arange(weights.shape[-1], dtype=jnp.int32) - seen.layer.max_span
    return {'attention': Read(weights, places[None, None, None])}
