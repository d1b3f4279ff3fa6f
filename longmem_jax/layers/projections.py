"""Linear maps between [batch, length, d_model] and heads-first [batch, heads, length, head_dim]."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class HeadsIn(nn.Module):
    """[batch, length, d_model] to [batch, num_heads, length, head_dim].

    Attributes:
      num_heads, head_dim: sizes of the result.
      dtype: compute dtype; the kernel [d_model, heads, head_dim] is float32.
      kernel_init: initialiser of the kernel.
      axis: logical axis of the heads; 'kv_heads' where fewer of them serve several queries'.
      bias: whether there is one, [heads, head_dim].
    """

    num_heads: int
    head_dim: int
    dtype: Any
    kernel_init: Callable
    axis: str = 'heads'
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Projects `x`."""
        width = x.shape[-1]
        init = nn.with_logical_partitioning(self.kernel_init, ('embed', self.axis, 'head_dim'))
        kernel = self.param('kernel', init, (width, self.num_heads, self.head_dim))
        flat = kernel.astype(self.dtype).reshape(width, -1)
        rows = (x.astype(self.dtype) @ flat).reshape(*x.shape[:-1], self.num_heads, self.head_dim)
        if self.bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, (self.axis, 'head_dim'))
            bias = self.param('bias', zeros, (self.num_heads, self.head_dim))
            rows = rows + bias.astype(self.dtype)[None, None]
        return jnp.swapaxes(rows, 1, 2)


class HeadsOut(nn.Module):
    """[batch, num_heads, length, head_dim] to [batch, length, d_model].

    Attributes:
      d_model: width of the result.
      dtype: compute dtype; the kernel [heads, head_dim, d_model] is float32.
      kernel_init: initialiser of the kernel.
      bias: whether there is one, [d_model].
    """

    d_model: int
    dtype: Any
    kernel_init: Callable
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Projects `x`."""
        _, heads, _, head_dim = x.shape
        init = nn.with_logical_partitioning(self.kernel_init, ('heads', 'head_dim', 'embed'))
        kernel = self.param('kernel', init, (heads, head_dim, self.d_model))
        flat = kernel.astype(self.dtype).reshape(-1, self.d_model)
        rows = jnp.swapaxes(x.astype(self.dtype), 1, 2)
        y = rows.reshape(*rows.shape[:2], -1) @ flat
        if self.bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ('embed',))
            y = y + self.param('bias', zeros, (self.d_model,)).astype(self.dtype)[None, None]
        return y
