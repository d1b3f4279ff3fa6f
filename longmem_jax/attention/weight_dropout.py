"""Dropout of attention weights, as a mask or as a factor that is the same for every memory size."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


class WeightDropout(flax.struct.PyTreeNode):
    """Dropout of the weights of one attention.

    Attributes:
      key: a random key.
      rate: share of weights dropped, above 0 and static.
    """

    key: jax.Array
    rate: float = flax.struct.field(pytree_node=False)

    def kept(self, shape: tuple[int, ...]) -> jax.Array:
        """bool `shape`: which weights are kept."""
        return jax.random.bernoulli(self.key, 1.0 - self.rate, shape)

    def apply(self, weights: jax.Array) -> jax.Array:
        """Zeros where dropped, else weights / (1 - rate); the backward pass keeps one bool each."""
        kept = self.kept(weights.shape)
        return jnp.where(kept, weights / (1.0 - self.rate), jnp.zeros_like(weights))

    def factor(self, scores: jax.Array) -> jax.Array:
        """0 or 1 / (1 - rate), in the shape and dtype of `scores`."""
        return as_factor(self.kept(scores.shape), self.rate, scores.dtype)

    def in_block(self, number: jax.Array) -> 'WeightDropout':
        """The dropout of block `number` (int32 scalar) of the keys."""
        return self.replace(key=jax.random.fold_in(self.key, number))


def as_factor(kept: jax.Array, rate: float, dtype: jnp.dtype) -> jax.Array:
    """`kept`, a bool array, as a factor in `dtype`: 0 or 1 / (1 - rate)."""
    return kept.astype(dtype) / jnp.asarray(1.0 - rate, dtype)


def draw(module: Any, train: bool) -> WeightDropout | None:
    """Dropout at the rate of a linen module's settings; None = no dropout.

    Args:
      module: bound, with `settings`; its random stream 'dropout' is used.
      train: False = no dropout.
    """
    rate = module.settings.attention_dropout if train else 0.0
    return WeightDropout(module.make_rng('dropout'), rate) if rate else None


def factor_by_number(
    rate: float, keys: jax.Array, numbers: jax.Array, scores: jax.Array
) -> jax.Array:
    """Dropout of weights as a factor, 0 or 1 / (1 - rate); the same for every column of a number.

    Drawn per lane and column, so that it depends neither on how lanes are sharded nor on the size that a
    device chooses, nor on whether columns are read in blocks.

    Args:
      rate: share of weights dropped.
      keys: random keys [batch].
      numbers: int32 [columns], different ones.
      scores: [batch, heads, queries, columns].

    Returns:
      Shape and dtype of `scores`.
    """

    def draw_lane(key: jax.Array) -> jax.Array:
        by_column = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
        draw = lambda key: jax.random.bernoulli(key, 1 - rate, scores.shape[1:3])  # noqa: E731
        return jnp.moveaxis(jax.vmap(draw)(by_column), 0, 2)

    return as_factor(jax.vmap(draw_lane)(keys), rate, scores.dtype)
