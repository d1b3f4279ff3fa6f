"""A softmax over keys that come in blocks, with a running maximum (Milakov and Gimelshein, 2018)."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.weight_dropout import WeightDropout
from longmem_jax.kernels.attention_products import NEVER, float32_type


class Sums(flax.struct.PyTreeNode):
    """What the blocks so far add up to.

    Attributes:
      highest: [batch, heads, queries], the highest score, detached: the result does not depend on it.
      total: [batch, heads, queries], sum of the weights.
      mixed: [batch, heads, queries, head_dim], sum of the weighted values.
    """

    highest: jax.Array
    total: jax.Array
    mixed: jax.Array

    def add(
        self,
        scores: jax.Array,
        seen: jax.Array | None,
        values: jax.Array,
        dropout: WeightDropout | None = None,
    ) -> 'Sums':
        """The sums with one more block of keys.

        Args:
          scores: [batch, heads, queries, block], float32 at least.
          seen: bool, broadcastable to the scores; None = all.
          values: [batch, kv_heads, block, head_dim]; head h mixes those of head h // group.
          dropout: of the weights of this block; None = none.
        """
        if seen is not None:
            scores = jnp.where(seen, scores, jnp.asarray(NEVER, scores.dtype))
        highest = jnp.maximum(self.highest, jax.lax.stop_gradient(scores.max(axis=-1)))
        weights = jnp.exp(scores - highest[..., None])  # 0 where not seen: `highest` begins above
        decay = jnp.exp(self.highest - highest)
        total = self.total * decay + weights.sum(axis=-1)
        if dropout is not None:
            weights = dropout.apply(weights)
        added = _mix(weights.astype(values.dtype), values, self.mixed.dtype)
        return Sums(highest, total, self.mixed * decay[..., None] + added)

    def result(self, dtype: jnp.dtype) -> jax.Array:
        """[batch, heads, queries, head_dim] in `dtype`; queries that saw no key give zeros."""
        total = self.total[..., None]
        nothing = total == 0
        out = self.mixed / jnp.where(nothing, jnp.ones_like(total), total)
        return jnp.where(nothing, jnp.zeros_like(out), out).astype(dtype)


def no_sums(queries: jax.Array, width: int) -> Sums:
    """Sums of no keys, for queries [batch, heads, queries, head_dim] and values of `width`."""
    shape, dtype = queries.shape[:3], float32_type(queries)
    zeros = jnp.zeros(shape, dtype)
    return Sums(jnp.full_like(zeros, NEVER / 2), zeros, jnp.zeros((*shape, width), dtype))


def _mix(weights: jax.Array, values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[batch, heads, queries, head_dim] in `dtype`."""
    batch, heads, num_queries, num_keys = weights.shape
    grouped = weights.reshape(batch, values.shape[1], -1, num_keys)
    out = jnp.einsum('bhqk,bhkd->bhqd', grouped, values, preferred_element_type=dtype)
    return out.reshape(batch, heads, num_queries, values.shape[3])
