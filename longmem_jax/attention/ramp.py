"""The ramp of learned spans: a soft mask that falls to 0 after a span.

Eq. 5 of Adaptive-Span (Sukhbaatar et al., 2019) and of Expire-Span (Sukhbaatar et al., 2021).
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def ramp_mask(remaining: jax.Array, ramp: int) -> jax.Array:
    """1 while the span lasts, then falling to 0 over `ramp` tokens.

    Args:
      remaining: float [...], tokens of the span that are left.
      ramp: R.

    Returns:
      In [0, 1], shaped like `remaining`.
    """
    return jnp.clip(remaining / ramp + 1, 0, 1)


@ramp_mask.defjvp
def _derivative(
    ramp: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # So the backward pass computes what it needs again, and keeps no array of the size of the mask.
    (remaining,), (moved,) = primals, tangents
    place = remaining / ramp + 1
    # At both ends half, as the derivatives of minimum and maximum are.
    at_end = jnp.where((place == 0) | (place == 1), 0.5, 0.0)
    slope = jnp.where((place > 0) & (place < 1), 1.0, at_end).astype(place.dtype) / ramp
    return ramp_mask(remaining, ramp), slope * moved
