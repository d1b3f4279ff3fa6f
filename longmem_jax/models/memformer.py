"""Memformer: an encoder reads and writes slots, a decoder continues the text (Wu et al., 2020).

Text continuation as a language model: the encoder reads a segment with the slots as they were before
it and writes them; the decoder predicts the next segment and sees the past through the encoder's
output. So the state is the slots and the last segment's tokens, which are encoded when the next begins.

Memory replay back-propagation is `config.train.remat`: only the slots between the segments of a
training step are kept, and each segment is recomputed in the backward pass. The gradient equals that
of plain back-propagation through time.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.cross_attention import CrossAttention
from longmem_jax.attention.self_attention import write_at
from longmem_jax.contract import Recipe, Scale
from longmem_jax.faults import above, at_least, one_of
from longmem_jax.in_place import reset_lanes
from longmem_jax.layers.scores import Scores
from longmem_jax.memory.memformer.joint_slots import JointEncoder
from longmem_jax.memory.memformer.slot_attention import SlotEncoder
from longmem_jax.models.block import BlockState
from longmem_jax.models.stack import make_settings, make_stack, rate, with_key
from longmem_jax.segment import Aux, Segment, merge_aux, pack, select_lanes
from longmem_jax.views import NOWHERE, Held, Read, Seen, Series, View

ENCODERS = ('slot_attention', 'joint')
FIELDS = {
    'encoder': str,
    'num_encoder_layers': int,
    'num_slots': int,
    'num_summaries': int,
    'temperature': float,
    'bias_std': float,
    'slot_heads': int,
    'forgets': bool,
    'normalized': bool,
}


@flax.struct.dataclass
class MemformerState:
    """Memory of a document so far.

    Attributes:
      slots: [batch, num_slots, d_model], at least float32, before the segment `tokens`; None if
        there are none.
      tokens: int32 [batch, segment_length], the last segment; the first `count` are filled.
      count: int32 [batch], tokens of the last segment.
      blocks: memories of the decoder's blocks.
    """

    slots: jax.Array
    tokens: jax.Array
    count: jax.Array
    blocks: tuple[BlockState, ...]


@flax.struct.dataclass
class MemformerCache:
    """What an open segment reads and will write.

    Attributes:
      slots: after the last segment.
      tokens: int32 [batch, segment_length], of the open segment.
      sources: what every block's cross-attention reads.
      blocks: caches of the decoder's blocks.
    """

    slots: jax.Array
    tokens: jax.Array
    sources: Any
    blocks: tuple[BlockState, ...]


def recipe(scale: Scale) -> Recipe:
    """Half of the layers read and write the slots, the other half continue the text.

    The paper gives neither the writer's temperature nor the number of summaries: 0.25 and 4 are ours.
    Slots are normalised and forget slowly, since the paper's keep nothing before they are trained. The
    decoder has rotary positions besides: one that cannot tell near tokens apart wants nothing from far
    away.
    """
    position, notes = scale.position()
    encoder, slot_heads = max(scale.layers // 2, 1), 0
    if scale.d_model % scale.num_heads:
        fitting = range(1, scale.num_heads + 1)
        slot_heads = max(heads for heads in fitting if scale.d_model % heads == 0)
        notes += (
            f'slot_heads = {slot_heads}: {scale.num_heads} heads do not divide d_model = '
            f'{scale.d_model}, and slots are split into heads',
        )
    fields = dict(
        encoder='slot_attention',
        num_encoder_layers=encoder,
        num_slots=scale.slots,
        num_summaries=4,
        temperature=0.25,
        bias_std=0.05 * scale.d_model**-0.5,
        slot_heads=slot_heads,
        forgets=True,
        normalized=True,
    )
    decoder = max(scale.layers - encoder, 1)
    return Recipe(
        {'memformer': fields, 'local': dict(position=position)},
        attention=('local',) * decoder,
        model=dict(kind='memformer', num_layers=decoder, position='sinusoidal'),
        notes=notes,
    )


def faults(model: Any, segment_length: int) -> list[str]:
    """Faults of `config.model.memformer`: its sizes, its encoder, and heads that divide slots."""
    fields = model.memformer
    problems = at_least(fields, 1, 'num_encoder_layers', 'num_summaries')
    problems += at_least(fields, 1 if fields.encoder == 'joint' else 0, 'num_slots')
    problems += one_of(fields, encoder=ENCODERS) + above(fields, 0, 'temperature', 'bias_std')
    name = 'slot_heads' if fields.slot_heads else 'config.model.num_heads'
    heads = fields.slot_heads or model.num_heads
    if fields.num_slots and (heads < 1 or model.d_model % heads):
        problems.append(
            f'num_slots: {name} = {heads} must divide config.model.d_model = {model.d_model}, since '
            'slots are split into heads'
        )
    if 'dense' not in model:
        problems.append('encoder: needs config.model.dense, its feed-forward layers')
    return problems


class Memformer(nn.Module):
    """A language model whose memory is an encoder's slots; the interface of `LanguageModel`.

    `config.memformer`: `encoder` ('slot_attention' as in the paper, or 'joint' as released for
    MemBART), its layers, slots (0 = no memory), summaries (appended vectors for the writer), the
    writer's temperature, and the deviation of the slots' bias at the start; `slot_heads`, `forgets`
    and `normalized` of `slot_attention.SlotEncoder`. The decoder is `config.attention` and
    `config.feed_forward` with cross-attention in every block.

    Attributes:
      config: `config.model`, frozen.
      segment_length: tokens per segment, `length` below.
    """

    config: Any
    segment_length: int

    def setup(self):
        config, fields = self.config, self.config.memformer
        cross = functools.partial(CrossAttention, bias=False)
        self.stack = make_stack(config, self.segment_length, cross=cross)
        common = dict(
            settings=make_settings(config, self.segment_length),
            residual_dropout=rate(config, 'residual_dropout'),
            dense=dict(config.dense),
            num_layers=fields.num_encoder_layers,
            num_slots=fields.num_slots,
            bias_std=fields.bias_std,
        )
        if fields.encoder == 'joint':
            self.encoder = JointEncoder(**common)
        else:
            self.encoder = SlotEncoder(
                norm=config.norm,
                pre_norm=config.pre_norm,
                num_summaries=fields.num_summaries,
                temperature=fields.temperature,
                num_heads=fields.slot_heads,
                forgets=fields.forgets,
                normalized=fields.normalized,
                **common,
            )

    def initial_state(self, batch_size: int) -> MemformerState:
        """Slots and memories at the start of a document; every leaf [batch_size, ...]."""
        return MemformerState(
            self.encoder.initial_slots(batch_size),
            jnp.zeros((batch_size, self.segment_length), jnp.int32),
            jnp.zeros((batch_size,), jnp.int32),
            self.stack.initial_state(batch_size),
        )

    def encode(
        self, state: MemformerState, *, train: bool
    ) -> tuple[tuple[Any, ...], jax.Array | None, jax.Array | None]:
        """Reads the last segment.

        Returns:
          What every block's cross-attention reads, the slots with the segment in them, and the
          share [batch, num_slots] of each slot's weight that stayed on the slot itself; None for the
          last two if there are no slots.
        """
        positions = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None]
        valid = positions < state.count[:, None]
        x = self.stack.embed(state.tokens, train=train)
        encoded, seen, slots, kept_share = self.encoder(x, valid, state.slots, train=train)
        return tuple(block.source(encoded, seen) for block in self.stack.blocks), slots, kept_share

    def _read(
        self, segment: Segment, state: MemformerState, train: bool
    ) -> tuple[jax.Array, MemformerState, Aux]:
        """Reads a packed segment: the last block's output, memories after it, `Aux`."""
        state = reset_lanes(segment.start, self.initial_state(segment.start.shape[0]), state)
        segment = with_key(self, segment, train)
        with jax.named_scope('encoder'):
            sources, slots, kept_share = self.encode(state, train=train)
        x = self.stack.embed(segment.tokens, train=train)
        x, blocks, aux = self.stack.read(x, state.blocks, segment, train=train, sources=sources)
        if kept_share is not None:
            aux = merge_aux([Aux(losses={}, metrics={'slot_kept': kept_share.mean()}), aux])
        count = segment.num_valid
        new_state = MemformerState(slots, segment.tokens, count, blocks)
        x = self.stack.drop(x, deterministic=not train)
        return x, select_lanes(count > 0, new_state, state), aux

    def hidden(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """The last layer's output, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, state, aux = self._read(packed, state, train)
        return packing.unpack(hidden), state, aux

    def __call__(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Logits of the next token at every position, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, state, aux = self._read(packed, state, train)
        return packing.unpack(self.stack.embedding.logits(hidden)), state, aux

    def nll(
        self, segment: Segment, targets: jax.Array, state: Any, *, train: bool
    ) -> tuple[Scores, Any, Aux]:
        """Negative log-likelihood of `targets`, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, state, aux = self._read(packed, state, train)
        scores = self.stack.nll(hidden, packing.pack(targets), packed.valid)
        return jax.tree.map(packing.unpack, scores), state, aux

    def open_segment(self, state: MemformerState, batch_size: int) -> MemformerCache:
        """Encodes the last segment for a decoder that begins the next; see `generation.stream`."""
        sources, slots, _ = self.encode(state, train=False)
        blocks = self.stack.open_segment(state.blocks, batch_size)
        return MemformerCache(slots, jnp.zeros_like(state.tokens), sources, blocks)

    def extend(
        self,
        tokens: jax.Array,
        cache: MemformerCache,
        index: int | jax.Array,
        count: jax.Array | None = None,
    ) -> tuple[jax.Array, MemformerCache]:
        """Reads the next tokens of the open segment, as in `LanguageModel`."""
        x = self.stack.embedding.encode(tokens, index)
        x, blocks = self.stack.extend(x, cache.blocks, index, cache.sources, count=count)
        segment_tokens = write_at(cache.tokens, tokens, index, 1)
        return self.stack.logits(x, count), cache.replace(tokens=segment_tokens, blocks=blocks)

    def close_segment(
        self, state: MemformerState, cache: MemformerCache, count: jax.Array
    ) -> MemformerState:
        """The open segment's first `count` (int32 [batch]) tokens become the last segment."""
        blocks = self.stack.close_segment(state.blocks, cache.blocks, count)
        new_state = MemformerState(cache.slots, cache.tokens, count, blocks)
        return select_lanes(count > 0, new_state, state)


def held(model: Memformer, state: MemformerState) -> dict[str, Held]:
    """The last segment, which the encoder reads; slots hold no single tokens."""
    position = jnp.arange(model.segment_length, dtype=jnp.int32)[None]
    filled = (position < state.count[:, None]).astype(jnp.float32)
    return {'last segment': Held(filled, state.count[:, None] - position)}


def read(seen: Seen) -> dict[str, Read]:
    """What the decoder reads of the encoder, over its blocks: the last segment, and what is no token."""
    model, count = seen.layer, seen.state.count[:, None]
    joint = model.config.memformer.encoder == 'joint'
    found = {path: look for path, look in seen.looks.items() if path.endswith('/across')}
    reads = {}
    for path, look in found.items():
        # The slots come before the tokens, or the summaries of the segment after them.
        first = model.config.memformer.num_slots if joint else 0
        position = jnp.arange(look.weights.shape[-1], dtype=jnp.int32)[None] - first
        is_token = (position >= 0) & (position < count)
        places = jnp.where(is_token, position - count, NOWHERE)
        weights = (look.weights / len(found)).astype(jnp.float32)
        reads[path] = Read(weights, places[:, None, None])
    return reads


def series(seen: Seen) -> Series:
    """The share of every slot that the last segment has left."""
    _, _, kept = seen.layer.encode(seen.state, train=False)
    return Series() if kept is None else Series(by_segment={'share that a slot keeps': kept})


VIEW = View(held, read, series)
