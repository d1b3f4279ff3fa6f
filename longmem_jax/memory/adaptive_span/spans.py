"""The soft mask of Adaptive-Span over distances, its reach, and what may be seen at all."""

import functools

import jax
import jax.numpy as jnp


def span_mask(share: jax.Array, distance: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """Soft mask over distances: 1 up to the span, then falling to 0 over `ramp` tokens.

    Args:
      share: float [heads | 1], spans as shares of `max_span`.
      distance: int32 [batch | 1, queries, keys].
      max_span, ramp: fields of `AdaptiveSpan`.

    Returns:
      float [batch | 1, heads | 1, queries, keys].
    """
    return _on_ramp(_remaining(share, distance, max_span), ramp)


def _remaining(share: jax.Array, distance: jax.Array, max_span: int) -> jax.Array:
    """Tokens of the span left at each distance; shapes as in `span_mask`."""
    return share[None, :, None, None] * max_span + 1 - distance[:, None].astype(share.dtype)


def _on_ramp(remaining: jax.Array, ramp: int) -> jax.Array:
    """Weights by the tokens of the span left."""
    return jnp.clip(remaining / ramp + 1, 0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def span_weights(share: jax.Array, distance: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """`span_mask`, with a derivative that is summed by products. Reverse mode only.

    Args:
      share, max_span, ramp: as there.
      distance: int32 [batch, queries, keys].

    Returns:
      [batch, heads | 1, queries, keys].
    """
    return span_mask(share, distance, max_span, ramp)


def _span_forward(
    share: jax.Array, distance: jax.Array, max_span: int, ramp: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return span_mask(share, distance, max_span, ramp), (share, distance)


def _span_backward(
    max_span: int, ramp: int, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    _, pull = jax.vjp(lambda left: _on_ramp(left, ramp), _remaining(*residuals, max_span))
    (to_remaining,) = pull(gradient)
    # Sums as matrix products: fused with the preceding operations they would be several times slower.
    ones = jnp.ones((gradient.shape[-1], 8), gradient.dtype)
    sums = jnp.einsum('bhqk,kr->bhqr', to_remaining, ones)[..., 0].sum(axis=(0, 2))
    return sums * max_span, None


span_weights.defvjp(_span_forward, _span_backward)


def reach(share: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """Largest distance, int32 scalar, at which `span_mask` of any head is above 0."""
    widest = jnp.ceil(share.max() * max_span + ramp).astype(jnp.int32)
    return jnp.clip(widest, 1, max_span)


def visible(distance: jax.Array, first: jax.Array, max_span: int) -> jax.Array:
    """Which keys may be seen at all: filled ones, 1 to `max_span` before the query.

    Args:
      distance: int32 [batch | 1, queries, keys], from each query back to each key.
      first: int32 [batch], the first filled key.
      max_span: the largest distance.

    Returns:
      bool [batch, 1, queries, keys].
    """
    index = jnp.arange(distance.shape[2], dtype=jnp.int32)[None, None]
    seen = (distance >= 1) & (distance <= max_span)
    return (seen & (index >= first[:, None, None]))[:, None]
