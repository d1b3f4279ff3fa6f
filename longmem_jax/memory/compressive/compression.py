"""Many vectors into one: the compression functions of the Compressive Transformer, and their losses.

Rae et al. (2020), Sec. 3.1-3.2. Groups of `rate` neighbours become one vector, except for 'most_used',
which keeps the 1 in `rate` vectors that were attended to most.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.layers.attention import attend
from longmem_jax.layers.attention_rules import Rules

COMPRESSIONS = ('convolution', 'mean', 'max', 'most_used')
RECONSTRUCTIONS = ('none', 'attention', 'autoencoding')


def most_used(rows: jax.Array, usage: jax.Array, groups: jax.Array, rate: int) -> jax.Array:
    """The `groups` vectors with the most attention, in their order.

    Args:
      rows: [batch, n, d_model]; the first `groups * rate` of each lane count.
      usage: float [batch, n], attention received.
      groups: int32 [batch].
      rate: static.

    Returns:
      [batch, n // rate, d_model]; the first `groups` of each lane count.
    """
    place = jnp.arange(rows.shape[1], dtype=jnp.int32)[None]
    lowest = jnp.asarray(-jnp.inf, usage.dtype)
    usage = jnp.where(place < groups[:, None] * rate, usage, lowest)
    rank = jnp.argsort(jnp.argsort(-usage, axis=1, stable=True), axis=1)
    order = jnp.argsort(rank >= groups[:, None], axis=1, stable=True)
    order = order[:, : rows.shape[1] // rate]
    return jnp.take_along_axis(rows, order[..., None], axis=1)


class Compressor(nn.Module):
    """One compression function with its parameters.

    Attributes:
      kind: one of `COMPRESSIONS`; 'convolution' is learned, kernel and stride are `rate`.
      rate: vectors per compressed vector.
      d_model: width.
      decodes: own the decoder of the auto-encoding loss.
      init_std: of kernels.
    """

    kind: str
    rate: int
    d_model: int
    decodes: bool
    init_std: float

    def setup(self):
        axes = nn.with_logical_partitioning
        normal = nn.initializers.normal(self.init_std)
        if self.kind == 'convolution':
            shape = (self.rate, self.d_model, self.d_model)
            self.kernel = self.param('kernel', axes(normal, (None, None, 'embed')), shape)
            self.bias = self.param('bias', nn.initializers.zeros, (self.d_model,))
        if self.decodes:
            shape = (self.d_model, self.rate, self.d_model)
            self.decoder = self.param('decoder', axes(normal, ('embed', None, None)), shape)

    def __call__(self, rows: jax.Array, usage: Any = None, groups: Any = None) -> jax.Array:
        """Compresses [batch, groups * rate, d_model] to [batch, groups, d_model].

        `usage` (float [batch, groups * rate]) and `groups` (int32 [batch], groups that count) are
        for 'most_used'.
        """
        if self.kind == 'most_used':
            return most_used(rows, usage, groups, self.rate)
        batch, length, width = rows.shape
        grouped = rows.reshape(batch, length // self.rate, self.rate, width)
        if self.kind == 'mean':
            return grouped.mean(axis=2)
        if self.kind == 'max':
            return grouped.max(axis=2)
        flat = grouped.reshape(batch, -1, self.rate * width)
        kernel = self.kernel.astype(rows.dtype).reshape(-1, self.d_model)
        return flat @ kernel + self.bias.astype(rows.dtype).reshape(1, 1, -1)

    def decode(self, compressed: jax.Array) -> jax.Array:
        """Guesses the vectors behind [batch, groups, d_model]: [batch, groups * rate, d_model]."""
        kernel = self.decoder.astype(compressed.dtype).reshape(self.d_model, -1)
        batch, groups, width = compressed.shape
        return (compressed @ kernel).reshape(batch, groups * self.rate, width)


def attention_reconstruction(
    queries: jax.Array,
    old: tuple[jax.Array, jax.Array],
    new: tuple[jax.Array, jax.Array],
    num_old: jax.Array,
    num_new: jax.Array,
    num_queries: jax.Array,
    scale: float,
) -> jax.Array:
    """Squared difference of content attention to old and to compressed vectors (Algorithm 2).

    Attention without mask or positions; the mean over lanes, heads, queries and channels.

    Args:
      queries: [batch, heads, queries, head_dim].
      old, new: (keys, values), [batch, kv_heads, n, head_dim] each.
      num_old, num_new: int32 [batch], how many of them, from the first, count; lanes without any
        add nothing.
      num_queries: int32 [batch], likewise.
      scale: factor of the scores.
    """

    def read(keys, values, number):
        place = jnp.arange(keys.shape[2], dtype=jnp.int32)
        mask = (place[None] < number[:, None])[:, None, None]
        return attend(queries, keys, values, Rules(offset=0, mask=mask, causal=False, scale=scale))

    wide = jnp.promote_types(queries.dtype, jnp.float32)
    difference = read(*old, num_old).astype(wide) - read(*new, num_new).astype(wide)
    place = jnp.arange(queries.shape[2], dtype=jnp.int32)
    counts = (place[None] < num_queries[:, None]) & (num_new > 0)[:, None]
    square = jnp.square(difference)
    return jnp.where(counts[:, None, :, None], square, jnp.zeros_like(square)).mean()


def autoencoding(rows: jax.Array, decoded: jax.Array, number: jax.Array) -> jax.Array:
    """Squared difference of vectors and their decoded compression, mean over lanes and vectors.

    Args:
      rows, decoded: [batch, n, d_model].
      number: int32 [batch], how many of them, from the first, count.
    """
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    square = jnp.square(rows.astype(wide) - decoded.astype(wide))
    counts = jnp.arange(rows.shape[1], dtype=jnp.int32)[None] < number[:, None]
    return jnp.where(counts[..., None], square, jnp.zeros_like(square)).mean()
