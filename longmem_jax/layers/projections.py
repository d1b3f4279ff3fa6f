"""Linear maps between [batch, length, d_model] and heads-first [batch, heads, length, head_dim].

Every attention layer owns one `Projections` named `projections`, so that the maps of all memories have
the same path, `block_i/attention/projections/{query,key,value,out}`, and can be shared between them.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.contract import ModelSettings
from longmem_jax.devices import hardware
from longmem_jax.layers import initializers
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.rows_product import rows_of_a_lane_times, rows_times

JOINT_NORM = 'joint_rmsnorm'  # one RMSNorm of the vectors of all heads together


def _to_heads(x: jax.Array, kernel: jax.Array, precision: jax.lax.PrecisionLike) -> jax.Array:
    """[..., length, width] times [width, heads, head_dim]: [..., heads, length, head_dim].

    For TPUs, a product that gives heads and tokens in this order. As a product of rows, which takes a
    tenth of a step less on CPUs, its vectors would be copied in the backward pass (docs/tpu.md). A
    `vmap` over lanes, of `x` with an axis less, has its own product of rows.
    """
    if x.ndim > 2 and hardware.platform() == 'tpu':
        return jnp.einsum('...ld,dhk->...hlk', x, kernel, precision=precision)
    times = rows_times if x.ndim > 2 else rows_of_a_lane_times
    rows = times(x, kernel.reshape(x.shape[-1], -1), precision)
    return jnp.swapaxes(rows.reshape(*x.shape[:-1], *kernel.shape[1:]), -3, -2)


def _from_heads(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[..., heads, length, head_dim] times [heads, head_dim, width]: [..., length, width].

    As in `_to_heads`.
    """
    if x.ndim > 3 and hardware.platform() == 'tpu':
        return jnp.einsum('...hlk,hkd->...ld', x, kernel)
    times = rows_times if x.ndim > 3 else rows_of_a_lane_times
    rows = jnp.swapaxes(x, -3, -2)
    return times(rows.reshape(*rows.shape[:-2], -1), kernel.reshape(-1, kernel.shape[-1]))


class HeadsIn(nn.Module):
    """[..., length, d_model] to [..., num_heads, length, head_dim].

    Attributes:
      num_heads, head_dim: sizes of the result.
      dtype: compute dtype; the kernel [d_model, heads, head_dim] is float32.
      kernel_init: initialiser of the kernel.
      axis: logical axis of the heads; 'kv_heads' for keys and values shared by query heads.
      bias: adds a bias [heads, head_dim].
      norm, epsilon: norm of each head's result, 'none' or one of `norms.KINDS`, see `Norm`; or
        `JOINT_NORM`.
      precision: of the product; None = the default of the device.
    """

    num_heads: int
    head_dim: int
    dtype: DTypeLike
    kernel_init: Callable[..., jax.Array]
    axis: str = 'heads'
    bias: bool = False
    norm: str = 'none'
    epsilon: float = 1e-5
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Projects `x` [..., length, d_model] to [..., num_heads, length, head_dim]."""
        width = x.shape[-1]
        init = initializers.with_axes(self.kernel_init, ('embed', self.axis, 'head_dim'))
        kernel = self.param('kernel', init, (width, self.num_heads, self.head_dim))
        projected = _to_heads(x.astype(self.dtype), kernel.astype(self.dtype), self.precision)
        if self.bias:
            zeros = initializers.with_axes(nn.initializers.zeros, (self.axis, 'head_dim'))
            bias = self.param('bias', zeros, (self.num_heads, self.head_dim))
            projected = projected + bias.astype(self.dtype).reshape(
                (1,) * (x.ndim - 2) + (self.num_heads, 1, self.head_dim)
            )
        if self.norm == JOINT_NORM:
            joint = jnp.swapaxes(projected, -3, -2)
            normed = Norm('rmsnorm', self.epsilon, name='norm')(joint.reshape(*x.shape[:-1], -1))
            return jnp.swapaxes(normed.reshape(joint.shape), -3, -2)
        if self.norm != 'none':
            return Norm(self.norm, self.epsilon, name='norm')(projected)
        return projected


class HeadsOut(nn.Module):
    """[..., num_heads, length, head_dim] to [..., length, d_model].

    Attributes:
      d_model: width of the result.
      dtype: compute dtype; the kernel [heads, head_dim, d_model] is float32.
      kernel_init: initialiser of the kernel.
      axis: logical axis of the heads, see `HeadsIn`.
      bias: adds a bias [d_model].
    """

    d_model: int
    dtype: DTypeLike
    kernel_init: Callable[..., jax.Array]
    axis: str = 'heads'
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Projects `x` [..., num_heads, length, head_dim] to [..., length, d_model]."""
        heads, _, head_dim = x.shape[-3:]
        init = initializers.with_axes(self.kernel_init, (self.axis, 'head_dim', 'embed'))
        kernel = self.param('kernel', init, (heads, head_dim, self.d_model))
        y = _from_heads(x.astype(self.dtype), kernel.astype(self.dtype))
        if self.bias:
            zeros = initializers.with_axes(nn.initializers.zeros, ('embed',))
            bias = self.param('bias', zeros, (self.d_model,)).astype(self.dtype)
            y = y + bias.reshape((1,) * (y.ndim - 1) + bias.shape)
        return y


class Projections(nn.Module):
    """Queries, keys and values of the heads, and the output: the four maps of an attention layer.

    `out` maps [batch, heads, length, width] to [batch, length, d_model]. `query`, `key` and
    `value` are the modules themselves, for layers that turn them into pure functions.

    Attributes:
      settings: sizes of the model, `attention_bias` and `num_kv_heads`.
      bias: all four have biases, as a layer's paper asks for; False = as `settings.attention_bias`.
      head_norm: whether queries and keys have `settings.head_norm`.
      key_dim, value_dim: width of queries and keys, and of values; 0 = head_dim.
      query_heads: heads of queries; 0 = num_heads.
      key_heads, value_heads: heads of keys and of values; 0 = kv_heads. See `repeat_heads` for layers in
        which several heads of values share a query and a key.
    """

    settings: ModelSettings
    bias: bool = False
    head_norm: bool = True
    key_dim: int = 0
    value_dim: int = 0
    query_heads: int = 0
    key_heads: int = 0
    value_heads: int = 0

    def setup(self) -> None:
        settings = self.settings
        biased = self.bias or settings.attention_bias in ('qkv', 'all')
        kernel_init = initializers.kernel(settings)
        common: dict[str, Any] = dict(bias=biased, dtype=settings.dtype, kernel_init=kernel_init)
        keyed: dict[str, Any] = dict(
            head_dim=self.key_dim or settings.head_dim,
            norm=settings.head_norm if self.head_norm else 'none',
            epsilon=settings.norm_epsilon,
        )
        shared = 'kv_heads' if settings.num_kv_heads else 'heads'
        self.query = HeadsIn(**self._heads(self.query_heads), **common, **keyed)
        self.key = HeadsIn(**self._heads(self.key_heads, shared), **common, **keyed)
        values = self._heads(self.value_heads, shared)
        self.value = HeadsIn(head_dim=self.value_dim or settings.head_dim, **values, **common)
        biased = self.bias or settings.attention_bias in ('out', 'all')
        # What is read has the heads of the values, or of the queries that share them.
        largest = max(self.query.num_heads, self.value.num_heads)
        self.out = HeadsOut(
            d_model=settings.d_model,
            axis=self._heads(largest)['axis'],
            bias=biased,
            dtype=settings.dtype,
            kernel_init=initializers.kernel(settings, inputs=2, residual=True),
        )

    def _heads(self, number: int, shared: str = 'heads') -> dict[str, Any]:
        """Number and logical axis of heads; 0 = the model's number, of keys and values if `shared`."""
        settings = self.settings
        if not number:
            of_model = settings.num_heads if shared == 'heads' else settings.kv_heads
            return dict(num_heads=of_model, axis=shared)
        # A mesh is checked for the model's heads alone: others are on every device.
        return dict(num_heads=number, axis='heads' if number == settings.num_heads else 'kv_heads')

    def queries(self, x: jax.Array) -> jax.Array:
        """Queries of `x` [batch, length, d_model]: [batch, query_heads, length, key_dim]."""
        return self.query(x)

    def scaled_queries(self, x: jax.Array) -> jax.Array:
        """`queries` times `settings.score_scale`."""
        scale = jnp.asarray(self.settings.score_scale, self.settings.dtype)
        return self.query(x) * scale

    def keys(self, x: jax.Array) -> jax.Array:
        """Keys of `x` [batch, length, d_model]: [batch, key_heads, length, key_dim]."""
        return self.key(x)

    def values(self, x: jax.Array) -> jax.Array:
        """Values of `x` [batch, length, d_model]: [batch, value_heads, length, value_dim]."""
        return self.value(x)


def repeat_heads(vectors: jax.Array, num_heads: int) -> jax.Array:
    """Repeats keys or values for every query head of the group that shares them.

    Args:
      vectors: [batch, kv_heads, length, head_dim].
      num_heads: a multiple of kv_heads; head i reads `i // (num_heads / kv_heads)`.

    Returns:
      [batch, num_heads, length, head_dim].
    """
    group = num_heads // vectors.shape[1]
    return vectors if group == 1 else jnp.repeat(vectors, group, axis=1)
