"""The dense feed-forward layer: plain (ReLU, GELU) or gated (Shazeer, 2020)."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax

from longmem_jax.contract import Entry, Fields, LayerType, ModelSettings, NoState
from longmem_jax.layers import initializers, rows_product
from longmem_jax.layers.dropout import Dropout
from longmem_jax.problems import one_of
from longmem_jax.segment import Aux, Segment, no_aux

# name -> (activation, gated): a gated layer multiplies the activation by a second projection.
ACTIVATIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], bool]] = {
    'relu': (jax.nn.relu, False),
    'gelu': (jax.nn.gelu, False),
    'gelu_exact': (functools.partial(jax.nn.gelu, approximate=False), False),
    'swiglu': (jax.nn.silu, True),
    'geglu': (jax.nn.gelu, True),
}


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that the activation is known."""
    return one_of(fields, activation=ACTIVATIONS)


class Dense(nn.Module):
    """Two linear maps with an activation in between; stateless.

    Attributes:
      activation: 'relu', 'gelu' (by tanh), 'gelu_exact', 'swiglu' or 'geglu'.
      bias: whether the linear maps have biases.
    """

    takes_starts: ClassVar[bool] = True

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    activation: str = 'relu'
    bias: bool = True

    def setup(self) -> None:
        axes = initializers.with_axes

        def linear(width: int, kernel_axes: tuple[str, str], residual: bool = False) -> nn.Dense:
            init = initializers.kernel(self.settings, residual=residual)
            return nn.Dense(
                width,
                use_bias=self.bias,
                dtype=self.settings.dtype,
                dot_general=rows_product.dot_general,
                kernel_init=axes(init, kernel_axes),
                bias_init=axes(nn.initializers.zeros, kernel_axes[1:]),
            )

        self.act, gated = ACTIVATIONS[self.activation]
        self.up = linear(self.settings.d_feed_forward, ('embed', 'mlp'))
        self.gate = linear(self.settings.d_feed_forward, ('embed', 'mlp')) if gated else None
        self.down = linear(self.settings.d_model, ('mlp', 'embed'), residual=True)
        self.drop = Dropout(self.settings.dropout)

    def mapped(self, x: jax.Array, train: bool) -> jax.Array:
        """The layer's output for `x` [..., d_model]."""
        x = self.normalize(x)
        hidden = self.up(x)
        hidden = self.act(hidden) if self.gate is None else self.act(self.gate(x)) * hidden
        return self.down(self.drop(hidden, deterministic=not train))

    def initial_state(self, batch_size: int) -> NoState:
        """No state: the layer is stateless."""
        return NoState()

    def __call__(
        self, x: jax.Array, state: NoState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, NoState, Aux]:
        """Maps every token by itself; x, y are [batch, length, d_model]."""
        return self.mapped(x, train), state, no_aux()

    def open_segment(self, state: NoState, batch_size: int) -> NoState:
        """No cache."""
        return NoState()

    def extend(
        self, x: jax.Array, cache: NoState, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, NoState]:
        """Maps the next tokens; see `MemoryLayer`."""
        return self.mapped(x, False), cache

    def close_segment(self, state: NoState, cache: NoState, count: jax.Array) -> NoState:
        """Returns `state` as it is."""
        return state


ENTRY = Entry(
    name='dense',
    place='feed_forward',
    layer=LayerType(Dense, check=check),
)
