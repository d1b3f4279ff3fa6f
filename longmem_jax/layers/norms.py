"""Normalisation layers, computed in float32 (float64 for float64 inputs)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.layers import initializers

KINDS = ('layernorm', 'rmsnorm', 'centred_rmsnorm')


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last axis.

    Attributes:
      kind: 'layernorm' (scale and bias), 'rmsnorm' (scale only), or 'centred_rmsnorm' (the scale is
        stored as what it differs from 1 by).
      epsilon: added to the variance or the mean square.
    """

    kind: str
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `x` [..., width]; same shape and dtype."""
        x32 = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        shape = (1,) * (x.ndim - 1) + (x.shape[-1],)
        axes = initializers.with_axes
        centred = self.kind == 'centred_rmsnorm'
        init = nn.initializers.zeros if centred else nn.initializers.ones
        scale = self.param('scale', axes(init, ('norm',)), (x.shape[-1],))
        scale = scale + 1 if centred else scale
        if self.kind == 'layernorm':
            x32 = x32 - x32.mean(axis=-1, keepdims=True)
        x32 = x32 * jax.lax.rsqrt(
            jnp.mean(x32 * x32, axis=-1, keepdims=True) + jnp.asarray(self.epsilon, x32.dtype)
        )
        x32 = x32 * scale.reshape(shape).astype(x32.dtype)
        if self.kind == 'layernorm':
            bias = self.param('bias', axes(nn.initializers.zeros, ('norm',)), (x.shape[-1],))
            x32 = x32 + bias.reshape(shape).astype(x32.dtype)
        return x32.astype(x.dtype)


class BatchNorm(nn.Module):
    """Batch normalisation over valid tokens; running averages are parameters without gradient.

    In training, batch statistics come from all tokens of the segment, later ones included, and are
    returned; the training step averages them into `running_mean` and `running_var`.

    Attributes:
      epsilon: added to the variance.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: jax.Array, counted: jax.Array, *, train: bool
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Normalises.

        Args:
          x: [tokens, width].
          counted: bool [tokens].
          train: use batch statistics, not the running averages.

        Returns:
          Normalised `x`; path of each running average to its value in this batch (empty in evaluation).
        """
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        width = (x.shape[-1],)
        scale, bias = self.param('scale', ones, width), self.param('bias', zeros, width)
        mean, variance = (
            self.param('running_mean', zeros, width),
            self.param('running_var', ones, width),
        )
        statistics = {}
        if train:
            count = jnp.maximum(counted.sum(), 1).astype(x.dtype)
            masked = jnp.where(counted[:, None], x, jnp.zeros_like(x))
            batch_mean = masked.sum(axis=0) / count
            difference = jnp.where(counted[:, None], x - batch_mean[None], jnp.zeros_like(x))
            squares = jnp.square(difference).sum(axis=0)
            unbiased = squares / jnp.maximum(count - 1, 1)
            path, has_tokens = '/'.join(self.path), counted.any()
            statistics = {
                f'{path}/running_mean': jnp.where(has_tokens, batch_mean, mean),
                f'{path}/running_var': jnp.where(has_tokens, unbiased, variance),
            }
            mean, variance = batch_mean, squares / count
        normalized = (x - mean[None]) * jax.lax.rsqrt(variance + self.epsilon)[None]
        y = normalized * scale.astype(x.dtype)[None] + bias.astype(x.dtype)[None]
        return y, jax.lax.stop_gradient(statistics)
