"""Memory tokens: learned vectors that all blocks read and write as if they were tokens.

They are prepended to every segment, and optionally appended (Burtsev et al., 2020). In the recurrent
memory transformer (Bulatov et al., 2022) the last block's outputs at the appended ones become the memory
tokens of the next segment, before and after it. The leading ones must not see the segment, or they would
leak future tokens; the trailing ones see it, and only they write. The attention layer of the blocks
decides which position sees which: the papers' is `memory/memory_tokens/layer.py`, but any may be there.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.around import Around
from longmem_jax.contract import Entry, Fields, Graft, LayerType, NoState, Recipe, Recipes, Scale
from longmem_jax.layers import initializers
from longmem_jax.problems import at_least
from longmem_jax.segment import select_lanes
from longmem_jax.views import Seen, Series, View


class MemoryTokensState(flax.struct.PyTreeNode):
    """Carried memory tokens.

    Attributes:
      vectors: [batch, num_tokens, d_model] in the compute dtype, after the last segment.
      count: int32 [batch], 1 after a segment of the document, else 0: the first has the learned ones.
    """

    vectors: jax.Array
    count: jax.Array


class OpenTokens(flax.struct.PyTreeNode):
    """The memory tokens around a segment, and those after it: [batch, num_tokens, d_model] each."""

    vectors: jax.Array
    written: jax.Array


class LearnedTokens(nn.Module):
    """The learned memory tokens.

    Attributes:
      num_tokens: number of memory tokens.
      d_model: their width.
      std: standard deviation of their initialisation.
      dtype: compute dtype.
    """

    num_tokens: int
    d_model: int
    std: float
    dtype: DTypeLike

    def setup(self) -> None:
        init = initializers.with_axes(nn.initializers.normal(self.std), (None, 'embed'))
        self.tokens = self.param('tokens', init, (self.num_tokens, self.d_model))

    def __call__(self, batch_size: int) -> jax.Array:
        """The memory tokens, the same for every lane: [batch_size, num_tokens, d_model]."""
        tokens = self.tokens[None].astype(self.dtype)
        return jnp.broadcast_to(tokens, (batch_size, self.num_tokens, self.d_model))


class MemoryTokens(Around):
    """Memory tokens around a segment.

    Attributes:
      num_tokens: memory tokens before the segment, and as many after it if `at_end`.
      at_end: memory tokens are also appended.
      carry: outputs at the appended tokens are the next memory tokens; otherwise every segment begins
        with the learned ones.
      gradients: through carried tokens, as far as a training step reaches.
    """

    num_tokens: int = 20
    at_end: bool = True
    carry: bool = True
    gradients: bool = True

    def setup(self) -> None:
        settings = self.settings
        self.memory_tokens = LearnedTokens(
            num_tokens=self.num_tokens,
            d_model=settings.d_model,
            std=settings.token_std or settings.init_std,  # as large as the embeddings around them
            dtype=settings.dtype,
        )

    def initial_state(self, batch_size: int) -> MemoryTokensState | NoState:
        """No tokens: the first segment has the learned ones."""
        if not self.carry:
            return NoState()
        shape = (batch_size, self.num_tokens, self.settings.d_model)
        return MemoryTokensState(
            jnp.zeros(shape, self.settings.dtype), jnp.zeros((batch_size,), jnp.int32)
        )

    def open_segment(
        self, state: MemoryTokensState | NoState, batch_size: int, *, train: bool = False
    ) -> OpenTokens:
        """The carried tokens, or the learned ones."""
        vectors = self.memory_tokens(batch_size)
        if isinstance(state, MemoryTokensState):
            carried = state.vectors if self.gradients else jax.lax.stop_gradient(state.vectors)
            vectors = select_lanes(state.count > 0, carried, vectors)
        return OpenTokens(vectors, jnp.zeros_like(vectors))

    def leading(self, opened: OpenTokens) -> jax.Array:
        """The memory tokens before the segment."""
        return opened.vectors

    def trailing(self, opened: OpenTokens) -> jax.Array | None:
        """The same after the segment."""
        return opened.vectors if self.at_end else None

    def after(self, block: int, written: jax.Array, opened: OpenTokens) -> OpenTokens:
        """Keeps what the last block returns, after the norm of the model."""
        if not self.carry or block < self.depth - 1:
            return opened
        return opened.replace(written=self.normalize(written).astype(opened.written.dtype))

    def close_segment(
        self, state: MemoryTokensState | NoState, opened: OpenTokens, count: jax.Array
    ) -> MemoryTokensState | NoState:
        """Carries what was written at the trailing tokens."""
        if isinstance(state, NoState):
            return state
        return MemoryTokensState(opened.written, jnp.ones_like(state.count))


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that there are tokens, and that carried ones are appended."""
    problems = at_least(fields, 1, 'num_tokens')
    if fields['carry'] and not fields['at_end']:
        problems.append(
            'carry = True: needs at_end = True, since leading tokens never see the segment'
        )
    return problems


def recipe(scale: Scale) -> Recipe:
    """Fresh tokens before every segment, with a cache (Burtsev et al., 2020).

    The cache also holds the memory tokens of past segments, so it needs room for them.
    """
    segments = -(-scale.reach // scale.segment)
    length = scale.reach + segments * scale.tokens
    return _recipe(scale, dict(at_end=False, carry=False), length)


def recurrent_recipe(scale: Scale) -> Recipe:
    """Tokens carried from segment to segment, without a cache (Bulatov et al., 2022)."""
    return _recipe(scale, dict(at_end=True, carry=True), 0)


def _recipe(scale: Scale, fields: Fields, memory_length: int) -> Recipe:
    return Recipe(
        {
            'memory_tokens': dict(num_tokens=scale.tokens, gradients=True, **fields),
            'mem_transformer': dict(memory_length=memory_length),
        },
        attention=('mem_transformer',) * scale.layers,
        around=('memory_tokens',) * scale.layers,
    )


def series(seen: Seen) -> Series:
    """How much the segment changed every memory token that is carried."""
    layer, old = seen.layer, seen.state
    if not layer.carry:
        return Series()
    before = layer.open_segment(old, old.count.shape[0]).vectors
    changes = jnp.linalg.norm((seen.new.vectors - before).astype(jnp.float32), axis=-1)
    return Series(by_segment={'change of memory tokens': changes})


ENTRY = Entry(
    name='memory_tokens',
    place='around',
    layer=LayerType(
        MemoryTokens,
        check=check,
        reach=lambda fields, segment_length: None if fields['carry'] else 0,
        extra=lambda fields: (fields['num_tokens'], fields['num_tokens'] * fields['at_end']),
        inside=('mem_transformer', dict(memory_length=0)),
    ),
    recipe=Recipes(
        {'memory_tokens': recipe, 'recurrent': recurrent_recipe}, growing=('memory_tokens/tokens',)
    ),
    graft=Graft(
        fields=lambda scale, position: {},
        exact=False,
        how="memory tokens around every segment, in the host's attention",
        positions='those of the tokens before and after a segment',
        recipes=('recurrent',),
    ),
    view=View(series=series, lengths={'num_tokens': '+ memory tokens '}),
    toy=dict(num_tokens=2),
    variants=dict(leading=dict(at_end=False, carry=False), recurrent=dict(gradients=False)),
)
