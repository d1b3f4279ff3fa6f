"""The ramp of Expire-Span: soft masks of memories, and the loss that shortens spans."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def ramp_mask(spans: jax.Array, distance: jax.Array, ramp: int) -> jax.Array:
    """Soft mask m of Eq. 5: 1 while the span lasts, then falling to 0 over `ramp` tokens.

    Args:
      spans: float [batch, 1, keys].
      distance: int32 [batch | 1, queries, keys].
      ramp: R.

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
    """The L1 loss of Sec. 4.2, [batch]: over pairs on the ramp only, `r / (ramp * length)`.

    Only its gradient is used (r is negative there): it shortens spans, by 1 / ramp for every query
    during which a memory expires.

    Args:
      spans: float [batch, 1, keys].
      distance: int32 [batch | 1, queries, keys].
      soft: float [batch, queries, keys], the result of `ramp_mask`.
      visible: bool [batch, queries, keys], pairs that count.
      ramp: R of Eq. 5.
      length: number of queries that the sum is divided by.
    """
    falling = visible & (soft > 0) & (soft < 1)
    remaining = jnp.where(falling, spans - distance.astype(spans.dtype), jnp.zeros_like(soft))
    return remaining.sum(axis=(1, 2)) / (ramp * length)


def ramp_loss_of_keys(
    spans: jax.Array,
    distance: jax.Array,
    since: jax.Array,
    num_queries: jax.Array,
    ramp: int,
    length: int,
) -> jax.Array:
    """`ramp_loss` of queries one token apart, [batch]: a sum per key in closed form.

    On the ramp of a key are the queries from the first after its span to the last before its end.

    Args:
      spans: float [batch, keys].
      distance: int32 [batch, keys], to query 0.
      since: int32 [batch, keys], the first query that may see a key.
      num_queries: int32 [batch], queries that count.
      ramp: R of Eq. 5.
      length: number of queries that the sum is divided by.
    """
    remaining = spans - distance.astype(spans.dtype)  # at query 0
    detached = jax.lax.stop_gradient(remaining)
    first = jnp.maximum(jnp.floor(detached) + 1, jnp.maximum(since, 0).astype(spans.dtype))
    end = jnp.minimum(jnp.ceil(detached + ramp), num_queries[:, None].astype(spans.dtype))
    number = jnp.maximum(end - first, 0)
    total = number * (remaining - (first + end - 1) / 2)
    return total.sum(axis=1) / (ramp * length)


def masks(
    distance: jax.Array,
    spans: jax.Array,
    filled: jax.Array,
    num_queries: jax.Array,
    ramp: int,
) -> tuple[jax.Array, jax.Array]:
    """Soft mask (Eq. 5) and loss (Sec. 4.2) of a segment's queries over some keys.

    Args:
      distance: int32 [batch, queries, keys], from each query back to each key.
      spans: float [batch, keys], spans of the keys.
      filled: bool [batch, keys].
      num_queries: int32 [batch], queries that are not padding; others contribute nothing to the loss.
      ramp: R of Eq. 5.

    Returns:
      float [batch, queries, keys] in [0, 1], 0 where nothing is seen; and float [batch], the part of
      the loss that these keys have.
    """
    return _masks(ramp, distance, spans, filled, num_queries)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _masks(
    ramp: int, distance: jax.Array, spans: jax.Array, filled: jax.Array, num_queries: jax.Array
) -> tuple[jax.Array, jax.Array]:
    visible = filled[:, None] & (distance >= 1)
    soft = ramp_mask(spans[:, None], distance, ramp)
    soft = jnp.where(visible, soft, jnp.zeros_like(soft))
    counted = visible & _is_query(distance, num_queries)
    return soft, ramp_loss(spans[:, None], distance, soft, counted, ramp, distance.shape[1])


def _is_query(distance: jax.Array, num_queries: jax.Array) -> jax.Array:
    """bool [batch, queries, 1]: no padding."""
    length = distance.shape[1]
    return jnp.arange(length, dtype=jnp.int32)[None, :, None] < num_queries[:, None, None]


def _masks_forward(ramp: int, *arguments: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
    return _masks(ramp, *arguments), arguments


def _masks_backward(
    ramp: int, residuals: tuple[jax.Array, ...], gradients: tuple[jax.Array, jax.Array]
) -> tuple[None, jax.Array, None, None]:
    # Computed again from what is small: JAX's own rule keeps several arrays of the size of the masks.
    distance, spans, filled, num_queries = residuals
    to_soft, to_loss = gradients
    visible = filled[:, None] & (distance >= 1)
    remaining = spans[:, None] - distance.astype(spans.dtype)
    place = remaining / ramp + 1
    on_ramp = (place > 0) & (place < 1)
    # At both ends half, as the derivatives of minimum and maximum are.
    at_end = (place == 0) | (place == 1)
    to_place = jnp.where(on_ramp, to_soft, jnp.where(at_end, 0.5 * to_soft, 0.0))
    by_mask = (jnp.where(visible, to_place, 0.0) / ramp).sum(axis=1)
    falling = visible & on_ramp & _is_query(distance, num_queries)
    share = to_loss / (ramp * distance.shape[1])
    by_loss = jnp.where(falling, share[:, None, None], 0.0).sum(axis=1)
    return None, by_mask + by_loss, None, None


_masks.defvjp(_masks_forward, _masks_backward)
