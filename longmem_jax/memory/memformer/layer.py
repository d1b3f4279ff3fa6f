"""Memformer: an encoder reads and writes slots, and blocks attend to the encoder (Wu et al., 2020).

The encoder reads a segment with the slots as they were before it and writes them. The blocks predict
the next segment and see the past through the encoder's output, by cross-attention between attention and
feed-forward layer. So the state is the slots and the vectors of the last segment that entered the first
block; they are encoded when the next segment begins.

Memory replay back-propagation is `config.train.remat`: only the states between the segments of a
training step are kept, and each segment is recomputed in the backward pass. The gradient equals that
of plain back-propagation through time.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.around import Around
from longmem_jax.attention.cross_attention import CrossAttention, Source
from longmem_jax.attention.self_attention import write_at
from longmem_jax.contract import Entry, Fields, Graft, LayerType, Recipe, Recipes, Scale, identity
from longmem_jax.layers import positions
from longmem_jax.layers.feed_forward import ACTIVATIONS
from longmem_jax.memory.memformer.joint_slots import JointEncoder
from longmem_jax.memory.memformer.slot_attention import SlotEncoder
from longmem_jax.problems import above, at_least, one_of
from longmem_jax.segment import Aux, no_aux, select_lanes
from longmem_jax.views import NOWHERE, Held, Read, Seen, Series, View

ENCODERS = ('slot_attention', 'joint')


class MemformerState(flax.struct.PyTreeNode):
    """Memory of a document so far.

    Attributes:
      slots: [batch, num_slots, d_model], at least float32, before the last segment; None if there are
        none. The first segment has the learned ones.
      hidden: [batch, segment_length, d_model], the last segment; the first `count` are filled.
      count: int32 [batch], tokens of the last segment; 0 before the first.
    """

    slots: jax.Array | None
    hidden: jax.Array
    count: jax.Array


class OpenMemformer(flax.struct.PyTreeNode):
    """What an open segment reads and will write.

    Attributes:
      slots: after the last segment.
      kept: float32 [batch, num_slots], the share of each slot's weight that stayed on the slot itself.
      sources: what every block's cross-attention reads.
      hidden: [batch, segment_length, d_model], the open segment.
    """

    slots: jax.Array | None
    kept: jax.Array | None
    sources: tuple[Source, ...]
    hidden: jax.Array


class Memformer(Around):
    """Slots that an encoder reads and writes, and what the blocks read of the encoder.

    Attributes:
      encoder: 'slot_attention' as in the paper, or 'joint' as released for MemBART.
      num_encoder_layers: its layers.
      num_slots: slots; 0 = no memory.
      num_summaries: vectors appended to the segment for the writer.
      temperature: of the writer's softmax; 1 = none.
      bias_std: standard deviation of the slots' bias at the start.
      slot_heads: heads of reader and writer; 0 = as in the model.
      forgets, normalized: as in `slot_attention.SlotEncoder`.
      positions: the encoder adds sinusoids to what enters the first block, for models that do not.
      activation: of the encoder's feed-forward layers.
    """

    encoder: str = 'slot_attention'
    num_encoder_layers: int = 4
    num_slots: int = 1024
    num_summaries: int = 4
    temperature: float = 0.25
    bias_std: float = 0.01
    slot_heads: int = 0
    forgets: bool = True
    normalized: bool = False
    positions: bool = False
    activation: str = 'relu'

    def setup(self) -> None:
        common: dict[str, Any] = dict(
            settings=self.settings,
            dense=dict(activation=self.activation, bias=True),
            num_layers=self.num_encoder_layers,
            num_slots=self.num_slots,
            bias_std=self.bias_std,
        )
        if self.encoder == 'joint':
            self.encode: Any = JointEncoder(**common)
        else:
            self.encode = SlotEncoder(
                num_summaries=self.num_summaries,
                temperature=self.temperature,
                num_heads=self.slot_heads,
                forgets=self.forgets,
                normalized=self.normalized,
                **common,
            )
        self.across = [
            CrossAttention(self.settings, normalize=identity, bias=False) for _ in range(self.depth)
        ]

    def initial_state(self, batch_size: int) -> MemformerState:
        """No segment."""
        settings, slots = self.settings, None
        if self.num_slots:
            shape = (batch_size, self.num_slots, settings.d_model)
            slots = jnp.zeros(shape, jnp.promote_types(settings.dtype, jnp.float32))
        shape = (batch_size, settings.segment_length, settings.d_model)
        return MemformerState(
            slots, jnp.zeros(shape, settings.dtype), jnp.zeros((batch_size,), jnp.int32)
        )

    def open_segment(
        self, state: MemformerState, batch_size: int, *, train: bool = False
    ) -> OpenMemformer:
        """Encodes the last segment, with the slots before it, and writes it to the slots."""
        x, slots = state.hidden, state.slots
        if slots is not None:
            slots = select_lanes(state.count > 0, slots, self.encode.initial_slots(batch_size))
        if self.positions:
            distances = positions.clamped(x.shape[1], 0)
            table = jnp.asarray(positions.sinusoids(distances, x.shape[2]))
            x = x + table[None].astype(x.dtype)
        valid = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < state.count[:, None]
        encoded, seen, slots, kept = self.encode(x, valid, slots, train=train)
        sources = tuple(across.source(encoded, seen) for across in self.across)
        return OpenMemformer(slots, kept, sources, jnp.zeros_like(state.hidden))

    def before(
        self, block: int, x: jax.Array, opened: OpenMemformer, index: int | jax.Array
    ) -> tuple[jax.Array, OpenMemformer]:
        """Keeps what enters the first block, for the encoder."""
        if not block:
            opened = opened.replace(hidden=write_at(opened.hidden, x, index, 1))
        return x, opened

    def between(self, block: int, x: jax.Array, opened: OpenMemformer, *, train: bool) -> jax.Array:
        """Attends to the encoder."""
        return self.across[block](x, opened.sources[block], train=train)

    def close_segment(
        self, state: MemformerState, opened: OpenMemformer, count: jax.Array
    ) -> MemformerState:
        """The open segment becomes the last one; what is there of padding is not kept."""
        position = jnp.arange(opened.hidden.shape[1], dtype=jnp.int32)[None]
        is_token = (position < count[:, None])[..., None]
        hidden = jnp.where(is_token, opened.hidden, jnp.zeros_like(opened.hidden))
        return MemformerState(opened.slots, hidden, count)

    def report(self, opened: OpenMemformer) -> Aux:
        """The share that slots keep of themselves, on average."""
        if opened.kept is None:
            return no_aux()
        return Aux(losses={}, metrics={'slot_kept': opened.kept.mean()})


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Problems of its sizes, its encoder, and of heads that do not divide slots."""
    problems = at_least(fields, 1, 'num_encoder_layers', 'num_summaries')
    problems += at_least(fields, 1 if fields['encoder'] == 'joint' else 0, 'num_slots')
    problems += at_least(fields, 0, 'slot_heads')
    problems += one_of(fields, encoder=ENCODERS, activation=ACTIVATIONS)
    problems += above(fields, 0, 'temperature', 'bias_std')
    heads = fields['slot_heads'] or model['num_heads']
    if fields['num_slots'] and (heads < 1 or model['d_model'] % heads):
        name = 'slot_heads' if fields['slot_heads'] else "the model's num_heads"
        problems.append(
            f'num_slots: {name} = {heads} must divide d_model = {model["d_model"]}, since slots are '
            'split into heads'
        )
    return problems


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
        num_encoder_layers=encoder,
        num_slots=scale.slots,
        bias_std=0.05 * scale.d_model**-0.5,
        slot_heads=slot_heads,
        normalized=True,
    )
    decoder = max(scale.layers - encoder, 1)
    return Recipe(
        {'memformer': fields, 'local': dict(position=position)},
        attention=('local',) * decoder,
        around=('memformer',) * decoder,
        model=dict(position='sinusoidal'),
        notes=notes,
    )


def held(layer: Memformer, state: MemformerState) -> dict[str, Held]:
    """The last segment, which the encoder reads; slots hold no single tokens."""
    position = jnp.arange(layer.settings.segment_length, dtype=jnp.int32)[None]
    filled = (position < state.count[:, None]).astype(jnp.float32)
    return {'last segment': Held(filled, state.count[:, None] - position)}


def read(seen: Seen) -> dict[str, Read]:
    """What the blocks read of the encoder, over all of them: the last segment, and what is no token."""
    layer, count = seen.layer, seen.state.count[:, None]
    # The slots come before the tokens, or the summaries of the segment after them.
    first = layer.num_slots if layer.encoder == 'joint' else 0
    reads = {}
    for path, look in seen.looks.items():
        if path.startswith('across'):
            position = jnp.arange(look.weights.shape[-1], dtype=jnp.int32)[None] - first
            is_token = (position >= 0) & (position < count)
            places = jnp.where(is_token, position - count, NOWHERE)
            weights = (look.weights / layer.depth).astype(jnp.float32)
            reads[path] = Read(weights, places[:, None, None])
    return reads


def series(seen: Seen) -> Series:
    """The share of every slot that the last segment has left."""
    kept = seen.layer.open_segment(seen.state, seen.state.count.shape[0]).kept
    return Series() if kept is None else Series(by_segment={'share that a slot keeps': kept})


ENTRY = Entry(
    name='memformer',
    place='around',
    layer=LayerType(Memformer, check=check, between=True),
    recipe=Recipes({'memformer': recipe}),
    graft=Graft(
        fields=lambda scale, position: dict(positions=position != 'none'),
        exact=False,
        how='every layer reads the encoder of the segment before, and slots, after its attention',
        positions='sinusoids within the segment before; none of the slots',
    ),
    view=View(held, read, series, lengths={'num_slots': '+ slots '}),
    toy=dict(
        num_encoder_layers=1,
        num_slots=3,
        num_summaries=1,
        temperature=0.5,
        bias_std=0.1,
        normalized=True,
        positions=True,
    ),
    variants=dict(
        joint=dict(encoder='joint'),
        paper=dict(normalized=False),
        ablated=dict(slot_heads=1, forgets=False, temperature=1.0),
        none=dict(num_slots=0, positions=False),
    ),
)
