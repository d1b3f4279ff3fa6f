"""The matrix products of attention, and a softmax of which only the exponentials are kept."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

NEVER = -1e30  # a masked-out score; finite, so that gradients stay finite
EPSILON = 1e-8  # added to the sum of softly masked weights, in units of their softmax


def float32_type(array: jax.Array) -> jnp.dtype:
    """float32, or float64 for float64: the dtype of scores, weights and spans."""
    return jnp.promote_types(array.dtype, jnp.float32)


def _product(spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """An einsum with inputs in the dtype of `right`, accumulated and returned in float32 at least."""
    return jnp.einsum(
        spec, left.astype(right.dtype), right, preferred_element_type=float32_type(right)
    )


def dot(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Inner products of queries with keys, or with vectors of a table shared by batch and heads.

    Args:
      queries: [batch, heads, queries, head_dim].
      keys: [batch, heads, keys, head_dim] or [vectors, head_dim], of the same dtype.

    Returns:
      [batch, heads, queries, keys or vectors], float32 at least.
    """
    return _product('bhqd,bhkd->bhqk' if keys.ndim == 4 else 'bhqd,kd->bhqk', queries, keys)


def _times(weights: jax.Array, factor: jax.Array | None) -> jax.Array:
    """`weights` times `factor`; None = 1."""
    return weights if factor is None else weights * factor.astype(weights.dtype)


@jax.custom_jvp
def mix(
    scores: jax.Array,
    values: jax.Array,
    seen: jax.Array,
    soft: jax.Array | None,
    dropout: jax.Array | None,
) -> jax.Array:
    """Values weighted by a softmax times a soft mask, renormalised: Eq. 4 of Expire-Span.

    With w = softmax(scores that are seen and have soft > 0), the weights are w * soft / (sum(w * soft)
    + 1e-8), without soft mask just w. Queries that see nothing give zeros.

    Args:
      scores: [batch, heads, queries, keys], float32 at least and finite.
      values: [batch, heads, keys, head_dim].
      seen: bool, broadcastable to scores.
      soft: in [0, 1], in the dtype of the scores, broadcastable to them; None = 1.
      dropout: factor on the weights, shaped like scores: 0 or 1 / (1 - rate), or bool; None = none.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `values`.
    """
    return _mix(scores, values, seen, soft, dropout)[0]


def _mix(
    scores: jax.Array,
    values: jax.Array,
    seen: jax.Array,
    soft: jax.Array | None,
    dropout: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The result of `mix`, the exponentials of the scores, and one over the sum of the weights."""
    if soft is not None:
        seen = seen & (soft > 0)
    scores = jnp.where(seen, scores, jnp.asarray(NEVER, scores.dtype))
    highest = scores.max(axis=-1, keepdims=True)
    if soft is None:
        # CPUs run the maximum and the exponentials as one if nothing else reads the maximum. So whether
        # a query sees a key is told by the mask; the exponentials of one that sees none are 1.
        weights = exponentials = jnp.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True)
        some = seen.any(axis=-1, keepdims=True)
    else:
        exponentials = jnp.exp(scores - jnp.maximum(highest, NEVER / 2))
        weights = exponentials * soft
        total = weights.sum(axis=-1, keepdims=True)
        total = total + EPSILON * exponentials.sum(axis=-1, keepdims=True)
        some = total > 0
    inverse = jnp.where(some, 1.0 / jnp.where(some, total, 1.0), jnp.zeros_like(total))
    # Normalised after the product, where there is less to divide.
    out = _product('bhqk,bhkd->bhqd', _times(weights, dropout), values) * inverse
    return out.astype(values.dtype), exponentials, inverse


@mix.defjvp
def _mix_derivative(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The backward pass follows from it: it keeps the exponentials alone, in the dtype of the values."""
    _, values, _, soft, dropout = primals
    of_scores, of_values, _, of_soft, _ = tangents
    out, exponentials, inverse = _mix(*primals)
    exponentials = exponentials.astype(values.dtype).astype(inverse.dtype)
    weights, moved = _times(exponentials, soft), _times(of_scores, soft)
    if soft is not None:
        moved = moved + of_soft  # the only use of it: its gradient is one sum over the heads
    moved = exponentials * moved
    # The derivative of the 1e-8 term is negligible and left out.
    total = moved.sum(axis=-1, keepdims=True)
    if soft is None:
        mean = out.astype(inverse.dtype) * total
    else:
        # Memories with soft masks are mostly run again for the backward pass: it needs no result here.
        moved = moved - weights * (total * inverse)
        mean = jnp.zeros_like(inverse)
    added = (
        _product('bhqk,bhkd->bhqd', _times(moved, dropout), values)
        + _product('bhqk,bhkd->bhqd', _times(weights, dropout), of_values)
        - mean
    )
    # Without the choice, XLA for CPUs makes one slow loop of the sum and what is computed of it.
    added = jnp.where(inverse > 0, added, jnp.zeros_like(added)) * inverse
    return out, added.astype(out.dtype)


def weights_of(scores: jax.Array, seen: jax.Array, soft: jax.Array | None) -> jax.Array:
    """The weights of `mix`, [batch, heads, queries, keys], for inspection; without gradient."""
    if soft is not None:
        seen = seen & (soft > 0)
    scores = jnp.where(seen, scores, jnp.asarray(NEVER, scores.dtype))
    exponentials = jnp.where(seen, jnp.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    weights = _times(exponentials, soft)
    total = weights.sum(axis=-1, keepdims=True) + EPSILON * exponentials.sum(axis=-1, keepdims=True)
    return jax.lax.stop_gradient(weights / jnp.where(total > 0, total, 1.0))


class RunningMix(flax.struct.PyTreeNode):
    """`mix` over keys that come in blocks, with a running maximum (Milakov and Gimelshein, 2018).

    Attributes:
      highest: [batch, heads, queries, 1], the highest score so far, detached.
      total: [batch, heads, queries, 1], sum of the softly masked exponentials.
      exponentials: [batch, heads, queries, 1], their sum without the soft mask.
      mixed: [batch, heads, queries, head_dim], sum of the weighted values.
    """

    highest: jax.Array
    total: jax.Array
    exponentials: jax.Array
    mixed: jax.Array

    def add(
        self, scores: jax.Array, values: jax.Array, soft: jax.Array, dropout: jax.Array | None
    ) -> 'RunningMix':
        """The sums with one more block of keys; the arguments are those of `mix`."""
        scores = jnp.where(soft > 0, scores, jnp.asarray(NEVER, scores.dtype))
        highest = jnp.maximum(self.highest, scores.max(axis=-1, keepdims=True))
        highest = jax.lax.stop_gradient(highest)  # the result does not depend on it
        decay = jnp.exp(self.highest - highest)
        exponentials = jnp.exp(scores - highest)
        weights = exponentials * soft
        added = _product('bhqk,bhkd->bhqd', _times(weights, dropout), values)
        return RunningMix(
            highest,
            self.total * decay + weights.sum(axis=-1, keepdims=True),
            self.exponentials * decay + exponentials.sum(axis=-1, keepdims=True),
            self.mixed * decay + added,
        )

    def result(self, dtype: jnp.dtype) -> jax.Array:
        """What `mix` returns for all keys at once, [batch, heads, queries, head_dim] in `dtype`."""
        total = self.total + EPSILON * jax.lax.stop_gradient(self.exponentials)
        nothing = total == 0
        out = self.mixed / jnp.where(nothing, jnp.ones_like(total), total)
        return jnp.where(nothing, jnp.zeros_like(out), out).astype(dtype)


def empty_mix(queries: jax.Array) -> RunningMix:
    """`RunningMix` of no keys, for queries [batch, heads, queries, head_dim]."""
    dtype = float32_type(queries)
    zeros = jnp.zeros((*queries.shape[:3], 1), dtype)
    return RunningMix(
        jnp.full_like(zeros, NEVER / 2), zeros, zeros, jnp.zeros(queries.shape, dtype)
    )
