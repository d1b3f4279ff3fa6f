"""Dropout of attention weights, as a mask or as a factor that is the same for every memory size."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class WeightDropout:
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


def factor_by_column(
    rate: float,
    keys: jax.Array,
    scores: jax.Array,
    size: int,
    chunk: int,
    *,
    newest_first: bool = False,
) -> jax.Array:
    """Dropout of weights as a factor, 0 or 1 / (1 - rate); every size gives a column the same factor.

    Drawn per lane and in chunks of columns, so that numbers depend neither on how lanes are
    sharded nor on the size that a device chooses, nor on whether columns are read in blocks.

    Args:
      rate: share of weights dropped.
      keys: random keys [batch].
      scores: [batch, heads, queries, size + other columns].
      size: columns of the memory, which come first.
      chunk: columns drawn together: the smallest size.
      newest_first: smaller sizes drop the first columns of the memory, not the last.

    Returns:
      Shape and dtype of `scores`.
    """
    memory = memory_factor(rate, keys, scores[..., :size], chunk)
    memory = memory[..., ::-1] if newest_first else memory
    rest = rest_factor(rate, keys, scores[..., size:])
    return jnp.concatenate([memory, rest], axis=-1)


def memory_factor(
    rate: float, keys: jax.Array, scores: jax.Array, chunk: int, first: int | jax.Array = 0
) -> jax.Array:
    """The factor of `factor_by_column` for columns of the memory, from chunk `first` on.

    Args:
      rate, keys, chunk: as there.
      scores: [batch, heads, queries, columns] of these columns.
      first: number of the chunk that begins with the first column, int or int32 scalar.

    Returns:
      Shape and dtype of `scores`.
    """
    heads, queries, columns = scores.shape[1:]
    numbers = jnp.arange(-(-columns // chunk), dtype=jnp.uint32) + jnp.asarray(first, jnp.uint32)

    def draw_lane(key: jax.Array) -> jax.Array:
        memory, _ = jax.random.split(key)
        chunks = jax.vmap(lambda number: jax.random.fold_in(memory, number))(numbers)
        kept = jax.vmap(lambda key: _draw(key, rate, (heads, queries, chunk)))(chunks)
        return jnp.moveaxis(kept, 0, 2).reshape(heads, queries, -1)[..., :columns]

    return as_factor(jax.vmap(draw_lane)(keys), rate, scores.dtype)


def rest_factor(rate: float, keys: jax.Array, scores: jax.Array) -> jax.Array:
    """The factor of `factor_by_column` for the other columns, shaped and typed like their `scores`."""

    def draw_lane(key: jax.Array) -> jax.Array:
        _, rest = jax.random.split(key)
        return _draw(rest, rate, scores.shape[1:])

    return as_factor(jax.vmap(draw_lane)(keys), rate, scores.dtype)


def _draw(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """bool `shape`: which weights are kept."""
    return jax.random.bernoulli(key, 1 - rate, shape)
