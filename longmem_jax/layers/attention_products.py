"""The matrix products of attention, with backward passes written for where the time goes.

Of the weights only exponentials are kept for the backward pass, and nothing as large as the scores
is ever transposed. Reverse-mode derivatives only (`jax.custom_vjp`).
"""

import jax
import jax.numpy as jnp

from longmem_jax.layers.attention_rules import NEVER

EPSILON = 1e-8  # added to the sum of softly masked weights, in units of their softmax


def wide_type(array: jax.Array) -> jnp.dtype:
    """float32, or float64 for float64: what scores, weights and spans are computed in."""
    return jnp.promote_types(array.dtype, jnp.float32)


def _product(spec, left, right):
    """An einsum in the type of `right` that adds up in float32 at least."""
    return jnp.einsum(
        spec, left.astype(right.dtype), right, preferred_element_type=wide_type(right)
    )


@jax.custom_vjp
def dot(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Inner products of queries with keys, or with rows of a table that lanes and heads share.

    Args:
      queries: [batch, heads, queries, head_dim].
      keys: [batch, heads, keys, head_dim] or [rows, head_dim], of the same type.

    Returns:
      [batch, heads, queries, keys or rows], float32 at least.
    """
    return _product('bhqd,bhkd->bhqk' if keys.ndim == 4 else 'bhqd,kd->bhqk', queries, keys)


def _dot_forward(queries, keys):
    return dot(queries, keys), (queries, keys)


def _dot_backward(kept, gradient):
    queries, keys = kept
    shared = keys.ndim == 2
    to_queries = _product('bhqk,kd->bhqd' if shared else 'bhqk,bhkd->bhqd', gradient, keys)
    # The small factor stands left and the small result is transposed, not the scores.
    gradient = gradient.astype(keys.dtype)
    to_keys = _product('bhqd,bhqk->dk' if shared else 'bhqd,bhqk->bhdk', queries, gradient)
    return to_queries.astype(queries.dtype), jnp.swapaxes(to_keys, -1, -2).astype(keys.dtype)


dot.defvjp(_dot_forward, _dot_backward)


@jax.custom_vjp
def mix(
    scores: jax.Array,
    values: jax.Array,
    seen: jax.Array,
    soft: jax.Array | None,
    kept: jax.Array | None,
) -> jax.Array:
    """Values weighted by a softmax under a soft mask, normalised again.

    With weights w = softmax(scores that are seen under soft > 0) the result is that of w * soft,
    divided by its sum + 1e-8. Rows that see nothing give zeros.

    Args:
      scores: [batch, heads, queries, keys], float32 at least and finite.
      values: [batch, heads, keys, head_dim].
      seen: bool, broadcastable to scores.
      soft: in [0, 1], typed like scores, broadcastable to them; None = 1.
      kept: dropout of the weights, 0 or 1 / (1 - rate), shaped like scores; None = none.

    Returns:
      [batch, heads, queries, head_dim] in the type of `values`.
    """
    return _mix_forward(scores, values, seen, soft, kept)[0]


def _times(weights, factor):
    return weights if factor is None else weights * factor.astype(weights.dtype)


def _mix_forward(scores, values, seen, soft, kept):
    if soft is not None:
        seen = seen & (soft > 0)
    scores = jnp.where(seen, scores, jnp.asarray(NEVER, scores.dtype))
    highest = jnp.maximum(scores.max(axis=-1, keepdims=True), NEVER / 2)
    powers = jnp.exp(scores - highest)
    weights = _times(powers, soft)
    total = weights.sum(axis=-1, keepdims=True) + EPSILON * powers.sum(axis=-1, keepdims=True)
    inverse = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), jnp.zeros_like(total))
    # Normalised behind the product, where there is less to divide.
    out = _product('bhqk,bhkd->bhqd', _times(weights, kept), values) * inverse
    return out.astype(values.dtype), (powers.astype(values.dtype), inverse, values, soft, kept)


def _mix_backward(residuals, gradient):
    powers, inverse, values, soft, kept = residuals
    narrow, wide = values.dtype, inverse.dtype
    gradient = (gradient.astype(wide) * inverse).astype(narrow)
    powers = powers.astype(wide)
    weights = _times(powers, soft)
    dropped = _times(weights, kept).astype(narrow)
    to_values = _product('bhqd,bhqk->bhdk', gradient, dropped)
    to_weights = _times(_product('bhqd,bhkd->bhqk', gradient, values), kept)
    level = (weights * to_weights).sum(axis=-1, keepdims=True) * inverse
    to_powers = powers * (to_weights - level)
    to_soft = None
    if soft is not None:
        axes = [axis for axis in range(soft.ndim) if soft.shape[axis] == 1]
        to_soft = to_powers.sum(axis=axes, keepdims=True)
    # The derivative of the 1e-8 is left out: it is that small.
    to_values = jnp.swapaxes(to_values, -1, -2).astype(narrow)
    return _times(to_powers, soft), to_values, None, to_soft, None


mix.defvjp(_mix_forward, _mix_backward)
