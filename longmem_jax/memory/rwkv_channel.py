"""RWKV-7's feed-forward layer, which also sees the token before (channel mixing; Peng et al., 2025).

Of every channel it reads a learned mixture of the token and the one before it. With x the layer's
normed input:

    x' = x + mu (x_prev - x)
    y  = V relu(K x')^2

Earlier versions of RWKV multiply y by a gate; this one has none, and no biases.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.contract import Entry, LayerType, ModelSettings, Recipe, Recipes, Scale
from longmem_jax.layers import initializers, rows_product
from longmem_jax.layers.dropout import Dropout
from longmem_jax.memory import rwkv7
from longmem_jax.segment import Aux, Segment, no_aux

POWER = 0.5**4  # of the initial mixture, as the release has it in the middle of its layers


class ChannelState(flax.struct.PyTreeNode):
    """The state of one layer, and its cache while a segment is open.

    Attributes:
      recent: [batch, 1, d_model], the normed input of the last token; zeros at the begin of a document.
    """

    recent: jax.Array


def drawn_mix(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Initial share of the token before, [d_model], from 1 down; nothing is drawn.

    1 - c^`POWER` for channels c from 0 to 1.
    """
    return 1 - (jnp.arange(shape[0], dtype=dtype) / shape[0]) ** POWER


class ChannelMixing(nn.Module):
    """Two linear maps with a squared ReLU in between, of the token and the one before it.

    Its hidden width is the model's `d_feed_forward`, which in the release is 4 d_model. It has no
    fields of its own.
    """

    takes_starts: ClassVar[bool] = True

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any

    def setup(self) -> None:
        axes, settings = initializers.with_axes, self.settings

        def linear(width: int, names: tuple[str, str], residual: bool = False) -> nn.Dense:
            return nn.Dense(
                width,
                use_bias=False,
                dtype=settings.dtype,
                dot_general=rows_product.dot_general,
                kernel_init=axes(initializers.kernel(settings, residual=residual), names),
            )

        self.before = rwkv7.TokenBefore(settings)
        self.mix = self.param('mix', axes(drawn_mix, ('embed',)), (settings.d_model,))
        self.up = linear(settings.d_feed_forward, ('embed', 'mlp'))
        self.down = linear(settings.d_model, ('mlp', 'embed'), residual=True)
        self.drop = Dropout(settings.dropout)

    def read(
        self,
        x: jax.Array,
        state: ChannelState,
        count: jax.Array,
        start: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, ChannelState]:
        """The layer's output for `x` [batch, n, d_model], and the state after its tokens.

        Args:
          x: before the norm.
          state: before these tokens.
          count: int32 [batch], the first `count` are tokens, the others padding.
          start: bool [batch, n], documents begin with these tokens; None = with none.
          train: dropout is on.
        """
        x = self.normalize(x)
        before, recent = self.before(x, state.recent, count, start)
        share = self.mix.astype(x.dtype)[None, None]
        hidden = jnp.square(jax.nn.relu(self.up(x + share * (before - x))))
        return self.down(self.drop(hidden, deterministic=not train)), ChannelState(recent)

    def initial_state(self, batch_size: int) -> ChannelState:
        """Zeros, [batch_size, 1, d_model] of the compute dtype."""
        return ChannelState(self.before.initial_state(batch_size))

    def __call__(
        self, x: jax.Array, state: ChannelState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, ChannelState, Aux]:
        """Maps every token, with the one before it; x, y are [batch, length, d_model]."""
        start = segment.start if segment.start.ndim == 2 else None
        y, state = self.read(x, state, segment.num_valid, start, train)
        return y, state, no_aux()

    def open_segment(self, state: ChannelState, batch_size: int) -> ChannelState:
        """The state that the segment begins with."""
        return state

    def extend(
        self, x: jax.Array, cache: ChannelState, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, ChannelState]:
        """Maps the next tokens of the open segment; see `MemoryLayer`."""
        return self.read(x, cache, count)

    def close_segment(
        self, state: ChannelState, cache: ChannelState, count: jax.Array
    ) -> ChannelState:
        """The state after the segment: its tokens are already in the cache."""
        return cache


def recipe(scale: Scale) -> Recipe:
    """The blocks of the release: its recurrent layers, each followed by this layer."""
    own, attention = ENTRY.name, rwkv7.ENTRY.name
    beside = rwkv7.ENTRY.recipe.by_name[attention](scale)
    return Recipe(
        {own: {}} | beside.sections,
        attention=(attention,) * scale.layers,
        feed_forward=(own,) * scale.layers,
    )


ENTRY = Entry(
    name='rwkv_channel',
    place='feed_forward',
    layer=LayerType(ChannelMixing, inside=(rwkv7.ENTRY.name, {})),
    recipe=Recipes({'rwkv_channel': recipe}),
)
