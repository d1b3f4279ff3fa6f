"""A memory as a layer of `flax.nnx` models.

For example::

    from longmem_jax import ExpireSpan
    from longmem_jax.nnx import wrap

    memory = wrap(ExpireSpan(d_model=256, num_heads=4, segment_length=128), rngs=nnx.Rngs(0))
    state = memory.start(batch_size=2)
    y, state, aux = memory(x, state)          # as in linen: valid=, start=, train= are optional

Segments are scanned with `nnx.scan`; in `jax.lax.scan` flax refuses the random streams of the module::

    @nnx.scan(in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def read(memory, state, x):
        y, state, _ = memory(x, state)
        return state, y
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from longmem_jax.errors import UsageError
from longmem_jax.segment import Aux, State
from longmem_jax.standalone import Layer


class Memory(nnx.Module):
    """A `Layer` with its parameters, for `nnx.jit`, `nnx.grad` and `nnx.Optimizer`; see `wrap`.

    Attributes:
      layer: the linen layer.
      bridged: the layer and its parameters as an nnx module.
    """

    def __init__(self, layer: Layer, rngs: nnx.Rngs | jax.Array):
        """Draws the parameters; see `wrap`."""
        self.layer = layer
        settings = layer.settings
        x = jnp.zeros((1, settings.segment_length, settings.d_model), settings.dtype)
        # Parameters have logical axes, which nnx would look up in a mesh that does not exist.
        with nnx.use_eager_sharding(False):
            self.bridged = nnx.bridge.ToNNX(layer, rngs=rngs).lazy_init(x, layer.start(1))

    def start(self, batch_size: int) -> State:
        """The state before the first token of a document: every leaf [batch_size, ...]."""
        return self.layer.start(batch_size)

    def __call__(self, x: jax.Array, state: State, **options: Any) -> tuple[jax.Array, State, Aux]:
        """Like `Layer.__call__`; `train=True` draws from the streams `dropout` and `memory`."""
        return self.bridged(x, state, **options)


def wrap(layer: Layer, *, rngs: nnx.Rngs | jax.Array) -> Memory:
    """Turns a layer into an nnx module.

    Args:
      layer: from `longmem_jax.make_layer`, or by its name, such as `longmem_jax.InfiniAttention`.
      rngs: random streams: `params` for the parameters, `dropout` and `memory` for training; or a key,
        for parameters alone.

    Raises:
      UsageError: `layer` is no layer, such as a function that makes one, or `rngs` are no streams.
    """
    if not isinstance(layer, Layer):
        raise UsageError(
            f'layer = {layer!r:.60}: must be a layer, such as InfiniAttention(d_model=64, num_heads=4, '
            'segment_length=32)'
        )
    if not isinstance(rngs, nnx.Rngs | jax.Array):
        raise UsageError(
            f'rngs = {rngs!r:.60}: must be random streams, such as nnx.Rngs(0), or a key'
        )
    return Memory(layer, rngs)
