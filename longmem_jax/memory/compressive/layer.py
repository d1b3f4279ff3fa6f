"""Compressive Transformer: old memories are compressed, not dropped (Rae et al., 2020).

Each layer keeps its last `memory_length` input vectors; older ones are compressed by `rate` and
kept in a second memory of `compressed_length` slots. A segment attends to slots, memory and itself
in one softmax with relative positions, where a slot counts as one position. All memories are
detached; the compression learns from its own reconstruction loss only.

`reading = 'sliding'` is the baseline of the Expire-Span paper; see `sliding.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.self_attention import KeyValues, attention_of, write_at
from longmem_jax.attention.window import push
from longmem_jax.contract import (
    Entry,
    Graft,
    LayerType,
    ModelSettings,
    Recipes,
)
from longmem_jax.host_layer import ReleasedLayer
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.switching import as_function
from longmem_jax.memory.compressive.compression import (
    Compressor,
    attention_reconstruction,
    autoencoding,
)
from longmem_jax.memory.compressive.evicting import CompressiveState, Evicted, evict
from longmem_jax.memory.compressive.settings import check, fused, recipe, shared, sliding_recipe
from longmem_jax.memory.compressive.sliding_layer import SlidingReading
from longmem_jax.memory.compressive.view import held, read
from longmem_jax.memory.in_hosts import position_of_window, rates_of_window
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import View


class CompressiveCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: keys and values of slots, memory and the tokens so far.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      filled: int32 [batch], number of filled slots and memory vectors.
      usage: 'most_used' only, float32 [batch, memory_length], attention received in this segment.
    """

    attention: KeyValues
    hidden: jax.Array
    filled: jax.Array
    usage: jax.Array | None = None


class SegmentReading(nn.Module):
    """The paper's layer; attributes as in `CompressiveTransformer`."""

    settings: ModelSettings
    projections: Projections
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int
    compressed_length: int
    rate: int
    compression: str
    position: str
    reconstruction: str

    def setup(self) -> None:
        self.attention = attention_of(
            self,
            memory_length=self.compressed_length + self.memory_length,
            parts=(('slots', self.compressed_length), ('cache', self.memory_length)),
        )
        self.compress = Compressor(
            kind=self.compression,
            rate=self.rate,
            settings=self.settings,
            decodes=self.reconstruction == 'autoencoding',
        )

    def _counts_usage(self) -> bool:
        return self.compression == 'most_used'

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Empty memories."""

        def vectors(length: int) -> jax.Array:
            return jnp.zeros((batch_size, length, self.settings.d_model), self.settings.dtype)

        none = jnp.zeros((batch_size,), jnp.int32)
        width = self.rate - 1 + self.memory_length
        return CompressiveState(
            hidden=vectors(self.memory_length),
            count=none,
            compressed=vectors(self.compressed_length),
            compressed_count=none,
            pending=vectors(self.rate - 1),
            pending_count=none,
            usage=jnp.zeros((batch_size, width), jnp.float32) if self._counts_usage() else None,
        )

    def _memory(self, state: CompressiveState) -> tuple[jax.Array, jax.Array]:
        """Slots and memory together, and the number of filled ones."""
        both = jnp.concatenate([state.compressed, state.hidden], axis=1)
        return both, state.compressed_count + state.count

    def _write(
        self,
        state: CompressiveState,
        hidden: jax.Array,
        num_valid: jax.Array,
        received: jax.Array | None,
    ) -> tuple[CompressiveState, Evicted, jax.Array]:
        """The new state, the vectors that were compressed, and the new slots, not detached."""
        hidden, state = jax.lax.stop_gradient((hidden, state))
        state, evicted = evict(state, hidden, num_valid, received, self.rate)
        slots = self.compress(evicted.vectors, evicted.usage, evicted.groups)
        compressed, count = push(
            state.compressed, state.compressed_count, jax.lax.stop_gradient(slots), evicted.groups
        )
        return state.replace(compressed=compressed, compressed_count=count), evicted, slots

    def _loss(
        self, x: jax.Array, evicted: Evicted, slots: jax.Array, num_valid: jax.Array
    ) -> dict[str, jax.Array]:
        """The reconstruction loss; only the compression learns from it (Algorithm 2)."""
        num_old = evicted.groups * self.rate
        if self.reconstruction == 'autoencoding':
            decoded = self.compress.decode(slots)
            return {'compression': autoencoding(evicted.vectors, decoded, num_old)}
        stop = jax.lax.stop_gradient

        # Parameters are detached, arguments are not: gradients must reach `slots`.
        def detached(module: Any) -> Callable[[jax.Array], jax.Array]:
            function, variables = as_function(module)
            return lambda x: function(stop(variables), x)

        modules = (self.normalize, self.projections.key, self.projections.value)
        normalize, key, value = (detached(module) for module in modules)
        queries = stop(self.projections.queries(self.normalize(x)))
        old, new = (
            (key(vectors), value(vectors))
            for vectors in (normalize(evicted.vectors), normalize(slots))
        )
        numbers = (num_old, evicted.groups, num_valid)
        scale = self.settings.score_scale
        loss = attention_reconstruction(queries, stop(old), new, *numbers, scale)
        return {'compression': loss}

    def __call__(
        self, x: jax.Array, state: CompressiveState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, CompressiveState, Aux]:
        """Attends to slots, memory and segment, then writes; x, y are [batch, length, d_model]."""
        memory, filled = self._memory(state)
        y = self.attention(x, memory, filled, train=train)
        received = None
        if self._counts_usage():
            received = self.attention.usage(x, memory, filled, segment.num_valid)
            received = received[:, self.compressed_length : -x.shape[1]]
        new, evicted, slots = self._write(state, x, segment.num_valid, received)
        losses = {}
        if self.reconstruction != 'none' and train:
            losses = self._loss(x, evicted, slots, segment.num_valid)
        metrics = {
            'memory_size': mean_count(state.count),
            'compressed_size': mean_count(state.compressed_count),
        }
        return y, new, Aux(losses=losses, metrics=metrics)

    def open_segment(self, state: CompressiveState, batch_size: int) -> CompressiveCache:
        """Projects slots and memory once for all tokens of the segment."""
        memory, filled = self._memory(state)
        settings = self.settings
        usage = None
        if self._counts_usage():
            usage = jnp.zeros((batch_size, self.memory_length), jnp.float32)
        return CompressiveCache(
            self.attention.open(memory, batch_size),
            jnp.zeros((batch_size, settings.segment_length, settings.d_model), settings.dtype),
            filled,
            usage,
        )

    def extend(
        self, x: jax.Array, cache: CompressiveCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, CompressiveCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        y, attention = self.attention.extend(x, cache.attention, index, cache.filled)
        usage = cache.usage
        if usage is not None:
            received = self.attention.usage_of_tokens(x, attention, index, cache.filled, count)
            start = self.compressed_length
            usage = usage + received[:, start : start + self.memory_length]
        hidden = write_at(cache.hidden, x, index, 1)
        return y, cache.replace(attention=attention, hidden=hidden, usage=usage)

    def close_segment(
        self, state: CompressiveState, cache: CompressiveCache, count: jax.Array
    ) -> CompressiveState:
        """Writes the first `count` tokens of the open segment."""
        return self._write(state, cache.hidden, count, cache.usage)[0]


class CompressiveTransformer(nn.Module):
    """Two memories: recent vectors, and slots of `rate` vectors each.

    `Aux.losses['compression']` is the reconstruction loss, in training only.

    Attributes:
      memory_length: hidden vectors kept per layer.
      compressed_length: slots kept per layer.
      rate: hidden vectors per slot.
      compression: what makes slots, 'convolution', 'mean', 'max' or 'most_used'.
      reading: 'segment', as in the paper, or 'sliding'.
      position: position scheme of 'segment'; the paper's is 'transformer_xl'.
      reconstruction: loss of the convolution: 'attention', 'autoencoding' or 'none'.
      start: a document begins with 'empty' memory, or with 'zeros' that are attended to
        ('sliding' only).
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int = 512
    compressed_length: int = 512
    rate: int = 2
    compression: str = 'convolution'
    reading: str = 'segment'
    position: str = 'transformer_xl'
    reconstruction: str = 'attention'
    start: str = 'empty'

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        common: dict[str, Any] = dict(
            settings=self.settings,
            projections=self.projections,
            normalize=self.normalize,
            shared=self.shared,
            memory_length=self.memory_length,
            compressed_length=self.compressed_length,
            rate=self.rate,
            compression=self.compression,
        )
        if self.reading == 'sliding':
            self.layer: Any = SlidingReading(start=self.start, **common)
        else:
            self.layer = SegmentReading(
                position=self.position, reconstruction=self.reconstruction, **common
            )

    def initial_state(self, batch_size: int) -> Any:
        """Empty memories, or zeros; `CompressiveState` or `SlidingState`."""
        return self.layer.initial_state(batch_size)

    def __call__(
        self, x: jax.Array, state: Any, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, Any, Aux]:
        """Attends to slots, memory and segment, then writes; x, y are [batch, length, d_model]."""
        return self.layer(x, state, segment, train=train)

    def open_segment(self, state: Any, batch_size: int) -> Any:
        """Projects slots and memory once for all tokens of the segment."""
        return self.layer.open_segment(state, batch_size)

    def extend(
        self, x: jax.Array, cache: Any, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        return self.layer.extend(x, cache, index, count)

    def close_segment(self, state: Any, cache: Any, count: jax.Array) -> Any:
        """Writes the first `count` tokens of the open segment."""
        return self.layer.close_segment(state, cache, count)


def released(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for the arguments of the released program."""
    rate = settings['compress_rate']
    return dict(
        memory_length=settings['attn_lim'],
        compressed_length=settings['compress_size'] // rate,
        rate=rate,
        compression='mean',
        reading='sliding',
        position='none',
        reconstruction='none',
        start='zeros',
    )


ENTRY = Entry(
    name='compressive',
    layer=LayerType(
        CompressiveTransformer,
        check=check,
        shared=shared,
        losses=lambda fields: () if fields['reconstruction'] == 'none' else ('compression',),
        reach=lambda fields, segment: (
            fields['memory_length'] + fields['rate'] * fields['compressed_length']
        ),
        fused=fused,
    ),
    recipe=Recipes({'compressive': recipe, 'compressive_sliding': sliding_recipe}),
    graft=Graft(
        lambda scale, position: dict(position=position_of_window(position)),
        exact=True,
        how='windows of vectors and slots, masked while they are empty',
        positions="the host's rotary ones; else a bias like ALiBi's beyond the segment",
        recipes=('compressive',),
        groups=rates_of_window,
    ),
    released=ReleasedLayer(released),
    view=View(held, read, lengths={'memory_length': '', 'compressed_length': '+ slots '}),
    toy=dict(memory_length=6, compressed_length=3),
    variants=dict(
        sliding=dict(compression='mean', reading='sliding', position='none', reconstruction='none'),
        most_used=dict(compression='most_used', reconstruction='none', position='rotary'),
    ),
)
