"""Attention to the last `window` tokens through their keys and values: what decoders are trained with.

The state is the key-value cache of such a decoder: a text of any length can be read in segments
and gives what the decoder computes from the whole text at once. Keys are kept without their positions,
which are counted from the start of the cache whenever it is read. Gradients go through the cache to
earlier segments of the same training step.

Tokens see `window` tokens, and the cache has room for those before the segment. A run whose texts are
shorter, or that has less memory, keeps fewer (`settings.cache_tokens`): then tokens see what is kept and
their own segment. Nothing else depends on it. Outside of training, several tokens at once read only the
filled part of a long cache.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import fused_rules
from longmem_jax.attention.attend import attend_in, is_inspected
from longmem_jax.attention.filled import attend_to_filled
from longmem_jax.attention.relative_position import RelativePosition
from longmem_jax.attention.rules import Rules
from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.attention.window import newest
from longmem_jax.contract import Entry, Fields, LayerType, ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import HeadsIn, Projections
from longmem_jax.problems import at_least
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import View, held_window, read_window


class FullState(flax.struct.PyTreeNode):
    """The cache of one layer at a segment border.

    Attributes:
      keys, values: [batch, kv_heads, slots, head_dim]; the last `count` are filled. Keys have no
        position yet.
      count: int32 [batch].
    """

    keys: jax.Array
    values: jax.Array
    count: jax.Array


class FullCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: keys, with positions, and values of the state and of the tokens so far.
      count: int32 [batch], as in the state.
    """

    attention: KeyValues
    count: jax.Array


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that tokens see at least one token before them."""
    return at_least(fields, 2, 'window')


class FullAttention(nn.Module):
    """Attention to the last `window` tokens, the query's own included.

    Attributes:
      window: tokens seen; of a pretrained decoder the length of its context, or of its sliding window.
      position: position scheme, one of `attention.relative_position.POSITIONS`.
      output_gate: what is read is multiplied by the sigmoid of a linear map of the token.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    window: int = 1024
    position: str = 'rotary'
    output_gate: bool = False

    def setup(self) -> None:
        settings = self.settings
        self.projections = Projections(settings)
        if self.output_gate:
            self.gate = HeadsIn(
                settings.num_heads,
                settings.head_dim,
                dtype=settings.dtype,
                kernel_init=initializers.kernel(settings),
            )
        self.relation = RelativePosition(
            settings=settings,
            shared=None,
            kind=self.position,
            num_distances=self.window,
            clamp_length=0,
        )

    @property
    def slots(self) -> int:
        """Tokens that the cache has room for."""
        return min(self.window, self.settings.cache_tokens or self.window)

    def _room(self, batch_size: int, length: int) -> jax.Array:
        """Zeros for keys or values of `length` tokens."""
        settings = self.settings
        shape = (batch_size, settings.kv_heads, length, settings.head_dim)
        return jnp.zeros(shape, settings.cache_dtype or settings.dtype)

    def initial_state(self, batch_size: int) -> FullState:
        """An empty cache."""
        room = self._room(batch_size, self.slots)
        return FullState(room, room, jnp.zeros((batch_size,), jnp.int32))

    def _read(
        self,
        x: jax.Array,
        cache: KeyValues,
        offset: int | jax.Array,
        count: jax.Array,
        train: bool,
    ) -> jax.Array:
        """Attends from normalised `x` [batch, n, d_model], whose first key has index `offset`."""
        num_keys = cache.keys.shape[2]
        queries, by_distance = self.relation.apply_to_queries(
            self.projections.queries(x), offset, num_keys, train=train
        )
        seen: dict[str, Any] = dict(window=self.window, scale=self.settings.score_scale)
        plain = self.settings.kernels == 'plain' and not train and not is_inspected(self)
        if x.shape[1] > 1 and plain and not by_distance:
            rows = (queries, cache.keys, cache.values, count)
            out = attend_to_filled(*rows, slots=self.slots, offset=offset, **seen)
        else:
            rules = Rules(offset=offset, first=self.slots - count, **seen, **by_distance)
            parts = (('cache', self.slots), ('segment', num_keys - self.slots))
            keys, values = (array.astype(queries.dtype) for array in (cache.keys, cache.values))
            out = attend_in(self, queries, keys, values, rules, train=train, parts=parts)
        if self.output_gate:
            out = out * jax.nn.sigmoid(self.gate(x))
        return self.projections.out(out)

    def __call__(
        self, x: jax.Array, state: FullState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, FullState, Aux]:
        """Attends to cache and segment, then writes; x, y are [batch, length, d_model]."""
        x = self.normalize(x)
        keys, values = self.projections.keys(x), self.projections.values(x)
        joined = KeyValues(_joined(state.keys, keys), _joined(state.values, values))
        placed = joined.replace(keys=self.relation.apply_to_keys(joined.keys, 0))
        y = self._read(x, placed, self.slots, state.count, train)
        metrics = {'memory_size': mean_count(state.count)}
        return y, remember(state, joined, segment.num_valid), Aux({}, metrics)

    def open_segment(self, state: FullState, batch_size: int) -> FullCache:
        """Gives the cached keys their positions, once for all tokens of the segment."""
        room = self._room(batch_size, self.settings.segment_length)
        placed = self.relation.apply_to_keys(state.keys.astype(self.settings.dtype), 0)
        joined = (_joined(array.astype(room.dtype), room) for array in (placed, state.values))
        return FullCache(KeyValues(*joined), state.count)

    def extend(
        self, x: jax.Array, cache: FullCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, FullCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`.

        `index` may also be int32 [], the same in all lanes.
        """
        x, offset = self.normalize(x), self.slots + index
        keys, values = self.projections.keys(x), self.projections.values(x)
        placed = self.relation.apply_to_keys(keys, offset)
        joined = cache.attention.write_at(placed, values, offset)
        y = self._read(x, joined.before(offset + x.shape[1]), offset, cache.count, False)
        return y, cache.replace(attention=joined)

    def close_segment(self, state: FullState, cache: FullCache, count: jax.Array) -> FullState:
        """Writes the first `count` tokens of the open segment."""
        placed = cache.attention.keys[:, :, self.slots :].astype(self.settings.dtype)
        keys = self.relation.remove_from_keys(placed, self.slots)
        joined = KeyValues(_joined(state.keys, keys), cache.attention.values)
        return remember(state, joined, count)


def _joined(kept: jax.Array, new: jax.Array) -> jax.Array:
    """Keys or values of the cache, then those of the segment, in the dtype of the latter."""
    return jnp.concatenate([kept.astype(new.dtype), new], axis=2)


def remember(state: FullState, joined: KeyValues, num_valid: jax.Array) -> FullState:
    """The last tokens of `joined`, up to the first `num_valid` (int32 [batch]) of the segment.

    `joined` has the cache and a segment, keys without positions.
    """
    slots = state.keys.shape[2]
    keys, values = (
        newest(new, num_valid, slots, axis=2).astype(old.dtype)
        for new, old in ((joined.keys, state.keys), (joined.values, state.values))
    )
    return FullState(keys, values, jnp.minimum(state.count + num_valid, slots))


ENTRY = Entry(
    name='full',
    layer=LayerType(
        FullAttention,
        check=check,
        reach=lambda fields, segment: fields['window'] - 1,
        fused=fused_rules.position_problem,
        context=lambda fields: fields['window'],
    ),
    view=View(
        held=lambda layer, state: {'cache': held_window(state.count, layer.slots)},
        read=lambda seen: read_window(seen.look()),
        lengths={'window': ''},
    ),
    toy=dict(window=6),
    variants=dict(alibi=dict(position='alibi', window=4, output_gate=True)),
)
