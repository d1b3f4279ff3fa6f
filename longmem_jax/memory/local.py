"""Causal attention within the segment, without memory: the baseline of every memory."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from longmem_jax.attention import fused_rules
from longmem_jax.attention.self_attention import KeyValues, SelfAttention
from longmem_jax.contract import (
    Entry,
    Graft,
    LayerType,
    ModelSettings,
    NoState,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.layers.projections import Projections
from longmem_jax.segment import Aux, Segment, no_aux
from longmem_jax.views import View, read_window


class Local(nn.Module):
    """Attention to the segment alone.

    Attributes:
      position: position scheme, one of `attention.self_attention.POSITIONS`.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    position: str = 'rotary'

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = SelfAttention(
            settings=self.settings,
            projections=self.projections,
            normalize=self.normalize,
            shared=self.shared,
            position=self.position,
            memory_length=0,
        )

    def initial_state(self, batch_size: int) -> NoState:
        """No state: there is no memory."""
        return NoState()

    def __call__(
        self, x: jax.Array, state: NoState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, NoState, Aux]:
        """Attends within the segment; x, y are [batch, length, d_model]."""
        return self.attention(x, train=train), state, no_aux()

    def open_segment(self, state: NoState, batch_size: int) -> KeyValues:
        """An empty cache of keys and values."""
        return self.attention.open(None, batch_size)

    def extend(
        self, x: jax.Array, cache: KeyValues, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, KeyValues]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        return self.attention.extend(x, cache, index)

    def close_segment(self, state: NoState, cache: KeyValues, count: jax.Array) -> NoState:
        """Returns `state` as it is."""
        return state


def recipe(scale: Scale) -> Recipe:
    """Attention within the segment: the floor that every memory is compared with."""
    position, notes = scale.position()
    return Recipe({'local': dict(position=position)}, notes=notes)


ENTRY = Entry(
    name='local',
    layer=LayerType(Local, reach=lambda fields, segment: 0, fused=fused_rules.position_problem),
    recipe=Recipes({'local': recipe}),
    graft=Graft(
        fields=lambda scale, position: dict(position=position),
        exact=True,
        how='the host within a segment, without a memory (the floor)',
        positions='none is remembered',
    ),
    view=View(read=lambda seen: read_window(seen.look())),
)
