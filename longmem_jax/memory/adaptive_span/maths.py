"""The equations of Adaptive-Span (Sukhbaatar et al., 2019), as functions on arrays, and its state."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.ramp import ramp_mask
from longmem_jax.attention.span_attention import KeySpans
from longmem_jax.attention.window import push
from longmem_jax.kernels.fused_plan import NEVER_SINCE


class AdaptiveSpanState(flax.struct.PyTreeNode):
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


def remaining(share: jax.Array, distance: jax.Array, max_span: int) -> jax.Array:
    """Tokens of the spans that are left at distances.

    Args:
      share: float [heads | 1], spans as shares of `max_span`.
      distance: int32 [n].
      max_span: L.

    Returns:
      float [heads | 1, n].
    """
    return share[:, None] * max_span + 1 - distance.astype(share.dtype)[None]


def span_mask(share: jax.Array, distance: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """The soft mask of Eq. 5, [heads | 1, n]: 1 up to the span, then falling to 0 over `ramp` tokens."""
    return ramp_mask(remaining(share, distance, max_span), ramp)


def reach(share: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """Largest distance, int32 scalar, at which `span_mask` of any head is above 0."""
    widest = jnp.ceil(share.max() * max_span + ramp).astype(jnp.int32)
    return jnp.clip(widest, 1, max_span)


def key_spans(
    size: int,
    keys: int,
    count: jax.Array,
    share: jax.Array | None,
    max_span: int,
    ramp: int,
) -> KeySpans:
    """When the last `size` vectors of the memory and the segment are seen: from 1 to `max_span` later.

    Args:
      size: static.
      keys: number of vectors, those of the segment included.
      count: int32 [batch], filled vectors of the memory.
      share, max_span, ramp: as in `span_mask`; share None = no soft mask.
    """
    column = jnp.arange(keys, dtype=jnp.int32) - size  # 0 = the first token of the segment
    filled = column[None] >= -count[:, None]
    left = None
    if share is not None:
        # One per lane: sums of its derivative over lanes would be slow.
        left = remaining(share, -column, max_span)
        left = jnp.where(filled[:, None], left, jnp.full_like(left, -max_span - ramp))
    return KeySpans(
        since=jnp.where(filled, column[None] + 1, NEVER_SINCE),
        until=column[None] + 1 + max_span,
        remaining=left,
        numbers=column,
        ramp=ramp,
    )
