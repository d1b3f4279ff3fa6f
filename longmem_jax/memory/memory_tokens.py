"""Memory tokens in a language model: Memory Transformer on Transformer-XL, and its recurrent form.

Vectors that stand for no word are read before the tokens of a segment, and again behind them; all
layers treat them as tokens (Burtsev et al., 2020). In the recurrent memory transformer (Bulatov et
al., 2022) what the last layer makes of them behind one segment stands before and behind the next.
The leading ones cannot see the segment, as it could not be told causally; the trailing ones can, and
only they write. The cache of Transformer-XL, if there is one, holds memory tokens like all others.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import Entry, ModelSettings, Recipe, Scale
from longmem_jax.layers.attention import attend
from longmem_jax.layers.relative_position import shared_biases
from longmem_jax.layers.self_attention import KeyValues, SelfAttention, put
from longmem_jax.memory.transformer_xl import (
    TransformerXLCache,
    TransformerXLState,
    remember,
)
from longmem_jax.segment import Aux, Segment, bring_forward, select_lanes

LOOK_AHEAD = ('nearest', 'released')


@flax.struct.dataclass
class MemoryTokensState:
    """The memory tokens that the next segment is read with.

    Attributes:
      vectors: [batch, num_tokens, d_model], in the compute dtype.
    """

    vectors: jax.Array


def check(fields, model, segment_length: int) -> list[str]:
    """Faults of a sub-config."""
    faults = []
    if fields['num_tokens'] < 1:
        faults.append(f'num_tokens = {fields["num_tokens"]}: must be at least 1')
    if fields['look_ahead'] not in LOOK_AHEAD:
        faults.append(f'look_ahead = {fields["look_ahead"]!r}: allowed are {", ".join(LOOK_AHEAD)}')
    if fields['look_ahead'] == 'released' and fields['position'] != 'transformer_xl':
        faults.append("look_ahead = 'released': belongs to position = 'transformer_xl'")
    if fields['carry'] and not fields['at_end']:
        faults.append('carry = True: needs at_end = True, leading tokens never see the segment')
    if fields['same_length'] and not fields['memory_length']:
        faults.append('same_length = True: needs memory_length > 0, the distance that it keeps to')
    if set(model.attention) != {'memory_tokens'}:
        faults.append(
            f'num_tokens: memory tokens pass through all layers, config.model.attention = '
            f'{tuple(model.attention)} has others'
        )
    return faults


class MemoryTokens(nn.Module):
    """The memory tokens themselves: put around a segment, and taken out behind the last layer.

    Attributes:
      settings: sizes of the model.
      num_tokens: how many.
      at_end: also behind the segment.
      carry: those behind a segment go on to the next; otherwise every segment has fresh ones.
      gradients: through carried tokens, as far as `config.train.segments_per_step` reaches.
      std: of their initialisation.
    """

    settings: ModelSettings
    num_tokens: int
    at_end: bool
    carry: bool
    gradients: bool
    std: float

    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(self.std), (None, 'embed'))
        self.tokens = self.param('tokens', init, (self.num_tokens, self.settings.d_model))

    def initial_state(self, batch_size: int) -> MemoryTokensState | None:
        """The learned tokens; None where they are not carried."""
        return MemoryTokensState(self._learned(batch_size)) if self.carry else None

    def _learned(self, batch_size):
        shape = (batch_size, self.num_tokens, self.settings.d_model)
        return jnp.broadcast_to(self.tokens[None].astype(self.settings.dtype), shape)

    def vectors(self, state: MemoryTokensState | None, batch_size: int) -> jax.Array:
        """What stands before and behind the coming segment, [batch, num_tokens, d_model]."""
        if not self.carry:
            return self._learned(batch_size)
        return state.vectors if self.gradients else jax.lax.stop_gradient(state.vectors)

    def surround(self, x: jax.Array, segment: Segment, state: MemoryTokensState | None):
        """Puts memory tokens around a segment.

        Args:
          x: [batch, length, d_model], tokens first, padding behind them.
          segment: its tokens.
          state: see `vectors`.

        Returns:
          x and segment with the memory tokens, padding behind all; and the order that puts them
          back as [leading, segment, trailing]. A lane without tokens has no memory tokens either.
        """
        batch_size = x.shape[0]
        vectors = self.vectors(state, batch_size)
        sides = [vectors, x, vectors] if self.at_end else [vectors, x]
        alive = jnp.broadcast_to(segment.valid.any(axis=1)[:, None], vectors.shape[:2])
        blank = jnp.zeros(vectors.shape[:2], segment.tokens.dtype)
        valid, tokens = [alive, segment.valid], [blank, segment.tokens]
        if self.at_end:
            valid, tokens = [*valid, alive], [*tokens, blank]
        whole, valid, tokens = (jnp.concatenate(part, axis=1) for part in (sides, valid, tokens))
        if self.at_end:
            order, inverse = bring_forward(valid)
            whole = jnp.take_along_axis(whole, order[..., None], axis=1)
            valid, tokens = (jnp.take_along_axis(part, order, axis=1) for part in (valid, tokens))
        else:
            inverse = None
        return whole, segment.replace(tokens=tokens, valid=valid), inverse

    def take(self, x: jax.Array, inverse: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The rows of the segment and those that write, from `surround`'s order."""
        if inverse is None:
            return x[:, self.num_tokens :], x[:, : self.num_tokens]
        x = jnp.take_along_axis(x, inverse[..., None], axis=1)
        return x[:, self.num_tokens : -self.num_tokens], x[:, -self.num_tokens :]

    def write(self, state: MemoryTokensState | None, written: jax.Array, alive: jax.Array):
        """The state after a segment: `written` in the lanes that had tokens (bool [batch])."""
        if not self.carry:
            return None
        return select_lanes(alive, MemoryTokensState(written.astype(state.vectors.dtype)), state)


class AroundAttention(SelfAttention):
    """Self-attention in which groups of rows at the front and the back see all of their group."""

    def look(self, x, keys, values, offset, mask, bias, *, train):
        """Attends from `x`, normalized, as `mask` [batch, queries, keys] allows."""
        queries, extra = self.relation.relate(self.query(x), offset, keys.shape[2], train=train)
        rate = self.settings.attention_dropout if train else 0.0
        if bias is not None:
            bias = bias(extra['relative'], self.settings.head_dim**-0.5)
        out = attend(
            queries,
            keys,
            values,
            offset=offset,
            causal=False,
            mask=mask[:, None],
            bias=bias,
            dropout_rate=rate,
            dropout_key=self.make_rng('dropout') if rate else None,
            **extra,
        )
        return self.out(out)

    def whole(self, x, memory, mask, bias, *, train):
        """Attends from a segment to itself and the vectors [batch, memory_length, d_model]."""
        x = self.normalize(x)
        both = x
        if self.memory_length:
            both = jnp.concatenate([self.normalize(memory), x], axis=1)
        return self.look(x, *self._place(both, 0), self.memory_length, mask, bias, train=train)

    def part(self, x, cache, index, mask, bias):
        """Attends from rows `index` .. of an open segment; returns y and the cache with them."""
        x = self.normalize(x)
        offset = self.memory_length + index
        keys, values = self._place(x, offset)
        cache = KeyValues(put(cache.keys, keys, offset, 2), put(cache.values, values, offset, 2))
        return self.look(x, cache.keys, cache.values, offset, mask, bias, train=False), cache


class MemoryTokensLayer(nn.Module):
    """Attention of a layer through which memory tokens pass, with a Transformer-XL cache.

    Attributes:
      num_tokens, at_end, carry, gradients: see `MemoryTokens`.
      read_cache: memory tokens see the cache.
      look_ahead: position of a memory token in front of another that sees it: 'nearest', as if at
        the same place, or 'released', what the authors' shift makes of it.
      memory_length: hidden vectors of the cache, 0 = none; may differ in evaluation.
      same_length: tokens see `memory_length` places, themselves included.
      clamp_length: larger distances are encoded as this one; 0 = no limit.
      position: position scheme; the authors' is 'transformer_xl'.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    num_tokens: int = 20
    at_end: bool = False
    carry: bool = False
    gradients: bool = True
    read_cache: bool = False
    look_ahead: str = 'nearest'
    memory_length: int = 150
    same_length: bool = False
    clamp_length: int = 0
    position: str = 'transformer_xl'

    def setup(self):
        self.attention = AroundAttention(
            settings=dataclasses.replace(self.settings, segment_length=self._rows()),
            normalize=self.normalize,
            shared=self.shared,
            position=self.position,
            memory_length=self.memory_length,
            clamp_length=self.clamp_length,
        )

    def _rows(self):
        """Rows of a full segment with its memory tokens."""
        return self.settings.segment_length + self.num_tokens * (2 if self.at_end else 1)

    def _mask(self, first_row, num_rows, end, count):
        """bool [batch, num_rows, memory_length + rows]: what rows `first_row` .. may see.

        Args:
          first_row: int32 [batch].
          num_rows: int.
          end: int32 [batch], place behind the last row of the segment; its last `num_tokens` are
            the trailing ones.
          count: int32 [batch], filled vectors of the cache.
        """
        rows = first_row[:, None] + jnp.arange(num_rows, dtype=jnp.int32)[None]
        keys = jnp.arange(-self.memory_length, self._rows(), dtype=jnp.int32)[None]

        def trailing(places):
            if not self.at_end:
                return jnp.zeros((end.shape[0], places.shape[1]), bool)
            return (places >= end[:, None] - self.num_tokens) & (places < end[:, None])

        leads, trails = rows < self.num_tokens, trailing(rows)
        lead_keys = (keys >= 0) & (keys < self.num_tokens)
        own = (keys >= 0)[:, None] & (keys[:, None] <= rows[..., None])
        own = own | (leads[..., None] & lead_keys[:, None])
        own = own | (trails[..., None] & trailing(keys)[:, None])
        cached = ((keys < 0) & (keys >= -count[:, None]))[:, None]
        memory = (leads | trails)[..., None]
        if not self.read_cache:
            cached = cached & ~memory
        seen = own | cached
        if self.same_length:
            seen = seen & (memory | (rows[..., None] - keys[:, None] < self.memory_length))
        return seen

    def _ahead(self, first_row, num_rows, count):
        """`AroundAttention`'s bias for 'released': the authors' scores of keys ahead, less ours."""
        if self.look_ahead != 'released':
            return None
        rows = first_row[:, None] + jnp.arange(num_rows, dtype=jnp.int32)[None]
        keys = jnp.arange(-self.memory_length, self._rows(), dtype=jnp.int32)
        ahead = keys[None, None] - rows[..., None]  # [batch, rows, keys]
        at = count[:, None, None] + self._rows() + 1 - ahead

        def bias(relative, scale):
            scores = jnp.einsum('bhqd,hcd->bhqc', relative.queries, relative.table)
            following = jnp.concatenate([scores[:, :, 1:], scores[:, :, -1:]], axis=2)
            at_clipped = jnp.clip(at, 0, scores.shape[-1] - 1)[:, None]
            theirs = jnp.take_along_axis(
                following, jnp.broadcast_to(at_clipped, (*scores.shape[:3], keys.shape[0])), axis=3
            )
            theirs = jnp.where((ahead == 1)[:, None], jnp.zeros_like(theirs), theirs)
            difference = (theirs - scores[..., :1]) * jnp.asarray(scale, scores.dtype)
            return jnp.where((ahead >= 1)[:, None], difference, jnp.zeros_like(difference))

        return bias

    def initial_state(self, batch_size: int) -> TransformerXLState:
        """An empty cache."""
        shape = (batch_size, self.memory_length, self.settings.d_model)
        return TransformerXLState(
            jnp.zeros(shape, self.settings.dtype), jnp.zeros((batch_size,), jnp.int32)
        )

    def __call__(
        self, x: jax.Array, state: TransformerXLState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, TransformerXLState, Aux]:
        """Attends; x, y are [batch, rows, d_model] with the memory tokens in them."""
        end = segment.valid.sum(axis=1, dtype=jnp.int32)
        first = jnp.zeros_like(end)
        y = self.attention.whole(
            x,
            state.hidden,
            self._mask(first, x.shape[1], end, state.count),
            self._ahead(first, x.shape[1], state.count),
            train=train,
        )
        metrics = {'memory_size': state.count.astype(jnp.float32).mean() + self.num_tokens}
        return y, remember(state, x, end), Aux(losses={}, metrics=metrics)

    def open_segment(self, state: TransformerXLState, batch_size: int) -> TransformerXLCache:
        """Projects the cache once for all rows of the segment."""
        shape = (batch_size, self._rows(), self.settings.d_model)
        return TransformerXLCache(
            self.attention.open(state.hidden, batch_size),
            jnp.zeros(shape, self.settings.dtype),
            state.count,
        )

    def _part(self, x, cache, first_row, end):
        mask = self._mask(first_row, x.shape[1], end, cache.count)
        bias = self._ahead(first_row, x.shape[1], cache.count)
        y, attention = self.attention.part(x, cache.attention, first_row, mask, bias)
        return y, cache.replace(attention=attention, hidden=put(cache.hidden, x, first_row, 1))

    def lead(self, x: jax.Array, cache: TransformerXLCache):
        """Reads the leading memory tokens of a segment that opens."""
        first = jnp.zeros((x.shape[0],), jnp.int32)
        return self._part(x, cache, first, first)

    def extend(self, x: jax.Array, cache: TransformerXLCache, index: jax.Array):
        """Reads tokens `index` .. of the open segment; see `MemoryLayer`."""
        return self._part(x, cache, index + self.num_tokens, jnp.zeros_like(index))

    def trail(self, x: jax.Array, cache: TransformerXLCache, count: jax.Array):
        """Reads the trailing memory tokens behind `count` (int32 [batch]) tokens."""
        first = count + self.num_tokens
        return self._part(x, cache, first, first + self.num_tokens)

    def close_segment(self, state, cache: TransformerXLCache, count: jax.Array):
        """Writes the first `count` tokens of the open segment, with the memory tokens."""
        around = self.num_tokens * (2 if self.at_end else 1)
        return remember(state, cache.hidden, jnp.where(count > 0, count + around, 0))


def recipe(scale: Scale) -> Recipe:
    """Fresh tokens before every segment, beside a cache (Burtsev et al., 2020)."""
    fields = dict(num_tokens=scale.tokens, memory_length=scale.reach)
    return Recipe({'memory_tokens': fields})


def recurrent_recipe(scale: Scale) -> Recipe:
    """Tokens carried from segment to segment, without a cache (Bulatov et al., 2022)."""
    fields = dict(num_tokens=scale.tokens, memory_length=0, at_end=True, carry=True)
    return Recipe({'memory_tokens': fields})


ENTRY = Entry(
    name='memory_tokens',
    layer=MemoryTokensLayer,
    check=check,
    shared=shared_biases,
    around=(MemoryTokens, ('num_tokens', 'at_end', 'carry', 'gradients')),
    lengths={'memory_length': '', 'num_tokens': '+ memory tokens '},
    recipes={'memory_tokens': recipe, 'recurrent': recurrent_recipe},
    toy=dict(num_tokens=2, at_end=True, carry=True, memory_length=6),
    variants=dict(
        leading=dict(at_end=False, carry=False, same_length=True, read_cache=True),
        recurrent=dict(memory_length=0, position='rotary', gradients=False),
    ),
)
