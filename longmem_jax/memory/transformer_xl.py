"""Transformer-XL: the hidden vectors of the last tokens as memory (Dai et al., 2019, Sec. 3.2-3.3).

Every layer keeps its own last `memory_length` input vectors, without gradient, and attends to them
before the segment. As in the authors' code, a document begins with an empty memory.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import fused_rules
from longmem_jax.attention.relative_position import shared_biases
from longmem_jax.attention.self_attention import KeyValues, attention_of, write_at
from longmem_jax.attention.window import push
from longmem_jax.contract import (
    Entry,
    Fields,
    Graft,
    LayerType,
    ModelSettings,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.in_hosts import position_of_window, rates_of_window
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import View, held_window, read_window


class TransformerXLState(flax.struct.PyTreeNode):
    """The window of hidden vectors of one layer.

    Attributes:
      hidden: [batch, memory_length, d_model], in the compute dtype; the last `count` are filled.
      count: int32 [batch].
    """

    hidden: jax.Array
    count: jax.Array


class TransformerXLCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: keys and values of the memory and of the tokens so far.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      count: int32 [batch], as in the state.
    """

    attention: KeyValues
    hidden: jax.Array
    count: jax.Array


def remember(
    state: TransformerXLState, hidden: jax.Array, num_valid: jax.Array
) -> TransformerXLState:
    """Writes a segment: the last `memory_length` of memory and segment, detached (Sec. 3.2).

    Args:
      state: memory before the segment.
      hidden: [batch, length, d_model], inputs of the layer.
      num_valid: int32 [batch], number of tokens; they come first.
    """
    hidden = jax.lax.stop_gradient(hidden)
    return TransformerXLState(*push(state.hidden, state.count, hidden, num_valid))


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `same_length` has a memory."""
    if fields['same_length'] and not fields['memory_length']:
        return ['same_length = True: needs memory_length > 0, the number of positions seen']
    return []


class TransformerXL(nn.Module):
    """Segment-level recurrence.

    Attributes:
      memory_length: hidden vectors kept per layer; may differ in evaluation.
      same_length: every query sees exactly `memory_length` positions, itself included.
      clamp_length: larger distances are encoded as this one; 0 = no limit.
      position: position scheme; the paper's is 'transformer_xl'.
      share_biases: content and position biases shared by all layers (PyTorch) or not (TensorFlow).
      block_size: keys per block of the online softmax for long memories; 0 = all at once.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int = 512
    same_length: bool = False
    clamp_length: int = 0
    position: str = 'transformer_xl'
    share_biases: bool = True
    block_size: int = 0

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = attention_of(
            self,
            memory_length=self.memory_length,
            clamp_length=self.clamp_length,
            window=self.memory_length if self.same_length else 0,
            block_size=self.block_size,
        )

    def initial_state(self, batch_size: int) -> TransformerXLState:
        """An empty window."""
        shape = (batch_size, self.memory_length, self.settings.d_model)
        return TransformerXLState(
            jnp.zeros(shape, self.settings.dtype), jnp.zeros((batch_size,), jnp.int32)
        )

    def __call__(
        self, x: jax.Array, state: TransformerXLState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, TransformerXLState, Aux]:
        """Attends to memory and segment, then writes; x, y are [batch, length, d_model]."""
        y = self.attention(x, state.hidden, state.count, train=train)
        metrics = {'memory_size': mean_count(state.count)}
        return y, remember(state, x, segment.num_valid), Aux(losses={}, metrics=metrics)

    def open_segment(self, state: TransformerXLState, batch_size: int) -> TransformerXLCache:
        """Projects the memory once for all tokens of the segment."""
        shape = (batch_size, self.settings.segment_length, self.settings.d_model)
        return TransformerXLCache(
            self.attention.open(state.hidden, batch_size),
            jnp.zeros(shape, self.settings.dtype),
            state.count,
        )

    def extend(
        self, x: jax.Array, cache: TransformerXLCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, TransformerXLCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        y, attention = self.attention.extend(x, cache.attention, index, cache.count)
        return y, cache.replace(attention=attention, hidden=write_at(cache.hidden, x, index, 1))

    def close_segment(
        self, state: TransformerXLState, cache: TransformerXLCache, count: jax.Array
    ) -> TransformerXLState:
        """Writes the first `count` tokens of the open segment."""
        return remember(state, cache.hidden, count)


def recipe(scale: Scale) -> Recipe:
    """A window of `scale.reach` hidden vectors."""
    return Recipe({'transformer_xl': dict(memory_length=scale.reach)})


ENTRY = Entry(
    name='transformer_xl',
    layer=LayerType(
        TransformerXL,
        check=check,
        shared=shared_biases,
        reach=lambda fields, segment: fields['memory_length'],
        fused=fused_rules.position_problem,
    ),
    recipe=Recipes({'transformer_xl': recipe}),
    graft=Graft(
        fields=lambda scale, position: dict(position=position_of_window(position)),
        exact=True,
        how='a window of hidden vectors, masked while it is empty',
        positions="the host's rotary ones; else a bias like ALiBi's beyond the segment",
        groups=rates_of_window,
    ),
    view=View(
        held=lambda layer, state: {'window': held_window(state.count, layer.memory_length)},
        read=lambda seen: read_window(seen.look()),
        lengths={'memory_length': ''},
    ),
    toy=dict(memory_length=6),
)
