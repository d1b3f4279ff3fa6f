"""MoBA and Landmark attention: every token reads blocks that it chooses.

The equations are in `blocks`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend_in, is_inspected, mix_in
from longmem_jax.attention.relative_position import POSITIONS, RelativePosition
from longmem_jax.attention.rules import Rules
from longmem_jax.attention.self_attention import KeyValues, write_at
from longmem_jax.contract import (
    Entry,
    Fields,
    Graft,
    LayerType,
    ModelSettings,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.chunk_retrieval.blocks import (
    BlocksState,
    Choice,
    joined,
    kept,
    seen,
)
from longmem_jax.memory.chunk_retrieval.far import far_queries
from longmem_jax.memory.chunk_retrieval.reading import Far, Rows, all_scores, attend_to_chosen
from longmem_jax.memory.in_hosts import position_of_window
from longmem_jax.problems import at_least, one_of
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import Held, Read, Seen, View

GATES = ('mean', 'largest')
CLAMPED = ('rotary', 'transformer_xl', 'learned_relative')
IN_HOST = 8  # blocks that a token of a pretrained decoder reads


class BlocksCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      joined: keys, with positions, and values of what is held and of the tokens so far.
      plain: the same keys without positions, if distances beyond the largest one are read; else None.
      segment: keys, without positions, and values of the tokens so far.
      count: int32 [batch], as in the state.
    """

    joined: KeyValues
    plain: jax.Array | None
    segment: KeyValues
    count: jax.Array


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that whole blocks are held, at least one besides the token's own."""
    size, length, k = (fields[name] for name in ('block_length', 'memory_length', 'top_k'))
    always = 1 + fields['sinks'] + fields['near']
    found = one_of(fields, position=POSITIONS, gate=GATES)
    found += at_least(fields, 2 if fields['landmarks'] else 1, 'block_length')
    found += at_least(fields, 0, 'top_k', 'near', 'clamp_length')
    if found:
        return found
    if fields['clamp_length'] and fields['position'] not in CLAMPED:
        found.append(
            f"clamp_length = {fields['clamp_length']} with position = '{fields['position']}', which has "
            f'no largest distance; use 0, or one of {", ".join(CLAMPED)}'
        )
    if length % size or length < 2 * size:
        found.append(
            f'memory_length = {length}: holds whole blocks of block_length = {size}, the own block of a '
            f'token and at least one before it; use a multiple of {size} from {2 * size} on'
        )
    elif k > length // size:
        found.append(
            f'top_k = {k}: more than the {length // size} blocks of block_length = {size} in '
            f'memory_length = {length}; lower top_k, or use 0 for all of them'
        )
    elif fields['landmarks'] and fields['gate'] != 'mean':
        found.append(
            f"gate = '{fields['gate']}' with landmarks = True: a landmark is the gate of its block; use "
            "gate = 'mean', or landmarks = False"
        )
    elif 0 < k < always:
        found.append(
            f'top_k = {k}: has no room for the {always} blocks that a token always reads, its own, '
            f'near = {fields["near"]} and sinks = {fields["sinks"]}; use {always} or more, or 0 for all'
        )
    return found


class ChunkRetrieval(nn.Module):
    """Attention to a token's own block of the text and the few earlier blocks that suit it best.

    Attributes:
      memory_length: tokens that can be read, whole blocks. Of a longer text a token reads its own
        block and the `memory_length / block_length - 1` before it; the oldest block is dropped.
      block_length: tokens of a block.
      top_k: blocks that a query reads, its own included; 0 = all that are held.
      landmarks: the last token of a block is its landmark: gates and weights of a block are those of its
        landmark (Landmark attention). In its paper this is a token that is put into the text there.
      gate: without landmarks, the gate of a block is that of the 'mean' of its keys (MoBA), or the
        'largest' score of its keys, a bias by distance included.
      sinks: the first block of a document is always read, and never dropped. When others are dropped,
        it moves up to those that are left, and its distances become shorter.
      near: blocks before a token's own that it always reads.
      position: position scheme; distances are those in the text.
      clamp_length: larger distances count as this one; 0 = no limit. So a decoder with rotary positions
        can read further than it was trained to (`far`).
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int = 8192
    block_length: int = 512
    top_k: int = 3
    landmarks: bool = False
    gate: str = 'mean'
    sinks: bool = False
    near: int = 0
    position: str = 'rotary'
    clamp_length: int = 0

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.relation = RelativePosition(
            settings=self.settings,
            shared=None,
            kind=self.position,
            num_distances=self.memory_length + self.settings.segment_length,
            clamp_length=self.clamp_length,
        )

    def _room(self, batch_size: int, length: int) -> jax.Array:
        """Zeros for keys or values of `length` tokens."""
        settings = self.settings
        return jnp.zeros((batch_size, settings.kv_heads, length, settings.head_dim), settings.dtype)

    @property
    def _clamps(self) -> bool:
        return self.position == 'rotary' and self.clamp_length > 0

    def _kept(self, both: KeyValues, count: jax.Array, num_valid: jax.Array) -> BlocksState:
        return kept(both, count, num_valid, self.memory_length, self.block_length, self.sinks)

    def initial_state(self, batch_size: int) -> BlocksState:
        """Nothing is held."""
        room = self._room(batch_size, self.memory_length)
        return BlocksState(room, room, jnp.zeros((batch_size,), jnp.int32))

    def _read(
        self,
        x: jax.Array,
        both: KeyValues,
        plain: jax.Array | None,
        count: jax.Array,
        index: int | jax.Array,
        train: bool,
    ) -> jax.Array:
        """Attends from normalised `x` [batch, n, d_model], the tokens from `index` on after `count`.

        `both` has keys with positions, `plain` those without, for distances beyond the largest one.
        """
        num_keys, offset = both.keys.shape[2], count + index
        size, scale = self.block_length, self.settings.score_scale
        queries = self.projections.queries(x)
        choice = Choice(
            size, self.top_k, self.landmarks, self.gate, self.sinks, self.near,
            held=self.memory_length // size,
        )  # fmt: skip
        parts, clamp = (('blocks', num_keys),), self.clamp_length
        placed, by_distance = self.relation.apply_to_queries(queries, offset, num_keys, train=train)
        factor = jnp.asarray(scale, queries.dtype)
        far = None
        if plain is not None:
            far = Far(far_queries(self.relation.apply_to_keys, queries * factor, clamp), plain)
        rows = Rows(placed * factor, both.keys, both.values, offset, far)
        if not train and not by_distance and not is_inspected(self):
            out = attend_to_chosen(choice, clamp, rows)
        elif far:
            scores, mask = all_scores(choice, clamp, rows)
            values = jnp.repeat(both.values, queries.shape[1] // both.values.shape[1], axis=1)
            out = mix_in(self, scores, values, mask, train=train, parts=parts)
        else:
            rules = Rules(offset=offset, scale=scale, **by_distance)
            rules = seen(choice, placed, both.keys, rules)
            out = attend_in(self, placed, both.keys, both.values, rules, train=train, parts=parts)
        return self.projections.out(out)

    def __call__(
        self, x: jax.Array, state: BlocksState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, BlocksState, Aux]:
        """Attends to what is held and the segment, then writes; x, y are [batch, length, d_model]."""
        x, count, size = self.normalize(x), state.count, self.block_length
        both = KeyValues(
            joined(state.keys, self.projections.keys(x), count, size),
            joined(state.values, self.projections.values(x), count, size),
        )
        placed = both.replace(keys=self.relation.apply_to_keys(both.keys, 0))
        y = self._read(x, placed, both.keys if self._clamps else None, count, 0, train)
        metrics = {'memory_size': mean_count(count)}
        new = self._kept(both, count, segment.num_valid)
        return y, new, Aux(losses={}, metrics=metrics)

    def open_segment(self, state: BlocksState, batch_size: int) -> BlocksCache:
        """Gives the held keys their positions, once for all tokens of the segment."""
        room = self._room(batch_size, self.settings.segment_length)
        keys, values = (
            joined(rows, room, state.count, self.block_length)
            for rows in (state.keys, state.values)
        )
        placed = KeyValues(self.relation.apply_to_keys(keys, 0), values)
        plain = keys if self._clamps else None
        return BlocksCache(placed, plain, KeyValues(room, room), state.count)

    def extend(
        self, x: jax.Array, cache: BlocksCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, BlocksCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        x, offset = self.normalize(x), cache.count + index
        keys, values = self.projections.keys(x), self.projections.values(x)
        placed = self.relation.apply_to_keys(keys, offset)
        both = cache.joined.write_at(placed, values, offset)
        plain = None if cache.plain is None else write_at(cache.plain, keys, offset, 2, read=True)
        y = self._read(x, both, plain, cache.count, index, False)
        segment = cache.segment.write_at(keys, values, index)
        return y, cache.replace(joined=both, plain=plain, segment=segment)

    def close_segment(
        self, state: BlocksState, cache: BlocksCache, count: jax.Array
    ) -> BlocksState:
        """Writes the first `count` tokens of the open segment."""
        new, size = cache.segment, self.block_length
        both = KeyValues(
            joined(state.keys, new.keys, state.count, size),
            joined(state.values, new.values, state.count, size),
        )
        return self._kept(both, state.count, count)


def held(layer: ChunkRetrieval, state: BlocksState) -> dict[str, Held]:
    """The tokens of the blocks that are held."""
    slot, count = jnp.arange(layer.memory_length, dtype=jnp.int32)[None], state.count[:, None]
    return {'blocks': Held((slot < count).astype(jnp.float32), count - slot)}


def read(seen: Seen) -> dict[str, Read]:
    """Reads of the attention, by the place of each token in the text."""
    look = seen.look()
    slot = jnp.arange(look.weights.shape[-1], dtype=jnp.int32)[None, None, None]
    return {
        'attention': Read(
            look.weights.astype(jnp.float32), slot - seen.state.count[:, None, None, None]
        )
    }


def sizes(scale: Scale) -> dict[str, int]:
    """16 blocks of which three are read, as in the paper.

    All blocks together are no longer than `scale.memories` rows.
    """
    block = max(min(scale.reach // 2, scale.memories // 16), 2)
    return dict(memory_length=16 * block, block_length=block)


def recipe(scale: Scale, landmarks: bool) -> Recipe:
    """See `sizes`; three blocks are read."""
    position, notes = scale.position()
    if landmarks:
        notes += (
            'top_k = 3: the paper trains with all blocks (0); here as many are read as by MoBA',
        )
    fields = dict(sizes(scale), top_k=3, landmarks=landmarks, position=position)
    return Recipe({'chunk_retrieval': fields}, notes=notes)


def fields_in_host(scale: Scale, position: str) -> dict[str, Any]:
    """Eight blocks are read, as many as a segment has, so that the first segment sees all of itself.

    The first block and the one before the own are among them: a decoder breaks where they go. Rotary
    distances end at half of those that the decoder was trained on: at its last ones it finds little.
    """
    segment = max(scale.segment, scale.evaluated)
    block, place = max(-(-segment // IN_HOST), 2), position_of_window(position)
    return dict(
        block_length=block,
        memory_length=max(scale.memories // 4 // block, IN_HOST) * block,
        top_k=IN_HOST,
        gate='largest',
        sinks=True,
        near=1,
        position=place,
        clamp_length=max(scale.context // 2, segment) if place == 'rotary' else 0,
    )


ENTRY = Entry(
    name='chunk_retrieval',
    layer=LayerType(
        ChunkRetrieval,
        check=check,
        reach=lambda fields, segment: fields['memory_length'],
        nearest='memory_length',
    ),
    recipe=Recipes(
        {
            'moba': functools.partial(recipe, landmarks=False),
            'landmark': functools.partial(recipe, landmarks=True),
        }
    ),
    graft=Graft(
        fields_in_host,
        exact=True,
        how="the host's attention, as long as the text has no more blocks than are read; then the first "
        'block, the last two, and those that suit a token best',
        positions="the host's rotary ones, up to half of its context; else a bias like ALiBi's beyond "
        'the segment',
        recipes=('moba',),
    ),
    view=View(held, read, lengths={'memory_length': ''}),
    toy=dict(memory_length=12, block_length=3, top_k=2),
    variants=dict(
        landmark=dict(landmarks=True, top_k=3),
        all_blocks=dict(block_length=2, memory_length=8, top_k=0, position='none', landmarks=True),
        first_and_near=dict(top_k=3, sinks=True, near=1, gate='largest', clamp_length=4),
    ),
)
