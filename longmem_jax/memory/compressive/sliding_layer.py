"""The module of the Compressive baseline of the Expire-Span paper; its equations are in `sliding.py`."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.attention.attend import mix_in
from longmem_jax.attention.self_attention import KeyValues, write_at
from longmem_jax.contract import ModelSettings
from longmem_jax.kernels.attention_products import dot
from longmem_jax.layers import positions
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.memory.compressive.by_age import at_shifts, of_segment
from longmem_jax.memory.compressive.compression import Compressor
from longmem_jax.memory.compressive.sliding import (
    SlidingCache,
    SlidingState,
    empty_state,
    first_seeing,
    most_new,
    num_seen,
    remember,
    to_pool,
    visible,
)
from longmem_jax.segment import Aux, Segment, mean_count


class SlidingReading(nn.Module):
    """The baseline's layer; attributes as in `CompressiveTransformer`. Memories are detached."""

    settings: ModelSettings
    projections: Projections
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int
    compressed_length: int
    rate: int
    compression: str
    start: str

    def setup(self) -> None:
        self.compress = Compressor(self.compression, self.rate, self.settings, decodes=False)

    def initial_state(self, batch_size: int) -> SlidingState:
        """Empty memories, or zero vectors."""
        zeros = self.start == 'zeros'
        return empty_state(
            self.settings, batch_size, self.memory_length, self.compressed_length + 1, zeros
        )

    def _pool(self, hidden: jax.Array, start: jax.Array, number: int) -> jax.Array:
        """Pools `number` slots of `hidden` [batch, n, d_model], starting at `start` (int32 [batch])."""
        return self.compress(to_pool(hidden, start, number * self.rate))

    def _slot_table(self) -> jax.Array:
        """The vectors of the shared table for slots by age, [compressed_length + 1, head_dim]."""
        return self.shared()[self.memory_length :]

    def _mix(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        by_age: jax.Array,
        near: jax.Array,
        position: jax.Array,
        state: SlidingState | SlidingCache,
        train: bool = False,
    ) -> jax.Array:
        """What scaled queries read of slots, window and segment: [batch, n, d_model].

        Args:
          queries, keys, values: [batch, heads | kv_heads, n | slots + memory_length + m, head_dim].
          by_age, near: scores of slots, see `by_age.py`, and of window and segment by distance.
          position, state: as in `visible`.
          train: turns dropout on.
        """
        keys, values = (repeat_heads(each, queries.shape[1]) for each in (keys, values))
        # Added to some columns in place, they would be computed by one core of a CPU.
        scores = dot(queries, keys) + jnp.concatenate([by_age, near], axis=-1)
        window, slots, num_keys = self.memory_length, by_age.shape[3], keys.shape[2]
        sizes = dict(window=window, old=self.compressed_length + 1, rate=self.rate, slots=slots)
        seen = visible(state, position, num_keys=num_keys, **sizes)
        parts = (('slots', slots), ('cache', window), ('segment', num_keys - slots - window))
        return self.projections.out(mix_in(self, scores, values, seen, train=train, parts=parts))

    def __call__(
        self, x: jax.Array, state: SlidingState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, SlidingState, Aux]:
        """Attends to slots, window and segment, then writes; x, y are [batch, length, d_model]."""
        length, window = x.shape[1], self.memory_length
        state = jax.lax.stop_gradient(state)
        first = first_seeing(state.phase, self.rate)
        hidden = state.hidden
        if window < length + self.rate - 1:  # new slots may reach into the segment
            hidden = jnp.concatenate([hidden, x], axis=1)
        pooled = self._pool(hidden, first, most_new(length, self.rate))
        memory = jnp.concatenate([state.compressed, pooled, state.hidden], axis=1)
        memory, normal = self.normalize(memory), self.normalize(x)
        # Projected separately: the memory needs no gradient.
        keys, values = (
            jnp.concatenate([project(memory), project(normal)], axis=2)
            for project in (self.projections.keys, self.projections.values)
        )
        queries = self.projections.scaled_queries(normal)
        slots = keys.shape[2] - window - length
        by_age = of_segment(queries, self._slot_table(), first, self.rate, slots)
        near = near_positions.whole_segment(queries, self.shared()[:window], window)
        position = jnp.arange(length, dtype=jnp.int32)[None]
        y = self._mix(queries, keys, values, by_age, near, position, state, train)
        metrics = {
            'memory_size': mean_count(state.count),
            'compressed_size': mean_count(state.compressed_count),
        }
        new = remember(state, x, segment.num_valid, self.compress, self.rate)
        return y, new, Aux(losses={}, metrics=metrics)

    def _cache_slots(self) -> int:
        """Columns of slots in a cache: old, new, and room for a write that reaches beyond them."""
        new = most_new(self.settings.segment_length, self.rate)
        return self.compressed_length + 1 + 2 * (new + 1)

    def open_segment(self, state: SlidingState, batch_size: int) -> SlidingCache:
        """Projects slots and window once for all tokens of the segment."""
        length, old = self.settings.segment_length, state.compressed.shape[1]
        room = self._cache_slots() - old
        memory = self.normalize(jnp.concatenate([state.compressed, state.hidden], axis=1))

        def with_room(projected: jax.Array) -> jax.Array:
            part = jnp.pad(projected, [(0, 0), (0, 0), (0, length), (0, 0)])
            gap = jnp.zeros((*part.shape[:2], room, part.shape[3]), part.dtype)
            return jnp.concatenate([part[:, :, :old], gap, part[:, :, old:]], axis=2)

        return SlidingCache(
            with_room(self.projections.keys(memory)),
            with_room(self.projections.values(memory)),
            jnp.pad(state.hidden, [(0, 0), (0, length), (0, 0)]),
            *(state.count, state.compressed_count, state.phase),
        )

    def extend(
        self, x: jax.Array, cache: SlidingCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, SlidingCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        window, slots = self.memory_length, self._cache_slots()
        hidden = write_at(cache.hidden, x, window + index, 1)
        # Pools the first slot that no earlier token saw, and those after it. Slots that are not seen
        # yet still lack vectors; they are pooled again later.
        position = positions.following(index, x.shape[1])
        begun = num_seen(cache.phase, position[:, :1] - 1, self.rate)[:, 0]
        start = first_seeing(cache.phase, self.rate) + begun * self.rate
        new = self.normalize(self._pool(hidden, start, x.shape[1] // self.rate + 1))
        normal = self.normalize(x)
        slot = self.compressed_length + 1 + begun
        project = self.projections
        cached = KeyValues(cache.keys, cache.values)
        cached = cached.write_at(project.keys(new), project.values(new), slot)
        cached = cached.write_at(
            project.keys(normal), project.values(normal), slots + window + index
        )
        cache = cache.replace(keys=cached.keys, values=cached.values, hidden=hidden)
        read = cached.before(slots + window + index + x.shape[1])
        queries = self.projections.scaled_queries(normal)
        column = jnp.arange(read.keys.shape[2] - slots, dtype=jnp.int32)[None, None]
        distance = window + position[..., None] - column
        seen = num_seen(cache.phase, position, self.rate)
        by_age = at_shifts(queries, self._slot_table(), seen, slots)
        table = self.shared()[:window]
        near = near_positions.of_tokens(queries, table, window + index, distance)
        return self._mix(queries, read.keys, read.values, by_age, near, position, cache), cache

    def close_segment(
        self, state: SlidingState, cache: SlidingCache, count: jax.Array
    ) -> SlidingState:
        """Writes the first `count` tokens of the open segment."""
        hidden = cache.hidden[:, self.memory_length :]
        return remember(state, hidden, count, self.compress, self.rate)
