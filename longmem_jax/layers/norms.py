"""Normalisation layers, computed in float32 (float64 for float64 inputs)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.layers import initializers

KINDS = ('layernorm', 'rmsnorm')


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last axis.

    Attributes:
      kind: 'layernorm' (scale and bias) or 'rmsnorm' (scale only).
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
        scale = self.param('scale', axes(nn.initializers.ones, ('norm',)), (x.shape[-1],))
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
