"""Memorizing Transformer: attention to the nearest of many past keys (Wu et al., 2022).

Per lane and head the last `memory_size` keys and values are kept as they were computed. Every query
reads the k nearest (normalised inner product), and a gate per head mixes that with local attention.
A segment is read before it is written; a document starts with an empty memory.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import Look, is_inspected, record
from longmem_jax.attention.rules import NEVER
from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.contract import FIRST_GATE_IN_HOST, Entry, Graft, ModelSettings, Recipe, Scale
from longmem_jax.faults import at_least, between, one_of
from longmem_jax.kernels.tpu.fused_search import MOST, attend_nearest
from longmem_jax.layers.nearest import SEARCHES, nearest
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.ring import DTYPES, Rows, is_split, no_rows, once_read, write
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing.normalized_attention import NormalizedAttention, RecentKeys
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import NOWHERE, Held, Read, Seen, View, held_window, read_window

UNWRITTEN = ('masked', 'zeros')


@flax.struct.dataclass
class MemorizingState:
    """Memories of one layer.

    Attributes:
      recent: keys and values of the last tokens, for local attention.
      rows: the large memory, which stays in place.
    """

    recent: RecentKeys
    rows: Rows


@flax.struct.dataclass
class MemorizingCache:
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: recent keys and values and those of the tokens so far.
      state: memories before the segment.
    """

    attention: KeyValues
    state: MemorizingState


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """Checks that `top_k` and `block_size` suit the memory and the search."""
    faults = normalized_attention.check(fields, model, segment_length)
    size, k = fields['memory_size'], fields['top_k']
    faults += one_of(fields, search=SEARCHES, cache_dtype=DTYPES, unwritten=UNWRITTEN)
    faults += at_least(fields, 1, 'memory_size', 'top_k', 'block_size')
    if k > size:
        faults.append(
            f'top_k = {k}: more than memory_size = {size} entries; lower top_k or raise memory_size'
        )
    if fields['search'] == 'bucketed' and not faults and size % k:
        faults.append(f"memory_size = {size}: search='bucketed' needs a multiple of top_k = {k}")
    if size > fields['block_size'] > 0 and size % fields['block_size']:
        faults.append(
            f'memory_size = {size}: must be a multiple of block_size = {fields["block_size"]}, the '
            'entries searched at once'
        )
    return faults + between(fields, 0, 1, 'recall_target', ends='(]')


def fused(fields: Any) -> str:
    """What keeps a layer from fused kernels, see `contract.Entry.fused`."""
    if fields['search'] == 'exact' and fields['top_k'] > MOST:
        return f'top_k = {fields["top_k"]} is more than {MOST}, the largest of its exact search'
    return normalized_attention.fused(fields)


class Memorizing(nn.Module):
    """Local attention with recent keys, plus the nearest of `memory_size` older ones.

    Attributes:
      position, memory_length, window, attend_self, start, scale_init, normalized: of the local
        attention, see `NormalizedAttention`; the memory has no positions.
      memory_size: keys and values kept per lane (batch row) and head, first in, first out.
      top_k: entries that a query reads.
      search: 'exact', 'approximate' or 'bucketed'; see `nearest.nearest`. With `kernels = 'fused'`,
        whole segments find the exact ones in `fused_search`, which reads some rows more if many
        of the nearest are at multiples of 512 rows, or have equal scores.
      recall_target: target recall of search='approximate'.
      block_size: entries searched at once.
      cache_dtype: dtype of the entries: 'float32', 'bfloat16', or 'int8' with a scale each.
      unwritten: 'masked', or 'zeros': if fewer than k entries are filled, zero vectors are attended
        to with a score of zero, as in the released code.
      gate_init: initial b_g; the memory's weight is sigmoid(b_g).
      skip_gate_when_empty: use local attention alone, not (1 - gate) of it, while nothing is stored.
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
    memory_size: int = 8192
    top_k: int = 32
    search: str = 'exact'
    recall_target: float = 0.95
    block_size: int = 8192
    cache_dtype: str = 'float32'
    unwritten: str = 'masked'
    gate_init: float = 0.0
    skip_gate_when_empty: bool = False

    def setup(self):
        self.projections = Projections(self.settings)
        self.attention = NormalizedAttention(
            settings=self.settings,
            projections=self.projections,
            position=self.position,
            memory_length=self.memory_length,
            window=self.window,
            attend_self=self.attend_self,
            start=self.start,
            scale_init=self.scale_init,
            normalized=self.normalized,
        )
        constant = nn.with_logical_partitioning(
            nn.initializers.constant(self.gate_init), ('heads',)
        )
        self.gate = self.param('gate', constant, (self.settings.num_heads,))

    def initial_state(self, batch_size: int) -> MemorizingState:
        """Both memories empty."""
        settings = self.settings
        dtype = self.cache_dtype
        if dtype == 'float32':
            dtype = jnp.promote_types(settings.dtype, jnp.float32)
        rows = no_rows(batch_size, settings.kv_heads, self.memory_size, settings.head_dim, dtype)
        return MemorizingState(self.attention.initial(batch_size), rows)

    def _is_fused(self, rows: Rows) -> bool:
        """Whether whole segments are read by the fused kernel: the exact search of rows in one place."""
        return (
            self.settings.kernels == 'fused'
            and (self.search, self.unwritten) == ('exact', 'masked')
            and rows.rows_key_scale is None
            and not is_split(rows)
            and not is_inspected(self)
        )

    def retrieve(self, queries: jax.Array, rows: Rows, whole: bool = False) -> jax.Array:
        """What scaled queries read from the memory: [batch, heads, n, head_dim].

        `whole`: they are those of a segment that is read as a whole.
        """
        # Heads that share keys and values become additional queries of their key head.
        shape = queries.shape
        queries = queries.reshape(shape[0], self.settings.kv_heads, -1, shape[3])
        if whole and self._is_fused(rows):
            queries = queries * jnp.asarray(self.attention.score_scale, queries.dtype)
            held = rows.rows_keys, rows.rows_values, rows.count
            return attend_nearest(queries, *held, self.top_k).reshape(shape)
        # Scales are positive, so they do not change the order.
        keys, values, found, entries = nearest(
            rows, queries, self.top_k, self.search, self.recall_target, self.block_size
        )
        score_dtype = jnp.promote_types(queries.dtype, jnp.float32)
        scores = jnp.einsum('bhnd,bhnkd->bhnk', queries, keys, preferred_element_type=score_dtype)
        scores = scores * self.attention.score_scale
        counted = found if self.unwritten == 'masked' else jnp.ones_like(found)
        scores = jnp.where(counted, scores, jnp.asarray(NEVER, score_dtype))
        weights = jax.nn.softmax(scores, axis=-1)
        weights = jnp.where(counted, weights, jnp.zeros_like(weights))
        out = jnp.einsum('bhnk,bhnkd->bhnd', weights.astype(values.dtype), values).reshape(shape)
        if is_inspected(self):
            by_query = (*shape[:3], self.top_k)
            entries = jnp.where(found, entries, -1).reshape(by_query)
            parts = (('memory, nearest first', self.top_k),)
            record(self, Look(weights.reshape(by_query), None, out, entries, parts))
        return out

    def gates(self, stored: jax.Array) -> jax.Array:
        """Weights of the large memory, [batch | 1, heads, 1, 1]; `stored`: int32 [batch], entries."""
        gate = jax.nn.sigmoid(self.gate)[None, :, None, None]
        if self.skip_gate_when_empty:
            gate = jnp.where((stored > 0)[:, None, None, None], gate, jnp.zeros_like(gate))
        return gate

    def _mix(self, local: jax.Array, retrieved: jax.Array, stored: jax.Array) -> jax.Array:
        """Gates the two results, [batch, heads, n, head_dim], and projects them.

        `stored`: int32 [batch], entries written.
        """
        gate = self.gates(stored).astype(local.dtype)
        return self.projections.out(local * (1 - gate) + retrieved * gate)

    def _remember(
        self, state: MemorizingState, keys: jax.Array, values: jax.Array, num_valid: jax.Array
    ) -> MemorizingState:
        """Writes the first `num_valid` (int32 [batch]) keys and values to both memories."""
        recent = self.attention.remember(state.recent, keys, values, num_valid)
        return MemorizingState(recent, write(state.rows, keys, values, num_valid))

    def __call__(
        self, x: jax.Array, state: MemorizingState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, MemorizingState, Aux]:
        """Reads both memories, then writes both; x, y are [batch, length, d_model]."""
        state = jax.lax.stop_gradient(state)
        queries, keys, values, local = self.attention.whole(self.normalize(x), state.recent, train)
        retrieved = self.retrieve(queries, state.rows, True)
        y = self._mix(local, retrieved, state.rows.count)
        filled = jnp.minimum(state.rows.count, self.memory_size)
        gate = jax.nn.sigmoid(self.gate)
        metrics = {'memory_size': mean_count(filled), 'gate': gate.mean()}
        state = state.replace(rows=once_read(state.rows, retrieved))
        new = self._remember(state, keys, values, segment.num_valid)
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


def recipe(scale: Scale) -> Recipe:
    """A memory in the last layer but one, as in the paper; an XL cache of a segment in all layers.

    Scales of unit keys begin at 8, not 1: an optimizer with absolute steps, such as Adam, would need
    thousands of steps to tell keys apart. Gates get a higher learning rate; otherwise they hardly move.
    """
    local = dict(memory_length=scale.segment, scale_init=8.0)
    block_size = min(scale.memories, 8192)
    memory_size = -(-scale.memories // block_size) * block_size
    notes = ()
    if memory_size != scale.memories:
        notes = (f'memory_size = {memory_size}: {scale.memories} in whole blocks of {block_size}',)
    names = ['normalized_xl'] * scale.layers
    names[max(scale.layers - 2, 0)] = 'memorizing'
    memory = dict(memory_size=memory_size, block_size=block_size, top_k=min(32, memory_size))
    sections = {'memorizing': local | memory}
    if scale.layers > 1:
        sections['normalized_xl'] = local
    groups = (('attention/gate$', 5.0, False),)
    return Recipe(sections, attention=tuple(names), groups=groups, notes=notes)


def ages(rows: Rows, entries: jax.Array) -> jax.Array:
    """Ages of `entries`, int32 [batch | 1, ...], numbers in the ring; 1 = the one written last."""
    newest = (rows.count - 1).reshape(-1, *[1] * (entries.ndim - 1))
    return 1 + (newest - entries) % rows.rows_keys.shape[2]


def held(layer: Any, state: MemorizingState) -> dict[str, Held]:
    """The recent keys and values, and the entries of the large memory."""
    numbers = jnp.arange(layer.memory_size, dtype=jnp.int32)[None]
    filled = numbers < state.rows.count[:, None]
    return {
        'recent': held_window(state.recent.count, layer.memory_length),
        'entries': Held(filled.astype(jnp.float32), ages(state.rows, numbers)),
    }


def read(seen: Seen) -> dict[str, Read]:
    """Recent tokens and the segment by 1 - gate, the nearest entries by the gate."""
    look, gate = seen.look(''), seen.layer.gates(seen.state.rows.count)
    places = jnp.where(look.entries < 0, NOWHERE, -ages(seen.state.rows, look.entries))
    entries = Read((look.weights * gate).astype(jnp.float32), places)
    return {**read_window(seen.look('attention'), 1 - gate), 'entries': entries}


ENTRY = Entry(
    name='memorizing',
    layer=Memorizing,
    fused=fused,
    view=View(held, read),
    check=check,
    lengths={'memory_length': '', 'memory_size': '+ entries '},
    reach=lambda fields, segment: max(fields['memory_size'], fields['memory_length']),
    nearest='memory_size',
    recipes={'memorizing': recipe},
    graft=Graft(
        lambda scale, position: dict(
            position=position,
            memory_length=0 if position == 'none' else scale.segment,
            normalized=False,
            skip_gate_when_empty=True,
            gate_init=FIRST_GATE_IN_HOST,
        ),
        exact=True,
        how="gates per head, which are closed while nothing is stored; the host's scores",
        positions='none in the memory, as in the paper',
    ),
    toy=dict(memory_length=4, memory_size=12, top_k=3, block_size=4),
    variants=dict(
        released=dict(
            search='bucketed', unwritten='zeros', start='zeros', attend_self=False, window=5
        ),
        of_a_host=dict(normalized=False, position='rotary', skip_gate_when_empty=True),
        int8=dict(cache_dtype='int8', memory_length=0, position='none', block_size=12),
    ),
)
