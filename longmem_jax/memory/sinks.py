"""Attention sinks: a window that also keeps the first tokens of the document (Xiao et al., 2024).

Pretrained decoders give much of their attention to the first few tokens, whatever these say. A window
that drops them breaks the decoder; one that keeps them reads texts of any length, without training. A
layer holds the input vectors of the first `sinks` tokens and of the last ones before the segment:

    held = [first S tokens ; last M - S tokens]
    y    = attention(segment ; held, segment)

Positions are places in `[held, segment]`, not in the text, so no distance is larger than in training.
With `overflow='delta'` a delta memory takes the tokens that leave the window, see `memory/overflow.py`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import fused_rules
from longmem_jax.attention.self_attention import KeyValues, attention_of, write_at
from longmem_jax.attention.window import check_sinks, push
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
from longmem_jax.memory.in_hosts import (
    FIRST_TOKENS,
    position_of_window,
    rates_of_window,
    room_of_window,
)
from longmem_jax.memory.overflow import Overflow, nothing
from longmem_jax.problems import at_least, one_of
from longmem_jax.segment import Aux, Segment, count_on, mean_count
from longmem_jax.views import Held, Read, Seen, Series, View, held_window, norms, read_window

OVERFLOWS = ('none', 'delta')


class SinksState(flax.struct.PyTreeNode):
    """The first and the last vectors of one layer.

    Attributes:
      hidden: [batch, memory_length, d_model], in the compute dtype; the last `min(count, memory_length)`
        are filled, in the order of the text.
      count: int32 [batch], tokens of the document so far; it stays at 2^31 - 1.
      overflow: S of the tokens that left, float32 [batch, heads, head_dim, head_dim]; None = not kept.
    """

    hidden: jax.Array
    count: jax.Array
    overflow: jax.Array | None = None


class SinksCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: keys and values of what is held and of the tokens so far.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      filled: int32 [batch], vectors that are held.
      overflow: as in the state.
    """

    attention: KeyValues
    hidden: jax.Array
    filled: jax.Array
    overflow: jax.Array | None = None


def remember(state: SinksState, new: jax.Array, num_valid: jax.Array, sinks: int) -> SinksState:
    """Appends a segment; what no longer fits is dropped behind the first `sinks` tokens.

    Args:
      state: before the segment.
      new: [batch, length, d_model], inputs of the layer.
      num_valid: int32 [batch], number of tokens; they come first.
      sinks: tokens that are never dropped.
    """
    filled = jnp.minimum(state.count, state.hidden.shape[1])
    hidden, _ = push(state.hidden, filled, new, num_valid, sinks)
    return state.replace(hidden=hidden, count=count_on(state.count, num_valid))


def leaving(
    state: SinksState, new: jax.Array, num_valid: jax.Array, sinks: int
) -> tuple[jax.Array, jax.Array]:
    """The tokens that `remember` drops, oldest first.

    Returns:
      Vectors like `new`, and int32 [batch]: how many of them, from the first on, are tokens.
    """
    size = state.hidden.shape[1]
    filled = jnp.minimum(state.count, size)
    joined = jnp.concatenate([state.hidden, new.astype(state.hidden.dtype)], axis=1)
    place = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
    source = jnp.minimum(size - filled[:, None] + sinks + place, joined.shape[1] - 1)
    number = jnp.maximum(filled + num_valid - size, 0)
    return jnp.take_along_axis(joined, source[..., None], axis=1), number


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that the window has room for the sinks and for more."""
    found = at_least(fields, 0, 'sinks') + one_of(fields, overflow=OVERFLOWS)
    return found or check_sinks(fields)


class AttentionSinks(nn.Module):
    """Attention to the first tokens of the document, the last ones, and the segment.

    Attributes:
      memory_length: vectors that are held before a segment, the sinks included; the paper's cache of
        1,024 counts the segment too.
      sinks: first tokens of a document that are never dropped.
      position: position scheme; distances are those of places in what is held.
      gradients: gradients flow to the tokens of earlier segments.
      block_size: keys per block of the online softmax for long memories; 0 = all at once.
      overflow: where tokens go that leave the window: 'none', or 'delta', a matrix per head that is
        written by the gated delta rule and read beside attention.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int = 1024
    sinks: int = 4
    position: str = 'rotary'
    gradients: bool = False
    block_size: int = 0
    overflow: str = 'none'

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = attention_of(
            self, memory_length=self.memory_length, block_size=self.block_size
        )
        if self.overflow == 'delta':
            self.left = Overflow(self.settings, self.projections)

    def initial_state(self, batch_size: int) -> SinksState:
        """Nothing is held."""
        shape = (batch_size, self.memory_length, self.settings.d_model)
        return SinksState(
            jnp.zeros(shape, self.settings.dtype),
            jnp.zeros((batch_size,), jnp.int32),
            nothing(self.settings, batch_size) if self.overflow == 'delta' else None,
        )

    def filled(self, state: SinksState) -> jax.Array:
        """int32 [batch], vectors that are held."""
        return jnp.minimum(state.count, self.memory_length)

    def written(self, state: SinksState, x: jax.Array, num_valid: jax.Array) -> SinksState:
        """`remember`, detached unless `gradients`, and what leaves is written to S."""
        x = x if self.gradients else jax.lax.stop_gradient(x)
        new = remember(state, x, num_valid, self.sinks)
        if state.overflow is None:
            return new
        left, number = leaving(state, x, num_valid, self.sinks)
        S = self.left.written(state.overflow, self.normalize(left), number)
        return new.replace(overflow=S)

    def with_overflow(self, y: jax.Array, x: jax.Array, S: jax.Array | None) -> jax.Array:
        """What attention gives, and what x [batch, n, d_model] reads of S."""
        return y if S is None else y + self.left.read(S, self.normalize(x))

    def __call__(
        self, x: jax.Array, state: SinksState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, SinksState, Aux]:
        """Attends to what is held and the segment, then writes; x, y are [batch, length, d_model]."""
        filled = self.filled(state)
        y = self.attention(x, state.hidden, filled, train=train)
        y = self.with_overflow(y, x, state.overflow)
        metrics = {'memory_size': mean_count(filled)}
        return y, self.written(state, x, segment.num_valid), Aux(losses={}, metrics=metrics)

    def open_segment(self, state: SinksState, batch_size: int) -> SinksCache:
        """Projects what is held once for all tokens of the segment."""
        shape = (batch_size, self.settings.segment_length, self.settings.d_model)
        return SinksCache(
            self.attention.open(state.hidden, batch_size),
            jnp.zeros(shape, self.settings.dtype),
            self.filled(state),
            state.overflow,
        )

    def extend(
        self, x: jax.Array, cache: SinksCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, SinksCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        y, attention = self.attention.extend(x, cache.attention, index, cache.filled)
        y = self.with_overflow(y, x, cache.overflow)
        return y, cache.replace(attention=attention, hidden=write_at(cache.hidden, x, index, 1))

    def close_segment(self, state: SinksState, cache: SinksCache, count: jax.Array) -> SinksState:
        """Writes the first `count` tokens of the open segment."""
        return self.written(state, cache.hidden, count)


def held(layer: AttentionSinks, state: SinksState) -> dict[str, Held]:
    """The tokens that are held."""
    return {
        'first and last tokens': held_window(state.count, layer.memory_length, sinks=layer.sinks)
    }


def read(seen: Seen) -> dict[str, Read]:
    """Reads of the attention, sinks at their places in the text."""
    (window,) = held(seen.layer, seen.state).values()
    return read_window(seen.look(), ages=window.ages)


def series(seen: Seen) -> Series:
    """The size of S, by head."""
    S = seen.new.overflow
    return Series() if S is None else Series(by_segment={'size of S': norms(S)})


def recipe(scale: Scale, overflow: str) -> Recipe:
    """A window of `scale.reach` vectors, with the paper's four sinks."""
    position, notes = scale.position()
    length = room_of_window(scale.reach)
    fields = dict(memory_length=length, sinks=FIRST_TOKENS, position=position, overflow=overflow)
    return Recipe({'sinks': fields}, notes=notes)


ENTRY = Entry(
    name='sinks',
    layer=LayerType(
        AttentionSinks,
        check=check,
        # Of a token that is no sink.
        reach=lambda fields, segment: (
            fields['memory_length'] if fields['overflow'] == 'none' else None
        ),
        fused=fused_rules.position_problem,
    ),
    recipe=Recipes(
        {
            'sinks': functools.partial(recipe, overflow='none'),
            'hippocampus': functools.partial(recipe, overflow='delta'),
        }
    ),
    graft=Graft(
        fields=lambda scale, position: dict(position=position_of_window(position)),
        exact=True,
        how='a window of hidden vectors, masked while it is empty, that keeps the first tokens; what '
        'left it, if kept, is read through a map that begins at zero',
        positions="the host's rotary ones, by places in the window; else a bias like ALiBi's beyond the "
        'segment',
        window=True,
        groups=rates_of_window,
    ),
    view=View(held=held, read=read, series=series, lengths={'memory_length': ''}),
    toy=dict(memory_length=6, sinks=2),
    variants=dict(
        with_gradients=dict(gradients=True, sinks=1, position='alibi'),
        hippocampus=dict(overflow='delta', memory_length=4, gradients=True),
    ),
)
