"""Attention with normalised queries and keys, a scale per head, and a cache of recent keys and values.

The local attention of the Memorizing Transformer (Wu et al., 2022, as released): unit keys and
queries, scores and position biases times a learned scale, a Transformer-XL cache that
keeps keys and values as they were computed.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend_in
from longmem_jax.attention.relative_position import RelativePosition
from longmem_jax.attention.rules import Rules
from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.attention.window import check_sinks, push
from longmem_jax.contract import STARTS, Fields, ModelSettings, Scale
from longmem_jax.layers import feature_maps, initializers
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.in_hosts import FIRST_TOKENS, room_of_window
from longmem_jax.problems import above, at_least, one_of
from longmem_jax.segment import count_on
from longmem_jax.views import Held, held_window

POSITIONS = ('t5', 'alibi', 'rotary', 'none')
EPSILON = 1e-6  # added to the squared length of queries and keys


def fused(fields: Fields) -> str:
    """What keeps local attention from the fused kernel, see `contract.LayerType.fused`."""
    if not fields['attend_self']:
        return 'attend_self = False masks single pairs, which it does not do'
    return ''


class RecentKeys(flax.struct.PyTreeNode):
    """Keys and values of the last tokens.

    Attributes:
      keys, values: [batch, kv_heads, memory_length, head_dim]; the last `min(count, memory_length)` are
        filled.
      count: int32 [batch], tokens of the document so far; it stays at 2^31 - 1. 0 without a cache.
    """

    keys: jax.Array
    values: jax.Array
    count: jax.Array


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that the scale is positive, lengths are not negative, and first tokens can be seen."""
    problems = [
        *one_of(fields, position=POSITIONS, start=STARTS),
        *above(fields, 0, 'scale_init'),
        *at_least(fields, 0, 'memory_length', 'window', 'sinks'),
    ]
    if fields['sinks'] and not problems:
        problems = check_sinks(fields)
        if fields['window']:
            problems.append(
                f'window = {fields["window"]}: hides the first sinks = {fields["sinks"]} tokens; set '
                'one of them to 0'
            )
    return problems


class NormalizedAttention(nn.Module):
    """Local attention and the cache of recent keys; not a layer by itself.

    Attributes:
      settings: sizes of the model.
      projections: those of the layer that owns this module.
      position: 't5', 'alibi', 'rotary' or 'none'.
      memory_length: keys kept of the last tokens; 0 = none.
      window: largest distance that is seen; 0 = no limit.
      attend_self: queries see themselves; in the released code they do not.
      start: 'empty', or documents begin with zero vectors that are attended to ('zeros').
      scale_init: initial scales. With 1, as released, attention begins almost uniform over keys, and
        only an optimizer with relative steps, such as Adafactor, soon changes that.
      normalized: queries and keys are unit vectors, with a learned scale; False = as they are, with
        the scale of the model, as in pretrained decoders.
      sinks: first tokens of a document that the cache never drops, see `memory/sinks.py`.
    """

    settings: ModelSettings
    projections: Projections
    position: str
    memory_length: int
    window: int
    attend_self: bool
    start: str
    scale_init: float
    normalized: bool = True
    sinks: int = 0

    def setup(self) -> None:
        settings = self.settings
        if self.normalized:
            constant = nn.initializers.constant(self.scale_init)
            constant = initializers.with_axes(constant, ('heads',))
            self.scale = self.param('scale', constant, (settings.num_heads,))
        self.score_scale = 1.0 if self.normalized else settings.score_scale
        distances = self.memory_length + settings.segment_length
        self.relation = RelativePosition(
            settings, None, self.position, num_distances=distances, clamp_length=0
        )

    def initial(self, batch_size: int) -> RecentKeys:
        """An empty cache."""
        settings = self.settings
        shape = (batch_size, settings.kv_heads, self.memory_length, settings.head_dim)
        room = jnp.zeros(shape, settings.dtype)
        return RecentKeys(room, room, jnp.zeros((batch_size,), jnp.int32))

    def queries(self, x: jax.Array) -> jax.Array:
        """Queries of `x` times their scale, if it is learned; without positions."""
        if not self.normalized:
            return self.projections.queries(x)
        scale = jnp.abs(self.scale)[None, :, None, None].astype(self.settings.dtype)
        return feature_maps.unit(self.projections.queries(x), EPSILON) * scale

    def key_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys, without positions, and values of `x`, [batch, kv_heads, n, head_dim] each."""
        if not self.normalized:
            return self.projections.keys(x), self.projections.values(x)
        return feature_maps.unit(self.projections.keys(x), EPSILON), self.projections.values(x)

    def local(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        offset: int | jax.Array,
        count: jax.Array,
        train: bool,
    ) -> jax.Array:
        """Attention to the recent keys and the segment: [batch, heads, n, head_dim].

        Args:
          queries: see `queries`.
          keys, values: [batch, kv_heads, memory_length + m, head_dim].
          offset: key index of the first query, int or int32 [batch].
          count: int32 [batch], see `RecentKeys`.
          train: turns dropout on.
        """
        num_queries, num_keys = queries.shape[2], keys.shape[2]
        first, mask, bias = None, None, None
        if self.memory_length and self.start == 'empty':
            first = self.memory_length - jnp.minimum(count, self.memory_length)
        if not self.attend_self:
            position = jnp.asarray(offset, jnp.int32).reshape(-1, 1, 1)
            position = position + jnp.arange(num_queries, dtype=jnp.int32)[None, :, None]
            mask = (position != jnp.arange(num_keys, dtype=jnp.int32)[None, None])[:, None]
        queries, by_distance = self.relation.apply_to_queries(
            queries, offset, num_keys, train=train
        )
        keys = self.relation.apply_to_keys(keys, 0)
        if by_distance:
            bias = by_distance['distance_bias']
            bias = bias * jnp.abs(self.scale)[:, None] if self.normalized else bias
        rules = Rules(
            offset=offset,
            first=first,
            mask=mask,
            window=self.window and self.window + 1,
            distance_bias=bias,
            scale=self.score_scale,
        )
        parts = (('cache', self.memory_length), ('segment', num_keys - self.memory_length))
        return attend_in(self, queries, keys, values, rules, train=train, parts=parts)

    def whole(
        self, x: jax.Array, recent: RecentKeys, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Queries, keys, values and local attention of a whole segment `x`, normalised."""
        queries, (keys, values) = self.queries(x), self.key_values(x)
        all_keys = jnp.concatenate([recent.keys, keys], axis=2)
        all_values = jnp.concatenate([recent.values, values], axis=2)
        local = self.local(queries, all_keys, all_values, self.memory_length, recent.count, train)
        return queries, keys, values, local

    def open(self, recent: RecentKeys, batch_size: int) -> KeyValues:
        """Recent keys and values, followed by room for those of the segment."""
        settings = self.settings
        shape = (batch_size, settings.kv_heads, settings.segment_length, settings.head_dim)
        room = jnp.zeros(shape, settings.dtype)
        both = (recent.keys, recent.values)
        return KeyValues(*(jnp.concatenate([each, room], axis=2) for each in both))

    def tokens(
        self, x: jax.Array, cache: KeyValues, count: jax.Array, index: int | jax.Array
    ) -> tuple[jax.Array, jax.Array, KeyValues]:
        """Queries and local attention of the next tokens of an open segment, and the new cache."""
        queries, (keys, values) = self.queries(x), self.key_values(x)
        offset = self.memory_length + index
        cache = cache.write_at(keys, values, offset)
        seen = cache.before(offset + x.shape[1])
        return queries, self.local(queries, seen.keys, seen.values, offset, count, False), cache

    def segment_of(self, cache: KeyValues) -> tuple[jax.Array, jax.Array]:
        """Keys and values of the open segment alone."""
        return cache.keys[:, :, self.memory_length :], cache.values[:, :, self.memory_length :]

    def remember(
        self, recent: RecentKeys, keys: jax.Array, values: jax.Array, num_valid: jax.Array
    ) -> RecentKeys:
        """Writes the first `num_valid` (int32 [batch]) keys and values, detached."""
        if not self.memory_length:
            return recent

        filled = jnp.minimum(recent.count, self.memory_length)

        def written(old: jax.Array, new: jax.Array) -> jax.Array:
            old, new = jnp.swapaxes(old, 1, 2), jnp.swapaxes(jax.lax.stop_gradient(new), 1, 2)
            return jnp.swapaxes(push(old, filled, new, num_valid, self.sinks)[0], 1, 2)

        both = written(recent.keys, keys), written(recent.values, values)
        return RecentKeys(*both, count_on(recent.count, num_valid))


def of_host(scale: Scale, position: str) -> dict[str, Any]:
    """Fields in a pretrained decoder: its scores, and a window that keeps the first tokens."""
    rotary = position != 'none'
    length, sinks = (room_of_window(scale.segment), FIRST_TOKENS) if rotary else (0, 0)
    return dict(position=position, memory_length=length, sinks=sinks, normalized=False)


def held(layer: Any, recent: RecentKeys) -> Held:
    """The recent tokens of a layer with these fields."""
    return held_window(recent.count, layer.memory_length, sinks=layer.sinks)


def attention_of(layer: Any) -> NormalizedAttention:
    """The local attention of a layer with `settings`, `projections` and its fields; for `setup`."""
    return NormalizedAttention(
        settings=layer.settings,
        projections=layer.projections,
        position=layer.position,
        memory_length=layer.memory_length,
        window=layer.window,
        attend_self=layer.attend_self,
        start=layer.start,
        scale_init=layer.scale_init,
        normalized=layer.normalized,
        sinks=layer.sinks,
    )
