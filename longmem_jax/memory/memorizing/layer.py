"""Memorizing Transformer: attention to the nearest of many past keys (Wu et al., 2022).

Per lane and head the last `memory_size` keys and values are kept as they were computed. Every query
reads the k nearest (normalised inner product), and a gate per head mixes that with local attention.
A segment is read before it is written; a document starts with an empty memory.

Local attention is in `normalized_attention`, attention to the nearest keys in `attention/entries`, their
search in `layers/nearest`, and the large memory in `layers/ring`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.entries import attend_entries_in
from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.ring import Rows, no_rows, write
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing.normalized_attention import RecentKeys
from longmem_jax.segment import Aux, Segment, mean_count


class MemorizingState(flax.struct.PyTreeNode):
    """Memories of one layer.

    Attributes:
      recent: keys and values of the last tokens, for local attention.
      rows: the large memory, which stays in place.
    """

    recent: RecentKeys
    rows: Rows


class MemorizingCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: recent keys and values and those of the tokens so far.
      state: memories before the segment.
    """

    attention: KeyValues
    state: MemorizingState


class Memorizing(nn.Module):
    """Local attention with recent keys, plus the nearest of `memory_size` older ones.

    Attributes:
      position, memory_length, window, attend_self, start, scale_init, normalized, sinks: of the local
        attention, see `NormalizedAttention`; the memory has no positions.
      memory_size: keys and values kept per lane (batch row) and head, first in, first out.
      top_k: entries that a query reads.
      search: 'exact'; 'approximate', faster on TPUs and exact elsewhere; or 'bucketed', the best of
        each of `top_k` interleaved parts of the memory. With `kernels = 'fused'`, whole segments find
        the exact ones in a fused kernel, which reads some rows more if many of the nearest are at
        multiples of 512 rows, or have equal scores.
      recall_target: share of the nearest entries that search='approximate' should find.
      block_size: entries searched at once.
      cache_dtype: dtype of the entries: 'float32', 'bfloat16', or 'int8' with a scale each.
      unwritten: 'masked', or 'zeros': if fewer than k entries are filled, zero vectors are attended
        to with a score of zero, as in the released code.
      gate_init: initial b_g; the memory's weight is sigmoid(b_g).
      skip_gate_when_empty: use local attention alone, not (1 - gate) of it, while nothing is stored.
        False is the paper's; with True gates open sooner in training.
    """

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
    memory_size: int = 8192
    top_k: int = 32
    search: str = 'exact'
    recall_target: float = 0.95
    block_size: int = 8192
    cache_dtype: str = 'float32'
    unwritten: str = 'masked'
    gate_init: float = 0.0
    skip_gate_when_empty: bool = False

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = normalized_attention.attention_of(self)
        constant = initializers.with_axes(nn.initializers.constant(self.gate_init), ('heads',))
        self.gate = self.param('gate', constant, (self.settings.num_heads,))

    def initial_state(self, batch_size: int) -> MemorizingState:
        """Both memories empty."""
        settings = self.settings
        dtype: Any = self.cache_dtype
        if dtype == 'float32':
            dtype = jnp.promote_types(settings.dtype, jnp.float32)
        rows = no_rows(batch_size, settings.kv_heads, self.memory_size, settings.head_dim, dtype)
        return MemorizingState(self.attention.initial(batch_size), rows)

    def retrieve(self, queries: jax.Array, rows: Rows, whole: bool = False) -> jax.Array:
        """Attention to the nearest of the large memory, [batch, heads, n, head_dim].

        `whole`: the queries, already scaled, are all of a segment; False = the next tokens of a stream.
        """
        return attend_entries_in(
            self,
            queries,
            rows,
            self.top_k,
            scale=self.attention.score_scale,
            search=self.search,
            recall=self.recall_target,
            block_size=self.block_size,
            zeros=self.unwritten == 'zeros',
            whole=whole,
        )

    def gates(self, stored: jax.Array) -> jax.Array:
        """Weights of the large memory, [batch | 1, heads, 1, 1]; `stored`: int32 [batch], entries."""
        gate = jax.nn.sigmoid(self.gate)[None, :, None, None]
        if self.skip_gate_when_empty:
            gate = jnp.where((stored > 0)[:, None, None, None], gate, jnp.zeros_like(gate))
        return gate

    def _mix(self, local: jax.Array, retrieved: jax.Array, stored: jax.Array) -> jax.Array:
        """`V_m g + V_c (1 - g)`, projected: of the large memory and the local attention.

        Both are [batch, heads, n, head_dim]; `stored`: int32 [batch], entries written.
        """
        gate = self.gates(stored).astype(local.dtype)
        return self.projections.out(local * (1 - gate) + retrieved * gate)

    def _remember(
        self,
        state: MemorizingState,
        keys: jax.Array,
        values: jax.Array,
        num_valid: jax.Array,
        after: jax.Array | None = None,
    ) -> MemorizingState:
        """Writes the first `num_valid` (int32 [batch]) keys and values to both memories."""
        recent = self.attention.remember(state.recent, keys, values, num_valid)
        return MemorizingState(recent, write(state.rows, keys, values, num_valid, after))

    def __call__(
        self, x: jax.Array, state: MemorizingState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, MemorizingState, Aux]:
        """Reads both memories, then writes both; x, y are [batch, length, d_model]."""
        state = jax.lax.stop_gradient(state)
        queries, keys, values, local = self.attention.whole(self.normalize(x), state.recent, train)
        retrieved = self.retrieve(queries, state.rows, whole=True)
        y = self._mix(local, retrieved, state.rows.count)
        filled = jnp.minimum(state.rows.count, self.memory_size)
        gate = jax.nn.sigmoid(self.gate)
        metrics = {'memory_size': mean_count(filled), 'gate': gate.mean()}
        new = self._remember(state, keys, values, segment.num_valid, after=retrieved)
        return y, new, Aux(losses={}, metrics=metrics, per_head={'gate': gate})

    def open_segment(self, state: MemorizingState, batch_size: int) -> MemorizingCache:
        """Recent keys and values, followed by room for those of the segment."""
        return MemorizingCache(self.attention.open(state.recent, batch_size), state)

    def extend(
        self, x: jax.Array, cache: MemorizingCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, MemorizingCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        queries, local, attention = self.attention.tokens(
            self.normalize(x), cache.attention, cache.state.recent.count, index
        )
        rows = cache.state.rows
        y = self._mix(local, self.retrieve(queries, rows), rows.count)
        return y, cache.replace(attention=attention)

    def close_segment(
        self, state: MemorizingState, cache: MemorizingCache, count: jax.Array
    ) -> MemorizingState:
        """Writes the first `count` tokens of the open segment."""
        keys, values = self.attention.segment_of(cache.attention)
        return self._remember(state, keys, values, count)
