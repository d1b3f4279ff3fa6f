"""The Compressive baseline of the Expire-Span paper: pooled before reading, windows that slide.

A query sees the `memory_length` positions before it, never itself, and `compressed_length + 1` slots. A
slot pools `rate` neighbours as soon as the first query comes that no longer sees all of them, so nothing
is lost between window and slots, and one slot overlaps the window. One position table, shared by layers
and heads, has a vector for every distance and for every slot, by age.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions, weight_dropout
from longmem_jax.attention.attend import Look, is_inspected, record
from longmem_jax.attention.self_attention import KeyValues, write_at
from longmem_jax.attention.window import push
from longmem_jax.contract import ModelSettings
from longmem_jax.kernels.attention_products import dot, mix, weights_of
from longmem_jax.layers import positions
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.memory.compressive.by_age import at_shifts, of_segment
from longmem_jax.memory.compressive.compression import Compressor
from longmem_jax.segment import Aux, Segment, mean_count


class SlidingState(flax.struct.PyTreeNode):
    """Memories of one layer; vectors in the compute dtype, right-aligned.

    Attributes:
      hidden: [batch, memory_length, d_model]; the last `count` (int32 [batch]) are filled.
      compressed: [batch, compressed_length + 1, d_model]; the last `compressed_count` are filled.
      phase: int32 [batch], tokens of the document so far, modulo the rate.
    """

    hidden: jax.Array
    count: jax.Array
    compressed: jax.Array
    compressed_count: jax.Array
    phase: jax.Array


class SlidingCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      keys, values: [batch, kv_heads, slots + memory_length + segment_length, head_dim]; the slots
        are the old ones, followed by room for new ones.
      hidden: [batch, memory_length + segment_length, d_model], window and inputs so far.
      count, compressed_count, phase: int32 [batch], as in the state.
    """

    keys: jax.Array
    values: jax.Array
    hidden: jax.Array
    count: jax.Array
    compressed_count: jax.Array
    phase: jax.Array


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
        settings = self.settings
        self.compress = Compressor(
            kind=self.compression,
            rate=self.rate,
            settings=settings,
            decodes=False,
        )

    def initial_state(self, batch_size: int) -> SlidingState:
        """Empty memories, or zero vectors."""
        slots, zeros = self.compressed_length + 1, self.start == 'zeros'

        def vectors(length: int) -> jax.Array:
            return jnp.zeros((batch_size, length, self.settings.d_model), self.settings.dtype)

        def filled(length: int) -> jax.Array:
            return jnp.full((batch_size,), length if zeros else 0, jnp.int32)

        return SlidingState(
            hidden=vectors(self.memory_length),
            count=filled(self.memory_length),
            compressed=vectors(slots),
            compressed_count=filled(slots),
            phase=jnp.zeros((batch_size,), jnp.int32),
        )

    def _max_new_slots(self, length: int) -> int:
        """Largest number of new slots in a segment of `length`."""
        return -(-length // self.rate)

    def _first(self, phase: jax.Array) -> jax.Array:
        """Position in the segment of the first query that sees a new slot, int32 [batch]."""
        return (self.rate - phase) % self.rate

    def _num_seen(self, phase: jax.Array, position: jax.Array) -> jax.Array:
        """Number of new slots seen by queries at `position` (int32 [batch | 1, n]): int32 [batch, n]."""
        first = self._first(phase)[:, None]
        return jnp.where(position >= first, (position - first) // self.rate + 1, 0)

    def _pool(self, hidden: jax.Array, start: jax.Array, number: int) -> jax.Array:
        """Pools `number` slots of `hidden` [batch, n, d_model], starting at `start` (int32 [batch])."""
        size = number * self.rate
        hidden = jnp.pad(hidden, [(0, 0), (0, size), (0, 0)])
        take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, size))
        return self.compress(take(hidden, start))

    def _slot_table(self) -> jax.Array:
        """The vectors of the shared table for slots by age, [compressed_length + 1, head_dim]."""
        return self.shared()[self.memory_length :]

    def _scores(
        self,
        queries: jax.Array,
        keys: jax.Array,
        by_age: jax.Array,
        near: jax.Array,
        position: jax.Array,
        state: SlidingState | SlidingCache,
        slots: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Scores of slots, window and segment, and which of them are seen.

        Keys are numbered in three ways, with `old = compressed_length + 1`:

            keys     | old slots     | new slots         | window            | segment           |
            column   | 0 ..   old-1  | old ..   slots-1  | slots ..          |                   |
            j        |               | 0 .. slots-old-1  |                   |                   |
            index    |               |                   | 0 ..     length-1 | length + position |

        New slot j pools `rate` vectors of window and segment, from index `first + j * rate` on. A
        query that sees s new slots sees columns s .. s + old - 1 of the slots, the youngest last:
        scores by age move right by s. Of the window it sees the `length` indices before its own.

        Args:
          queries: [batch, heads, n, head_dim], scaled.
          keys: [batch, heads, slots + memory_length + m, head_dim].
          by_age: [batch, heads, n, slots], scores by age of slots; see `by_age.py`.
          near: [batch, heads, n, memory_length + m], scores by distance of window and segment.
          position: int32 [batch | 1, n], positions of the queries in the segment.
          state: provides `count`, `compressed_count` and `phase`.
          slots: number of columns of slots.

        Returns:
          float [batch, heads, n, keys], and bool [batch, 1, n, keys].
        """
        count, compressed_count, phase = state.count, state.compressed_count, state.phase
        length, old = self.memory_length, self.compressed_length + 1
        seen = jnp.broadcast_to(
            self._num_seen(phase, position), (phase.shape[0], position.shape[1])
        )
        # Added to some columns in place, they would be computed by one core of a CPU.
        scores = dot(queries, keys) + jnp.concatenate([by_age, near], axis=-1)
        column = jnp.arange(slots, dtype=jnp.int32)[None]
        # New slot j begins at index first + j * rate of window and segment.
        begins = self._first(phase)[:, None] + (column - old) * self.rate
        complete = jnp.where(
            column < old,
            column >= old - compressed_count[:, None],
            begins >= length - count[:, None],
        )
        newest = seen[..., None] + old - 1
        visible = complete[:, None] & (column[None] <= newest) & (column[None] > newest - old)
        index = jnp.arange(keys.shape[2] - slots, dtype=jnp.int32)[None, None]
        distance = length + position[..., None] - index
        window = (distance >= 1) & (distance <= length)
        window = window & (index >= (length - count)[:, None, None])
        return scores, jnp.concatenate([visible, window], axis=2)[:, None]

    def _write(self, state: SlidingState, hidden: jax.Array, num_valid: jax.Array) -> SlidingState:
        """The memories after the first `num_valid` (int32 [batch]) of `hidden` [batch, n, d_model]."""
        hidden = jax.lax.stop_gradient(hidden).astype(state.hidden.dtype)
        max_new = self._max_new_slots(hidden.shape[1])
        joined = jnp.concatenate([state.hidden, hidden], axis=1)
        slots = jax.lax.stop_gradient(self._pool(joined, self._first(state.phase), max_new))
        new = self._num_seen(state.phase, num_valid[:, None] - 1)[:, 0]
        compressed, _ = push(state.compressed, state.compressed_count, slots, new)
        # At the start of a document the first slots are pooled of room that was never filled.
        begins = self._first(state.phase)[:, None] + jnp.arange(max_new)[None] * self.rate
        empty = begins < self.memory_length - state.count[:, None]
        complete = new - (empty & (jnp.arange(max_new)[None] < new[:, None])).sum(1, jnp.int32)
        filled = jnp.minimum(state.compressed_count + complete, self.compressed_length + 1)
        return SlidingState(
            *push(state.hidden, state.count, hidden, num_valid),
            compressed=compressed,
            compressed_count=filled,
            phase=(state.phase + num_valid) % self.rate,
        )

    def __call__(
        self, x: jax.Array, state: SlidingState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, SlidingState, Aux]:
        """Attends to slots, window and segment, then writes; x, y are [batch, length, d_model]."""
        settings, length, window = self.settings, x.shape[1], self.memory_length
        state = jax.lax.stop_gradient(state)
        max_new = self._max_new_slots(length)
        hidden = state.hidden
        if window < length + self.rate - 1:  # new slots may reach into the segment
            hidden = jnp.concatenate([hidden, x], axis=1)
        pooled = self._pool(hidden, self._first(state.phase), max_new)
        memory = jnp.concatenate([state.compressed, pooled, state.hidden], axis=1)
        memory, normal = self.normalize(memory), self.normalize(x)
        # Projected separately: the memory needs no gradient.
        keys, values = (
            repeat_heads(
                jnp.concatenate([project(memory), project(normal)], axis=2), settings.num_heads
            )
            for project in (self.projections.keys, self.projections.values)
        )
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        slots = self.compressed_length + 1 + max_new
        scores, seen = self._scores(
            queries,
            keys,
            of_segment(queries, self._slot_table(), self._first(state.phase), self.rate, slots),
            near_positions.whole_segment(queries, self.shared()[:window], window),
            jnp.arange(length, dtype=jnp.int32)[None],
            state,
            slots,
        )
        dropout = weight_dropout.draw(self, train)
        factor = None if dropout is None else dropout.factor(scores)
        if is_inspected(self):
            parts = (('slots', keys.shape[2] - window - length), ('cache', window))
            weights = weights_of(scores, seen, None)
            out = mix(scores, values, seen, None, None)
            record(self, Look(weights, values, out, parts=(*parts, ('segment', length))))
        y = self.projections.out(mix(scores, values, seen, None, factor))
        metrics = {
            'memory_size': mean_count(state.count),
            'compressed_size': mean_count(state.compressed_count),
        }
        return y, self._write(state, x, segment.num_valid), Aux(losses={}, metrics=metrics)

    def _cache_slots(self) -> int:
        """Columns of slots in a cache: old, new, and room for a write that reaches beyond them."""
        return (
            self.compressed_length + 1 + 2 * (self._max_new_slots(self.settings.segment_length) + 1)
        )

    def open_segment(self, state: SlidingState, batch_size: int) -> SlidingCache:
        """Projects slots and window once for all tokens of the segment."""
        settings = self.settings
        room = self._cache_slots() - state.compressed.shape[1]
        memory = self.normalize(jnp.concatenate([state.compressed, state.hidden], axis=1))
        old = state.compressed.shape[1]

        def with_room(projected: jax.Array) -> jax.Array:
            part = jnp.pad(projected, [(0, 0), (0, 0), (0, settings.segment_length), (0, 0)])
            gap = jnp.zeros((*part.shape[:2], room, part.shape[3]), part.dtype)
            return jnp.concatenate([part[:, :, :old], gap, part[:, :, old:]], axis=2)

        return SlidingCache(
            with_room(self.projections.keys(memory)),
            with_room(self.projections.values(memory)),
            jnp.pad(state.hidden, [(0, 0), (0, settings.segment_length), (0, 0)]),
            state.count,
            state.compressed_count,
            state.phase,
        )

    def extend(
        self, x: jax.Array, cache: SlidingCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, SlidingCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        settings, window, slots = self.settings, self.memory_length, self._cache_slots()
        hidden = write_at(cache.hidden, x, window + index, 1)
        # Pools the first slot that no earlier token saw, and those after it. Slots that are not seen
        # yet still lack vectors; they are pooled again later.
        position = positions.following(index, x.shape[1])
        begun = self._num_seen(cache.phase, position[:, :1] - 1)[:, 0]
        start = self._first(cache.phase) + begun * self.rate
        new = self.normalize(self._pool(hidden, start, x.shape[1] // self.rate + 1))
        normal = self.normalize(x)
        slot = self.compressed_length + 1 + begun
        keys, values = (
            write_at(
                write_at(cached, project(new), slot, 2), project(normal), slots + window + index, 2
            )
            for cached, project in (
                (cache.keys, self.projections.keys),
                (cache.values, self.projections.values),
            )
        )
        cache = cache.replace(keys=keys, values=values, hidden=hidden)
        read = KeyValues(keys, values).before(slots + window + index + x.shape[1])
        keys, values = (
            repeat_heads(array, settings.num_heads) for array in (read.keys, read.values)
        )
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        column = jnp.arange(keys.shape[2] - slots, dtype=jnp.int32)[None, None]
        distance = window + position[..., None] - column
        seen = self._num_seen(cache.phase, position)
        by_age = at_shifts(queries, self._slot_table(), seen, slots)
        scores, seen = self._scores(
            queries,
            keys,
            by_age,
            near_positions.of_tokens(queries, self.shared()[:window], window + index, distance),
            position,
            cache,
            slots,
        )
        return self.projections.out(mix(scores, values, seen, None, None)), cache

    def close_segment(
        self, state: SlidingState, cache: SlidingCache, count: jax.Array
    ) -> SlidingState:
        """Writes the first `count` tokens of the open segment."""
        return self._write(state, cache.hidden[:, self.memory_length :], count)
