"""The window of hidden vectors of Adaptive-Span, and how a segment is written to it."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.window import push


@flax.struct.dataclass
class AdaptiveSpanState:
    """The window of hidden vectors of one layer.

    Attributes:
      hidden: [batch, max_span, d_model], in the compute dtype; the last `count` are filled.
      count: int32 [batch].
    """

    hidden: jax.Array
    count: jax.Array


def remember(
    state: AdaptiveSpanState,
    hidden: jax.Array,
    num_valid: jax.Array,
    limit: jax.Array | None = None,
) -> AdaptiveSpanState:
    """Writes a segment: the last `max_span` of memory and segment, or the last `limit` of them.

    Args:
      state: memory before the segment.
      hidden: [batch, length, d_model], inputs of the layer.
      num_valid: int32 [batch], number of tokens; they come first.
      limit: int32 scalar, number of vectors kept at most; None = `max_span`.
    """
    hidden = jax.lax.stop_gradient(hidden)
    window, count = push(state.hidden, state.count, hidden, num_valid)
    if limit is None:
        return AdaptiveSpanState(window, count)
    capacity = window.shape[1]
    count = jnp.minimum(count, limit)
    stays = jnp.arange(capacity, dtype=jnp.int32)[None] >= capacity - count[:, None]
    return AdaptiveSpanState(jnp.where(stays[..., None], window, jnp.zeros_like(window)), count)
