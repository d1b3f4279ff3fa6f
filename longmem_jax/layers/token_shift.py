"""A view of the last few tokens before queries, keys and values are made, for linear attention.

Features such as elu + 1 cannot be sharp: over 64 unit keys the largest weight of a query is about 1.4
times the mean, where softmax reaches 8 times. So such a layer cannot single out the token before, and a
small model of bytes does no better than a table of byte pairs.
The models of the papers have no shift: they read words, with many layers.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers

# The number of earlier vectors that each kind sees.
EARLIER = {'none': 0, 'half': 1, 'last_four': 3, 'last_eight': 7, 'convolution': 3}


def mixed(
    mix: Callable[[list[jax.Array]], jax.Array],
    x: jax.Array,
    recent: jax.Array,
    count: jax.Array,
    start: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mixes the next vectors of a sequence with those before them in their document.

    Args:
      mix: of `earlier + 1` arrays [..., n, width], the vectors `earlier` before, ..., and the vectors
        themselves; zeros before the begin of a document.
      x: [batch, ..., n, width].
      recent: [batch, ..., earlier, width], the vectors just before them, as returned; at first zeros.
      count: int32 [batch], the first `count` vectors of `x` are tokens, the others padding.
      start: bool [batch, n], a document begins with this vector; None = with none.

    Returns:
      Mixed vectors, like `x`, and the vectors just before the next ones.
    """
    earlier, n = recent.shape[-2], x.shape[-2]

    def lane(x: jax.Array, recent: jax.Array, count: jax.Array, start: jax.Array | None) -> Any:
        joined = jnp.concatenate([recent.astype(x.dtype), x], axis=-2)
        views = [jax.lax.slice_in_dim(joined, i, i + n, axis=-2) for i in range(earlier + 1)]
        last = jax.lax.dynamic_slice_in_dim(joined, count, earlier, joined.ndim - 2)
        if start is not None:
            document = jnp.pad(jnp.cumsum(start, dtype=jnp.int32), (earlier, 0))

            def kept(array: jax.Array, same: jax.Array) -> jax.Array:
                shape = (1,) * (array.ndim - 2) + (-1, 1)
                return jnp.where(same.reshape(shape), array, jnp.zeros_like(array))

            views = [
                kept(view, document[i : i + n] == document[earlier:])
                for i, view in enumerate(views)
            ]
            of_last = jax.lax.dynamic_slice_in_dim(document, count, earlier)
            # A start behind the last token, at padding, resets what follows.
            last = kept(last, of_last == document[-1])
        return mix(views), last

    y, last = jax.vmap(lane)(x, recent, count, start)
    return y, last.astype(recent.dtype)


def _half(views: list[jax.Array]) -> jax.Array:
    """The first half of the channels of the vectors before, the second half of the vectors."""
    before, own = views
    half = own.shape[-1] // 2
    return jnp.concatenate([before[..., :half], own[..., half:]], axis=-1)


def _last(views: list[jax.Array]) -> jax.Array:
    """The last channels of each of the vectors, an equal part of all, the oldest first."""
    width = views[-1].shape[-1]
    part = width // len(views)
    own = views[-1][..., (len(views) - 1) * part :]
    return jnp.concatenate([*(view[..., width - part :] for view in views[:-1]), own], axis=-1)


# The kinds without parameters.
FIXED = {'half': _half, 'last_four': _last, 'last_eight': _last}


def convolved(taps: jax.Array) -> Callable[[list[jax.Array]], jax.Array]:
    """A convolution per channel for `mixed`; taps [earlier + 1, ..., width], of the oldest first."""

    def mix(views: list[jax.Array]) -> jax.Array:
        kernel = jnp.expand_dims(taps.astype(views[0].dtype), -2)
        return functools.reduce(operator.add, (kernel[i] * view for i, view in enumerate(views)))

    return mix


def drawn_taps(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Initial taps of a convolution per channel, uniform in 1 / sqrt(its size)."""
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)


class Convolution(nn.Module):
    """A causal convolution per channel of the vectors of heads.

    Attributes:
      size: tokens that it sees, the token itself included.
      heads, width: shape of a token's vectors.
      axis: logical axis of the heads.
      dtype: compute dtype.
      biased: adds a bias [heads, width].
    """

    size: int
    heads: int
    width: int
    axis: str
    dtype: DTypeLike
    biased: bool = False

    def setup(self) -> None:
        init = initializers.with_axes(drawn_taps, (None, self.axis, 'head_dim'))
        self.kernel = self.param('kernel', init, (self.size, self.heads, self.width))
        if self.biased:
            init = initializers.with_axes(nn.initializers.zeros, (self.axis, 'head_dim'))
            self.bias = self.param('bias', init, (self.heads, self.width))

    def initial_state(self, batch_size: int) -> jax.Array:
        """Zeros [batch_size, heads, size - 1, width] of the compute dtype."""
        return jnp.zeros((batch_size, self.heads, self.size - 1, self.width), self.dtype)

    def __call__(self, *given: Any) -> tuple[jax.Array, jax.Array]:
        """Arguments and results of `mixed` for x [batch, heads, n, width]."""
        y, last = mixed(convolved(self.kernel), *given)
        return (y + self.bias.astype(y.dtype)[None, :, None] if self.biased else y), last


class TokenShift(nn.Module):
    """Mixes every vector with those just before it.

    The earlier vectors are an explicit state, so that a sequence may be cut anywhere. Before the start
    of a document there are zeros, as in a padded convolution.

    Attributes:
      settings: sizes of the model.
      kind: 'none'; 'half', the first half of the channels comes from the token before (no parameters);
        'last_four', the same quarter of the channels of each of the last four vectors (no
        parameters): keys and queries see the same features of the tokens before, so one linear map
        compares them, and copying is learned sooner; 'last_eight', the same eighth of the last eight;
        'convolution', a causal convolution per channel over 4 tokens, without a bias.
    """

    settings: ModelSettings
    kind: str

    def setup(self) -> None:
        if self.kind == 'convolution':
            init = initializers.with_axes(drawn_taps, (None, 'embed'))
            shape = (EARLIER[self.kind] + 1, self.settings.d_model)
            self.kernel = self.param('kernel', init, shape)

    def initial_state(self, batch_size: int) -> jax.Array | None:
        """Zeros [batch_size, earlier, d_model] of the compute dtype; None where nothing is kept."""
        earlier = EARLIER[self.kind]
        if not earlier:
            return None
        return jnp.zeros((batch_size, earlier, self.settings.d_model), self.settings.dtype)

    def __call__(
        self,
        x: jax.Array,
        recent: jax.Array | None,
        count: jax.Array,
        start: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Arguments and results of `mixed` for x [batch, n, d_model]; `recent` None = kind 'none'."""
        if recent is None:
            return x, None
        mix = FIXED[self.kind] if self.kind in FIXED else convolved(self.kernel)
        return mixed(mix, x, recent, count, start)
