"""The compression functions of the Compressive Transformer, and their losses.

Rae et al. (2020), Sec. 3.1-3.2. Groups of `rate` neighbours become one vector; 'most_used' instead keeps
the most attended 1 in `rate` vectors.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend
from longmem_jax.attention.rules import Rules
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.rows_product import rows_times

COMPRESSIONS = ('convolution', 'mean', 'max', 'most_used')
RECONSTRUCTIONS = ('none', 'attention', 'autoencoding')


def most_used(vectors: jax.Array, usage: jax.Array, groups: jax.Array, rate: int) -> jax.Array:
    """The `groups` vectors that received the most attention, in their order.

    Args:
      vectors: [batch, n, d_model]; the first `groups * rate` of each lane (batch row) are filled.
      usage: float [batch, n], attention received.
      groups: int32 [batch].
      rate: static.

    Returns:
      [batch, n // rate, d_model]; the first `groups` of each lane are filled.
    """
    position = jnp.arange(vectors.shape[1], dtype=jnp.int32)[None]
    lowest = jnp.asarray(-jnp.inf, usage.dtype)
    usage = jnp.where(position < groups[:, None] * rate, usage, lowest)
    rank = jnp.argsort(jnp.argsort(-usage, axis=1, stable=True), axis=1)
    order = jnp.argsort(rank >= groups[:, None], axis=1, stable=True)
    order = order[:, : vectors.shape[1] // rate]
    return jnp.take_along_axis(vectors, order[..., None], axis=1)


class Compressor(nn.Module):
    """One compression function with its parameters.

    Attributes:
      kind: one of `COMPRESSIONS`; 'convolution' is learned, with kernel and stride of `rate`.
      rate: vectors per compressed vector.
      settings: sizes of the model.
      decodes: has the decoder of the auto-encoding loss.
    """

    kind: str
    rate: int
    settings: ModelSettings
    decodes: bool

    def setup(self) -> None:
        axes = initializers.with_axes
        width = self.settings.d_model
        if self.kind == 'convolution':
            init = axes(initializers.kernel(self.settings, inputs=2), (None, None, 'embed'))
            self.kernel = self.param('kernel', init, (self.rate, width, width))
            self.bias = self.param('bias', nn.initializers.zeros, (width,))
        if self.decodes:
            init = axes(initializers.kernel(self.settings), ('embed', None, None))
            self.decoder = self.param('decoder', init, (width, self.rate, width))

    def __call__(
        self,
        vectors: jax.Array,
        usage: jax.Array | None = None,
        groups: jax.Array | None = None,
    ) -> jax.Array:
        """Compresses [batch, groups * rate, d_model] to [batch, groups, d_model].

        `usage` (float [batch, groups * rate]) and `groups` (int32 [batch], number of filled groups)
        are for 'most_used'.
        """
        if self.kind == 'most_used':
            assert usage is not None and groups is not None
            return most_used(vectors, usage, groups, self.rate)
        batch, length, width = vectors.shape
        grouped = vectors.reshape(batch, length // self.rate, self.rate, width)
        if self.kind == 'mean':
            return grouped.mean(axis=2)
        if self.kind == 'max':
            return grouped.max(axis=2)
        flat = grouped.reshape(batch, -1, self.rate * width)
        kernel = self.kernel.astype(vectors.dtype).reshape(-1, width)
        return rows_times(flat, kernel) + self.bias.astype(vectors.dtype).reshape(1, 1, -1)

    def decode(self, compressed: jax.Array) -> jax.Array:
        """Reconstructs [batch, groups * rate, d_model] from the compressed [batch, groups, d_model]."""
        batch, groups, width = compressed.shape
        kernel = self.decoder.astype(compressed.dtype).reshape(width, -1)
        return rows_times(compressed, kernel).reshape(batch, groups * self.rate, width)


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

    Attention without causal mask or positions; the mean over lanes, heads, queries and channels.

    Args:
      queries: [batch, heads, queries, head_dim].
      old, new: (keys, values), [batch, kv_heads, n, head_dim] each.
      num_old, num_new: int32 [batch], number of filled ones, which come first; lanes without any
        contribute nothing.
      num_queries: int32 [batch], likewise.
      scale: factor of the scores.
    """

    def read(keys: jax.Array, values: jax.Array, num_keys: jax.Array) -> jax.Array:
        position = jnp.arange(keys.shape[2], dtype=jnp.int32)
        mask = (position[None] < num_keys[:, None])[:, None, None]
        return attend(queries, keys, values, Rules(offset=0, mask=mask, causal=False, scale=scale))

    dtype = jnp.promote_types(queries.dtype, jnp.float32)
    difference = read(*old, num_old).astype(dtype) - read(*new, num_new).astype(dtype)
    position = jnp.arange(queries.shape[2], dtype=jnp.int32)
    counts = (position[None] < num_queries[:, None]) & (num_new > 0)[:, None]
    square = jnp.square(difference)
    return jnp.where(counts[:, None, :, None], square, jnp.zeros_like(square)).mean()


def autoencoding(vectors: jax.Array, decoded: jax.Array, num_vectors: jax.Array) -> jax.Array:
    """Squared difference of vectors and their decoded compression, mean over lanes and vectors.

    Args:
      vectors, decoded: [batch, n, d_model].
      num_vectors: int32 [batch], number of filled ones, which come first.
    """
    dtype = jnp.promote_types(vectors.dtype, jnp.float32)
    square = jnp.square(vectors.astype(dtype) - decoded.astype(dtype))
    counts = jnp.arange(vectors.shape[1], dtype=jnp.int32)[None] < num_vectors[:, None]
    return jnp.where(counts[..., None], square, jnp.zeros_like(square)).mean()
