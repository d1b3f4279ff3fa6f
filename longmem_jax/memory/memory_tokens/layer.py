"""Attention in the blocks of a memory transformer: what memory tokens and tokens see.

A segment has leading memory tokens first and trailing ones last; each group sees all of itself and
everything before it. Tokens are causal, and see the leading group. The vectors, and their way from
segment to segment, are in `memory/memory_tokens/tokens.py`. The Transformer-XL cache, if there is one,
also holds memory tokens.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend_in
from longmem_jax.attention.relative_position import shared_biases
from longmem_jax.attention.rules import RelativeTable, Rules
from longmem_jax.attention.self_attention import KeyValues, attention_of, write_at
from longmem_jax.contract import Entry, Fields, LayerType, ModelSettings
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.transformer_xl import TransformerXLState, remember
from longmem_jax.problems import one_of
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import Read, Seen, View, held_window

LOOK_AHEAD = ('nearest', 'released')


class MemTransformerCache(flax.struct.PyTreeNode):
    """What an open segment reads and will write; positions count memory tokens as well.

    Attributes:
      attention: keys and values of the Transformer-XL cache and of the positions so far.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      count: int32 [batch], filled vectors of the Transformer-XL cache.
      end: int32 [batch], position after the trailing memory tokens, set before they are read; 0 until
        then.
    """

    attention: KeyValues
    hidden: jax.Array
    count: jax.Array
    end: jax.Array


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `same_length` has a cache, and the released look-ahead its position scheme."""
    problems = one_of(fields, look_ahead=LOOK_AHEAD)
    if fields['look_ahead'] == 'released' and fields['position'] != 'transformer_xl':
        problems.append("look_ahead = 'released': needs position = 'transformer_xl'")
    if fields['same_length'] and not fields['memory_length']:
        problems.append('same_length = True: needs memory_length > 0, the number of positions seen')
    return problems


def visible(
    queries: jax.Array,
    keys: jax.Array,
    count: jax.Array,
    end: jax.Array,
    *,
    leading: int,
    trailing: int,
    read_cache: bool,
    window: int,
) -> jax.Array:
    """Which keys every query sees.

    Args:
      queries: int32 [batch, queries], positions in the segment.
      keys: int32 [keys], positions in the segment; below 0 in the Transformer-XL cache.
      count: int32 [batch], filled vectors of the cache.
      end: int32 [batch], position after the trailing memory tokens; 0 if there are none.
      leading, trailing: memory tokens per group.
      read_cache: memory tokens see the cache.
      window: tokens see distances below it only; 0 = no limit.

    Returns:
      bool [batch, queries, keys].
    """
    queries, keys, end = queries[..., None], keys[None, None], end[:, None, None]
    first, first_keys = queries < leading, (keys >= 0) & (keys < leading)
    last, last_keys = (
        (positions >= end - trailing) & (positions < end) for positions in (queries, keys)
    )
    memory = first | last
    segment = (keys >= 0) & (keys <= queries)
    segment = segment | (first & first_keys) | (last & last_keys)
    cached = (keys < 0) & (keys >= -count[:, None, None])
    seen = segment | (cached if read_cache else cached & ~memory)
    return seen & (memory | (queries - keys < window)) if window else seen


def released_bias(
    relative: RelativeTable,
    queries: jax.Array,
    keys: jax.Array,
    count: jax.Array,
    *,
    length: int,
    scale: float,
) -> jax.Array:
    """The authors' scores by distance minus ours, for keys ahead of their query.

    Their shift is for causal attention; ahead of a query it reads scores of the next query.

    Args:
      relative: scores by distance; `queries` [batch, heads, queries, head_dim].
      queries, keys, count: as in `visible`.
      length: positions of a full segment.
      scale: factor of the scores.

    Returns:
      [batch, heads, queries, keys], added to the scaled scores; zeros where the key is not ahead.
    """
    ahead = keys[None, None] - queries[..., None]
    at = count[:, None, None] + length + 1 - ahead
    scores = jnp.einsum('bhqd,hcd->bhqc', relative.queries, relative.table)
    following = jnp.concatenate([scores[:, :, 1:], scores[:, :, -1:]], axis=2)
    at = jnp.clip(at, 0, scores.shape[-1] - 1)[:, None]
    shape = (*scores.shape[:3], keys.shape[0])
    released = jnp.take_along_axis(following, jnp.broadcast_to(at, shape), axis=3)
    released = jnp.where((ahead == 1)[:, None], jnp.zeros_like(released), released)
    difference = (released - scores[..., :1]) * jnp.asarray(scale, scores.dtype)
    return jnp.where((ahead >= 1)[:, None], difference, jnp.zeros_like(difference))


class MemTransformer(nn.Module):
    """Attention of a layer through which memory tokens pass, with a Transformer-XL cache.

    Attributes:
      read_cache: memory tokens see the cache.
      look_ahead: relative position of a memory token ahead of another that sees it: 'nearest', as
        if at the same position, or 'released', as the authors' shift gives.
      memory_length: hidden vectors of the cache, 0 = none; may differ in evaluation.
      same_length: tokens see `memory_length` positions, themselves included.
      clamp_length: larger distances are encoded as this one; 0 = no limit.
      position: position scheme; the authors' is 'transformer_xl'.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    read_cache: bool = False
    look_ahead: str = 'nearest'
    memory_length: int = 150
    same_length: bool = False
    clamp_length: int = 0
    position: str = 'transformer_xl'

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = attention_of(self, self.memory_length, clamp_length=self.clamp_length)

    def _keys_values(self, x: jax.Array, start: int | jax.Array) -> KeyValues:
        """Keys and values of normalised `x`, whose first vector has key index `start`."""
        keys = self.attention.relation.apply_to_keys(self.projections.keys(x), start)
        return KeyValues(keys, self.projections.values(x))

    def _attend(
        self,
        x: jax.Array,
        keys_values: KeyValues,
        first: jax.Array,
        count: jax.Array,
        end: jax.Array,
        *,
        offset: int | jax.Array,
        train: bool,
    ) -> jax.Array:
        """Attends from normalised `x`, the first at position `first` and key index `offset`."""
        settings, num_keys = self.settings, keys_values.keys.shape[2]
        steps = jnp.arange(x.shape[1], dtype=jnp.int32)
        queries = first[:, None] + steps[None]
        keys = jnp.arange(num_keys, dtype=jnp.int32) - self.memory_length
        seen = visible(
            queries, keys, count, end, leading=settings.leading, trailing=settings.trailing,
            read_cache=self.read_cache, window=self.memory_length if self.same_length else 0,
        )  # fmt: skip
        related, by_distance = self.attention.relation.apply_to_queries(
            self.projections.queries(x), offset, num_keys, train=train
        )
        bias = None
        if self.look_ahead == 'released':
            bias = released_bias(
                by_distance['relative'], queries, keys, count,
                length=settings.segment_length, scale=settings.score_scale,
            )  # fmt: skip
        rules = Rules(
            offset=offset,
            causal=False,
            mask=seen[:, None],
            bias=bias,
            scale=settings.score_scale,
            **by_distance,
        )
        out = attend_in(
            self.attention, related, keys_values.keys, keys_values.values, rules, train=train,
            parts=self._parts(),
        )  # fmt: skip
        return self.projections.out(out)

    def _parts(self) -> tuple[tuple[str, int], ...]:
        """What the keys are in a full segment; in a shorter one the trailing tokens come earlier."""
        settings = self.settings
        length = settings.segment_length - settings.leading - settings.trailing
        parts = (
            ('cache', self.memory_length),
            ('leading memory tokens', settings.leading),
            ('segment', length),
            ('trailing memory tokens', settings.trailing),
        )
        return tuple(part for part in parts if part[1])

    def initial_state(self, batch_size: int) -> TransformerXLState:
        """An empty cache."""
        shape = (batch_size, self.memory_length, self.settings.d_model)
        return TransformerXLState(
            jnp.zeros(shape, self.settings.dtype), jnp.zeros((batch_size,), jnp.int32)
        )

    def __call__(
        self, x: jax.Array, state: TransformerXLState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, TransformerXLState, Aux]:
        """Attends; x, y are [batch, length, d_model] including memory tokens."""
        num_valid = segment.num_valid
        first = jnp.zeros_like(num_valid)
        joined = normalized = self.normalize(x)
        if self.memory_length:
            joined = jnp.concatenate([self.normalize(state.hidden), normalized], axis=1)
        y = self._attend(
            normalized,
            self._keys_values(joined, 0),
            first,
            state.count,
            num_valid if self.settings.trailing else first,
            offset=self.memory_length,
            train=train,
        )
        metrics = {'memory_size': mean_count(state.count) + self.settings.leading}
        return y, remember(state, x, num_valid), Aux(losses={}, metrics=metrics)

    def open_segment(self, state: TransformerXLState, batch_size: int) -> MemTransformerCache:
        """Projects the cache once for all positions of the segment."""
        shape = (batch_size, self.settings.segment_length, self.settings.d_model)
        return MemTransformerCache(
            self.attention.open(state.hidden, batch_size),
            jnp.zeros(shape, self.settings.dtype),
            state.count,
            jnp.zeros((batch_size,), jnp.int32),
        )

    def before_trailing(self, cache: MemTransformerCache, end: jax.Array) -> MemTransformerCache:
        """The cache with the position after the trailing memory tokens, which see one another."""
        return cache.replace(end=end)

    def extend(
        self, x: jax.Array, cache: MemTransformerCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, MemTransformerCache]:
        """Reads the next tokens, or all memory tokens of a group; see `MemoryLayer`."""
        offset = self.memory_length + index
        normalized = self.normalize(x)
        new = self._keys_values(normalized, offset)
        attention = cache.attention.write_at(new.keys, new.values, offset)
        first = jnp.broadcast_to(jnp.asarray(index, jnp.int32), cache.count.shape)
        y = self._attend(
            normalized, attention, first, cache.count, cache.end, offset=offset, train=False
        )
        hidden = write_at(cache.hidden, x, index, 1)
        return y, cache.replace(attention=attention, hidden=hidden)

    def close_segment(
        self, state: TransformerXLState, cache: MemTransformerCache, count: jax.Array
    ) -> TransformerXLState:
        """Writes the first `count` positions of the open segment, memory tokens included."""
        return remember(state, cache.hidden, count)


def read(seen: Seen) -> dict[str, Read]:
    """The attention to the cache and to the segment."""
    weights = seen.look('attention').weights
    places = jnp.arange(weights.shape[-1], dtype=jnp.int32) - seen.layer.memory_length
    return {'attention': Read(weights.astype(jnp.float32), places[None, None, None])}


ENTRY = Entry(
    name='mem_transformer',
    layer=LayerType(
        MemTransformer,
        check=check,
        shared=shared_biases,
        reach=lambda fields, segment_length: fields['memory_length'],
    ),
    view=View(
        held=lambda layer, state: {'cache': held_window(state.count, layer.memory_length)},
        read=read,
        lengths={'memory_length': ''},
    ),
    toy=dict(memory_length=6),
    variants=dict(
        leading=dict(same_length=True, read_cache=True),
        recurrent=dict(memory_length=0, position='rotary'),
    ),
)
