"""The Compressive baseline of the Expire-Span paper: pooled before reading, windows that slide.

A query sees the `memory_length` places before it, never itself, and `compressed_length + 1` slots. A
slot pools `rate` neighbours as soon as the oldest query that no longer sees all of them is there, so
nothing is lost between window and slots, and one slot overlaps the window. One position table, shared
by layers and heads, has a vector for every slot, by age, and every distance.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import near_positions, weight_dropout
from longmem_jax.layers.attention_products import dot, mix
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.layers.self_attention import write_at
from longmem_jax.layers.window import push
from longmem_jax.memory.compressive.compression import Compressor
from longmem_jax.segment import Aux, Segment, mean_count


@flax.struct.dataclass
class SlidingState:
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


@flax.struct.dataclass
class SlidingCache:
    """What an open segment reads and will write.

    Attributes:
      keys, values: [batch, kv_heads, slots + memory_length + segment_length, head_dim]; the slots
        are the old ones and room for new ones.
      hidden: [batch, memory_length + segment_length, d_model], window and inputs so far.
      count, compressed_count, phase: int32 [batch], as in the state.
    """

    keys: jax.Array
    values: jax.Array
    hidden: jax.Array
    count: jax.Array
    compressed_count: jax.Array
    phase: jax.Array


def shift_right(rows: jax.Array, steps: jax.Array, at_most: int) -> jax.Array:
    """Moves every row of scores to the right by its own number of columns; zeros move in.

    In log2(at_most) steps, each of which moves all rows by 1, 2, 4, ... columns and keeps what the
    bits of `steps` ask for. A gather by index would do it in one step, but its derivative is a
    scatter of all scores, where that of a selection is another selection.

    Args:
      rows: [batch, heads, queries, columns].
      steps: int32 [batch, queries], each in 0 .. at_most.
      at_most: static.

    Returns:
      [batch, heads, queries, columns + at_most].
    """
    rows = jnp.pad(rows, [(0, 0)] * 3 + [(0, at_most)])
    for bit in range(at_most.bit_length()):
        step = min(1 << bit, rows.shape[3])
        moved = jnp.pad(rows, [(0, 0)] * 3 + [(step, 0)])[..., : rows.shape[3]]
        chosen = (steps >> bit) & 1 == 1
        rows = jnp.where(chosen[:, None, :, None], moved, rows)
    return rows


class SlidingReading(nn.Module):
    """Attributes as in `CompressiveTransformer`; all vectors of memories are detached."""

    settings: ModelSettings
    projections: Projections
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int
    compressed_length: int
    rate: int
    compression: str
    start: str

    def setup(self):
        settings = self.settings
        self.compress = Compressor(
            kind=self.compression,
            rate=self.rate,
            d_model=settings.d_model,
            decodes=False,
            init_std=settings.init_std,
        )

    def initial_state(self, batch_size: int) -> SlidingState:
        """Nothing, or zero vectors."""
        slots, zeros = self.compressed_length + 1, self.start == 'zeros'

        def rows(number):
            return jnp.zeros((batch_size, number, self.settings.d_model), self.settings.dtype)

        def filled(number):
            return jnp.full((batch_size,), number if zeros else 0, jnp.int32)

        return SlidingState(
            hidden=rows(self.memory_length),
            count=filled(self.memory_length),
            compressed=rows(slots),
            compressed_count=filled(slots),
            phase=jnp.zeros((batch_size,), jnp.int32),
        )

    def _at_most(self, length: int) -> int:
        """New slots that a segment of `length` can bring."""
        return -(-length // self.rate)

    def _first(self, phase: jax.Array) -> jax.Array:
        """Position in the segment of the first query that sees a new slot, int32 [batch]."""
        return (self.rate - phase) % self.rate

    def _seen(self, phase: jax.Array, place: jax.Array) -> jax.Array:
        """New slots that queries at positions `place` (int32 [batch | 1, n]) see: [batch, n]."""
        first = self._first(phase)[:, None]
        return jnp.where(place >= first, (place - first) // self.rate + 1, 0)

    def _pool(self, hidden: jax.Array, start: jax.Array, number: int) -> jax.Array:
        """`number` slots of `hidden` [batch, n, d_model] from position `start` (int32 [batch]) on."""
        size = number * self.rate
        hidden = jnp.pad(hidden, [(0, 0), (0, size), (0, 0)])
        take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, size))
        return self.compress(take(hidden, start))

    def _scores(
        self,
        queries: jax.Array,
        keys: jax.Array,
        near: jax.Array,
        place: jax.Array,
        state: SlidingState | SlidingCache,
        slots: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Scores of slots, window and segment, and which of them are seen.

        Three ways to count the same keys, with `old = compressed_length + 1`:

            keys     | old slots     | new slots         | window            | segment          |
            column   | 0 ..   old-1  | old ..   slots-1  | slots ..          |                  |
            j        |               | 0 .. slots-old-1  |                   |                  |
            index    |               |                   | 0 ..     length-1 | length + place   |

        New slot j pools the window and segment from index `first + j * rate` on, `rate` of them. A
        query that sees s new slots sees columns s .. s + old - 1 of the slots, the youngest last:
        scores by age move right by s. Of the window it sees the `length` indices before its own.

        Args:
          queries: [batch, heads, n, head_dim], scaled.
          keys: [batch, heads, slots + memory_length + m, head_dim].
          near: [batch, heads, n, memory_length + m], scores by distance of window and segment.
          place: int32 [batch | 1, n], positions of the queries in the segment.
          state: its `count`, `compressed_count` and `phase` are used.
          slots: columns of slots.

        Returns:
          float [batch, heads, n, keys], and bool [batch, 1, n, keys].
        """
        count, compressed_count, phase = state.count, state.compressed_count, state.phase
        length, old = self.memory_length, self.compressed_length + 1
        table = self.shared()[length:].astype(queries.dtype)
        seen = jnp.broadcast_to(self._seen(phase, place), (phase.shape[0], place.shape[1]))
        by_age = shift_right(dot(queries, table[::-1]), seen, slots - old)
        scores = dot(queries, keys) + jnp.concatenate([by_age, near], axis=3)
        column = jnp.arange(slots, dtype=jnp.int32)[None]
        # New slot j begins at place first + j * rate of window and segment.
        begins = self._first(phase)[:, None] + (column - old) * self.rate
        whole = jnp.where(
            column < old,
            column >= old - compressed_count[:, None],
            begins >= length - count[:, None],
        )
        newest = seen[..., None] + old - 1
        visible = whole[:, None] & (column[None] <= newest) & (column[None] > newest - old)
        index = jnp.arange(keys.shape[2] - slots, dtype=jnp.int32)[None, None]
        distance = length + place[..., None] - index
        window = (distance >= 1) & (distance <= length)
        window = window & (index >= (length - count)[:, None, None])
        return scores, jnp.concatenate([visible, window], axis=2)[:, None]

    def _write(self, state: SlidingState, hidden: jax.Array, num_valid: jax.Array) -> SlidingState:
        """The memories after the first `num_valid` (int32 [batch]) of `hidden` [batch, n, d_model]."""
        hidden = jax.lax.stop_gradient(hidden).astype(state.hidden.dtype)
        at_most = self._at_most(hidden.shape[1])
        rows = jnp.concatenate([state.hidden, hidden], axis=1)
        slots = jax.lax.stop_gradient(self._pool(rows, self._first(state.phase), at_most))
        new = self._seen(state.phase, num_valid[:, None] - 1)[:, 0]
        return SlidingState(
            *push(state.hidden, state.count, hidden, num_valid),
            *push(state.compressed, state.compressed_count, slots, new),
            phase=(state.phase + num_valid) % self.rate,
        )

    def __call__(
        self, x: jax.Array, state: SlidingState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, SlidingState, Aux]:
        """Attends to slots, window and segment, then writes; x, y are [batch, length, d_model]."""
        settings, length, window = self.settings, x.shape[1], self.memory_length
        state = jax.lax.stop_gradient(state)
        at_most = self._at_most(length)
        rows = state.hidden
        if window < length + self.rate - 1:  # new slots may reach into the segment
            rows = jnp.concatenate([rows, x], axis=1)
        slots = self._pool(rows, self._first(state.phase), at_most)
        memory = jnp.concatenate([state.compressed, slots, state.hidden], axis=1)
        memory, normal = self.normalize(memory), self.normalize(x)
        # Projected apart: the memory needs no gradient.
        keys, values = (
            repeat_heads(
                jnp.concatenate([project(memory), project(normal)], axis=2), settings.num_heads
            )
            for project in (self.projections.keys, self.projections.values)
        )
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        scores, seen = self._scores(
            queries,
            keys,
            near_positions.whole_segment(queries, self.shared()[:window], window),
            jnp.arange(length, dtype=jnp.int32)[None],
            state,
            self.compressed_length + 1 + at_most,
        )
        dropout = weight_dropout.draw(self, train)
        kept = None if dropout is None else dropout.factor(scores)
        y = self.projections.out(mix(scores, values, seen, None, kept))
        metrics = {
            'memory_size': mean_count(state.count),
            'compressed_size': mean_count(state.compressed_count),
        }
        return y, self._write(state, x, segment.num_valid), Aux(losses={}, metrics=metrics)

    def _slots(self):
        """Columns of slots in a cache: old, new, and room for a write that reaches beyond."""
        return self.compressed_length + 1 + 2 * (self._at_most(self.settings.segment_length) + 1)

    def open_segment(self, state: SlidingState, batch_size: int) -> SlidingCache:
        """Projects slots and window once for all tokens of the segment."""
        settings = self.settings
        room = self._slots() - state.compressed.shape[1]
        rows = self.normalize(jnp.concatenate([state.compressed, state.hidden], axis=1))
        old = state.compressed.shape[1]

        def spread(part):
            part = jnp.pad(part, [(0, 0), (0, 0), (0, settings.segment_length), (0, 0)])
            gap = jnp.zeros((*part.shape[:2], room, part.shape[3]), part.dtype)
            return jnp.concatenate([part[:, :, :old], gap, part[:, :, old:]], axis=2)

        return SlidingCache(
            spread(self.projections.keys(rows)),
            spread(self.projections.values(rows)),
            jnp.pad(state.hidden, [(0, 0), (0, settings.segment_length), (0, 0)]),
            state.count,
            state.compressed_count,
            state.phase,
        )

    def extend(
        self, x: jax.Array, cache: SlidingCache, index: jax.Array
    ) -> tuple[jax.Array, SlidingCache]:
        """Reads tokens `index` .. of the open segment; see `MemoryLayer`."""
        settings, window, slots = self.settings, self.memory_length, self._slots()
        hidden = write_at(cache.hidden, x, window + index, 1)
        # The first slot that these tokens may be the first to see, and those after it. What is not
        # seen yet is pooled of vectors still missing, and pooled again when it is.
        begun = self._seen(cache.phase, index[:, None] - 1)[:, 0]
        start = self._first(cache.phase) + begun * self.rate
        new = self.normalize(self._pool(hidden, start, x.shape[1] // self.rate + 1))
        normal = self.normalize(x)
        place = self.compressed_length + 1 + begun
        keys, values = (
            write_at(
                write_at(part, project(new), place, 2), project(normal), slots + window + index, 2
            )
            for part, project in (
                (cache.keys, self.projections.keys),
                (cache.values, self.projections.values),
            )
        )
        cache = cache.replace(keys=keys, values=values, hidden=hidden)
        keys, values = (repeat_heads(part, settings.num_heads) for part in (keys, values))
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        places = index[:, None] + jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        column = jnp.arange(keys.shape[2] - slots, dtype=jnp.int32)[None, None]
        distance = window + places[..., None] - column
        scores, seen = self._scores(
            queries,
            keys,
            near_positions.at_distances(queries, self.shared()[:window], distance),
            places,
            cache,
            slots,
        )
        return self.projections.out(mix(scores, values, seen, None, None)), cache

    def close_segment(
        self, state: SlidingState, cache: SlidingCache, count: jax.Array
    ) -> SlidingState:
        """Writes the first `count` tokens of the open segment."""
        return self._write(state, cache.hidden[:, self.memory_length :], count)
