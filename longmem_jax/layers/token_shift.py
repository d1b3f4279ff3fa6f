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
IN_TURN = 32  # from as many tokens on, taps are added in turn on CPUs

# By number, which may be computed: the vectors [..., n, width] some tokens earlier.
Shifted = Callable[[int | jax.Array], jax.Array]


def mixed(
    mix: Callable[[Shifted], jax.Array],
    x: jax.Array,
    recent: jax.Array,
    count: jax.Array,
    start: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mixes the next vectors of a sequence with those before them in their document.

    Args:
      mix: of `Shifted`: number 0 has the vectors `earlier` before, number `earlier` the vectors
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
        last = jax.lax.dynamic_slice_in_dim(joined, count, earlier, joined.ndim - 2)
        if start is None:
            return mix(lambda i: _slice(joined, i, n, joined.ndim - 2)), last
        document = jnp.pad(jnp.cumsum(start, dtype=jnp.int32), (earlier, 0))

        def kept(array: jax.Array, same: jax.Array) -> jax.Array:
            shape = (1,) * (array.ndim - 2) + (-1, 1)
            return jnp.where(same.reshape(shape), array, jnp.zeros_like(array))

        def shifted(i: int | jax.Array) -> jax.Array:
            same = _slice(document, i, n, 0) == document[earlier:]
            return kept(_slice(joined, i, n, joined.ndim - 2), same)

        of_last = jax.lax.dynamic_slice_in_dim(document, count, earlier)
        # A start behind the last token, at padding, resets what follows.
        return mix(shifted), kept(last, of_last == document[-1])

    y, last = jax.vmap(lane)(x, recent, count, start)
    return y, last.astype(recent.dtype)


def _slice(array: jax.Array, first: int | jax.Array, size: int, axis: int) -> jax.Array:
    """`size` indices of an axis from `first` on, which may be computed."""
    if isinstance(first, int):
        return jax.lax.slice_in_dim(array, first, first + size, axis=axis)
    return jax.lax.dynamic_slice_in_dim(array, first, size, axis)


def _half(shifted: Shifted) -> jax.Array:
    """The first half of the channels of the vectors before, the second half of the vectors."""
    before, own = shifted(0), shifted(1)
    half = own.shape[-1] // 2
    return jnp.concatenate([before[..., :half], own[..., half:]], axis=-1)


def _last(shifted: Shifted, number: int) -> jax.Array:
    """The last channels of each of `number` vectors, an equal part of all, the oldest first."""
    own = shifted(number - 1)
    width = own.shape[-1]
    part = width // number
    before = (shifted(i)[..., width - part :] for i in range(number - 1))
    return jnp.concatenate([*before, own[..., (number - 1) * part :]], axis=-1)


# The kinds without parameters.
FIXED: dict[str, Callable[[Shifted], jax.Array]] = {
    'half': _half,
    'last_four': functools.partial(_last, number=4),
    'last_eight': functools.partial(_last, number=8),
}


def convolved(taps: jax.Array) -> Callable[[Shifted], jax.Array]:
    """A convolution per channel for `mixed`; taps [earlier + 1, ..., width], of the oldest first."""

    def mix(shifted: Shifted) -> jax.Array:
        own = shifted(len(taps) - 1)
        kernel = jnp.expand_dims(taps.astype(own.dtype), -2)

        def at_once() -> jax.Array:
            return functools.reduce(
                operator.add, (kernel[i] * shifted(i) for i in range(len(taps)))
            )

        def in_turn() -> jax.Array:
            def add(y: jax.Array, tap: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
                return y + tap[1] * shifted(tap[0]), None

            number = jnp.arange(len(taps), dtype=jnp.int32)
            return jax.lax.scan(jax.checkpoint(add), jnp.zeros_like(own), (number, kernel))[0]

        if own.shape[-2] < IN_TURN:
            return at_once()
        # A CPU would compute the derivative of y again for every tap. Only `shifted` is kept for it.
        return jax.checkpoint(
            lambda: jax.lax.platform_dependent(cpu=in_turn, default=at_once), prevent_cse=False
        )()

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
