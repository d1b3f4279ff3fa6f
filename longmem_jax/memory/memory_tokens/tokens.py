"""Memory tokens around a segment: the vectors, and how to insert and extract them.

In a model they pass through all layers (`models/memory_transformer.py`). `MemoryTokens` is one attention
layer with its own memory tokens, for any model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.relative_position import shared_biases
from longmem_jax.contract import Entry, ModelSettings
from longmem_jax.memory.memory_tokens.layer import (
    MemoryTokensLayer,
    check,
    held,
    reach,
    read,
)
from longmem_jax.memory.transformer_xl import TransformerXLState
from longmem_jax.segment import Aux, Packing, Segment, pack, select_lanes
from longmem_jax.views import View


def surround(
    x: jax.Array, segment: Segment, vectors: jax.Array, at_end: bool
) -> tuple[jax.Array, Segment, Packing | None]:
    """Puts memory tokens around a segment.

    Args:
      x: [batch, length, d_model], packed: tokens first, padding after them.
      segment: its tokens.
      vectors: memory tokens, [batch, num_tokens, d_model].
      at_end: also append them.

    Returns:
      x and segment with the memory tokens, padding last; and the packing whose `unpack` gives
      [leading, segment, trailing], None if they are already in that order. In a lane (batch row)
      without tokens, the memory tokens are padding too.
    """
    alive = jnp.broadcast_to(segment.valid.any(axis=1)[:, None], vectors.shape[:2])
    blank = jnp.zeros(vectors.shape[:2], segment.tokens.dtype)
    trailing = [vectors] if at_end else []
    x = jnp.concatenate([vectors, x, *trailing], axis=1)
    tokens = jnp.concatenate([blank, segment.tokens, *[blank for _ in trailing]], axis=1)
    valid = jnp.concatenate([alive, segment.valid, *[alive for _ in trailing]], axis=1)
    surrounded = segment.replace(tokens=tokens, valid=valid)
    if not at_end:
        return x, surrounded, None
    surrounded, packing = pack(surrounded)
    return packing.pack(x), surrounded, packing


def take(x: jax.Array, packing: Packing | None, num_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Undoes `surround`: the vectors of the segment, and those of the memory tokens that write."""
    if packing is None:
        return x[:, num_tokens:], x[:, :num_tokens]
    x = packing.unpack(x)
    return x[:, num_tokens:-num_tokens], x[:, -num_tokens:]


class LearnedTokens(nn.Module):
    """The learned memory tokens.

    Attributes:
      num_tokens: number of memory tokens.
      d_model: their width.
      std: standard deviation of their initialisation.
      dtype: compute dtype.
    """

    num_tokens: int
    d_model: int
    std: float
    dtype: Any

    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(self.std), (None, 'embed'))
        self.tokens = self.param('tokens', init, (self.num_tokens, self.d_model))

    def __call__(self, batch_size: int) -> jax.Array:
        """The memory tokens, the same for every lane: [batch_size, num_tokens, d_model]."""
        tokens = self.tokens[None].astype(self.dtype)
        return jnp.broadcast_to(tokens, (batch_size, self.num_tokens, self.d_model))


@flax.struct.dataclass
class MemoryTokensState:
    """The memory of one layer with memory tokens of its own.

    Attributes:
      cache: hidden vectors of the last positions.
      vectors: [batch, num_tokens, d_model], memory tokens after the last segment; None if they are
        not carried.
      count: int32 [batch], segments written in this document; the first has the learned tokens.
    """

    cache: TransformerXLState
    vectors: jax.Array | None
    count: jax.Array


class MemoryTokens(nn.Module):
    """Attention with memory tokens before, and optionally after, a segment (Burtsev et al., 2020).

    Reads whole segments only; there is no streaming path outside of the model.

    Attributes:
      carry: outputs at the appended tokens are the next memory tokens (Bulatov et al., 2022).
      gradients: gradients flow through carried tokens.
      num_tokens, at_end, read_cache, look_ahead, memory_length, same_length, clamp_length, position:
        as in `MemoryTokensLayer`.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    carry: bool = True
    gradients: bool = True
    num_tokens: int = 20
    at_end: bool = True
    read_cache: bool = False
    look_ahead: str = 'nearest'
    memory_length: int = 0
    same_length: bool = False
    clamp_length: int = 0
    position: str = 'transformer_xl'

    def setup(self):
        settings = self.settings
        added = self.num_tokens * (1 + self.at_end)
        self.attention = MemoryTokensLayer(
            settings=dataclasses.replace(settings, segment_length=settings.segment_length + added),
            normalize=self.normalize,
            shared=self.shared,
            num_tokens=self.num_tokens,
            at_end=self.at_end,
            read_cache=self.read_cache,
            look_ahead=self.look_ahead,
            memory_length=self.memory_length,
            same_length=self.same_length,
            clamp_length=self.clamp_length,
            position=self.position,
        )
        self.memory_tokens = LearnedTokens(
            self.num_tokens, settings.d_model, settings.init_std, settings.dtype
        )

    def initial_state(self, batch_size: int) -> MemoryTokensState:
        """An empty cache; the first segment uses the learned tokens."""
        shape = (batch_size, self.num_tokens, self.settings.d_model)
        vectors = jnp.zeros(shape, self.settings.dtype) if self.carry and self.at_end else None
        cache = self.attention.initial_state(batch_size)
        return MemoryTokensState(cache, vectors, jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self, x: jax.Array, state: MemoryTokensState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, MemoryTokensState, Aux]:
        """Attends among memory tokens and segment; x, y are [batch, length, d_model]."""
        vectors = self.memory_tokens(x.shape[0])
        if state.vectors is not None:
            carried = state.vectors if self.gradients else jax.lax.stop_gradient(state.vectors)
            vectors = select_lanes(state.count > 0, carried, vectors)
        surrounded, with_memory, packing = surround(x, segment, vectors, self.at_end)
        y, cache, aux = self.attention(surrounded, state.cache, with_memory, train=train)
        y, written = take(y, packing, self.num_tokens)
        alive = segment.valid.any(axis=1)
        if state.vectors is not None:
            # As in a block of the model: the output is added to the residual stream.
            written = select_lanes(alive, vectors + written, state.vectors)
        else:
            written = None
        return y, MemoryTokensState(cache, written, state.count + alive), aux


ENTRY = Entry(
    name='memory_tokens',
    layer=MemoryTokensLayer,
    view=View(held, read),
    standalone=MemoryTokens,
    check=check,
    shared=shared_biases,
    lengths={'memory_length': '', 'num_tokens': '+ memory tokens '},
    reach=reach,
    toy=dict(num_tokens=2, at_end=True, memory_length=6),
)
