"""The Transformer-XL layers around the memory of the Memorizing Transformer (Wu et al., 2022).

Normalised queries and keys, T5 biases, and a cache of the last keys and values. It has the
parameters of `memorizing` but the gate, so that a memory can be added to a trained model.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.contract import Entry, Graft, LayerType, ModelSettings, Recipe, Recipes, Scale
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing.normalized_attention import RecentKeys
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import View, read_window


class NormalizedXLCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: recent keys and values and those of the tokens so far.
      recent: the state before the segment.
    """

    attention: KeyValues
    recent: RecentKeys


class NormalizedXL(nn.Module):
    """Local attention with recent keys and nothing more; attributes as in `Memorizing`."""

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    position: str = 't5'
    memory_length: int = 512
    window: int = 0
    attend_self: bool = True
    start: str = 'empty'
    scale_init: float = 1.0
    normalized: bool = True
    sinks: int = 0

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = normalized_attention.attention_of(self)

    def initial_state(self, batch_size: int) -> RecentKeys:
        """An empty cache."""
        return self.attention.initial(batch_size)

    def __call__(
        self, x: jax.Array, state: RecentKeys, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, RecentKeys, Aux]:
        """Attends, then writes; x, y are [batch, length, d_model]."""
        state = jax.lax.stop_gradient(state)
        _, keys, values, local = self.attention.whole(self.normalize(x), state, train)
        new = self.attention.remember(state, keys, values, segment.num_valid)
        metrics = {'memory_size': mean_count(jnp.minimum(state.count, self.memory_length))}
        return self.projections.out(local), new, Aux(losses={}, metrics=metrics)

    def open_segment(self, state: RecentKeys, batch_size: int) -> NormalizedXLCache:
        """Recent keys and values, followed by room for those of the segment."""
        return NormalizedXLCache(self.attention.open(state, batch_size), state)

    def extend(
        self, x: jax.Array, cache: NormalizedXLCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, NormalizedXLCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        _, local, attention = self.attention.tokens(
            self.normalize(x), cache.attention, cache.recent.count, index
        )
        return self.projections.out(local), cache.replace(attention=attention)

    def close_segment(
        self, state: RecentKeys, cache: NormalizedXLCache, count: jax.Array
    ) -> RecentKeys:
        """Writes the first `count` tokens of the open segment."""
        keys, values = self.attention.segment_of(cache.attention)
        return self.attention.remember(state, keys, values, count)


def recipe(scale: Scale) -> Recipe:
    """The Memorizing Transformer's model without its memory; see `memorizing.layer.recipe`."""
    return Recipe({'normalized_xl': dict(memory_length=scale.segment, scale_init=8.0)})


ENTRY = Entry(
    name='normalized_xl',
    layer=LayerType(
        NormalizedXL,
        check=normalized_attention.check,
        reach=lambda fields, segment: fields['memory_length'],
        fused=normalized_attention.fused,
    ),
    recipe=Recipes({'normalized_xl': recipe}),
    graft=Graft(
        normalized_attention.of_host,
        exact=True,
        how='a window of keys and values, masked while it is empty, that keeps the first tokens; the '
        "host's scores",
        positions="the host's rotary ones; with other positions there is no window",
    ),
    view=View(
        held=lambda layer, state: {'recent': normalized_attention.held(layer, state)},
        read=lambda seen: read_window(
            seen.look(), ages=normalized_attention.held(seen.layer, seen.state).ages
        ),
        lengths={'memory_length': ''},
    ),
    toy=dict(memory_length=4),
)
