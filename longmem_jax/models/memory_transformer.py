"""Memory tokens: learned vectors that all layers read and write as if they were tokens.

They are prepended to every segment, and optionally appended (Burtsev et al., 2020). In the recurrent
memory transformer (Bulatov et al., 2022) the last layer's outputs at the appended ones become the
memory tokens of the next segment, before and after it. The leading ones cannot see the segment, or
they would leak future tokens; the trailing ones can, and only they write. The attention layer,
`memory/memory_tokens/layer.py`, decides which position sees which; its section
`config.model.memory_tokens` also sets their number and whether they are appended.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import Recipe, Scale
from longmem_jax.in_place import reset_lanes
from longmem_jax.layers.scores import Scores
from longmem_jax.memory.memory_tokens.tokens import LearnedTokens, surround, take
from longmem_jax.models.block import BlockState
from longmem_jax.models.stack import make_stack, token_std, with_key
from longmem_jax.segment import Aux, Segment, pack, select_lanes
from longmem_jax.views import Seen, Series, View

FIELDS = {'carry': bool, 'gradients': bool}


@flax.struct.dataclass
class MemoryTransformerState:
    """Memory of a document so far.

    Attributes:
      blocks: memories of the blocks.
      vectors: the memory tokens of the next segment, [batch, num_tokens, d_model] in the compute
        dtype; None if every segment begins with the learned ones.
    """

    blocks: tuple[BlockState, ...]
    vectors: jax.Array | None


def recipe(scale: Scale) -> Recipe:
    """Fresh tokens before every segment, with a cache (Burtsev et al., 2020).

    The cache also holds the memory tokens of past segments, so it needs room for them.
    """
    segments = -(-scale.reach // scale.segment)
    length = scale.reach + segments * scale.tokens
    return _recipe(dict(num_tokens=scale.tokens, memory_length=length), carry=False)


def recurrent_recipe(scale: Scale) -> Recipe:
    """Tokens carried from segment to segment, without a cache (Bulatov et al., 2022)."""
    return _recipe(dict(num_tokens=scale.tokens, memory_length=0, at_end=True), carry=True)


def _recipe(attention: dict[str, Any], carry: bool) -> Recipe:
    sections = {
        'memory_tokens': attention,
        'memory_transformer': dict(carry=carry, gradients=True),
    }
    return Recipe(sections, model=dict(kind='memory_transformer'))


def faults(model: Any, segment_length: int) -> list[str]:
    """Faults of `config.model.memory_transformer`: carried tokens must be appended ones."""
    at_end = model.get('memory_tokens', {}).get('at_end', True)
    if model.memory_transformer.carry and not at_end:
        return [
            'carry = True: needs config.model.memory_tokens.at_end = True, since leading tokens '
            'never see the segment'
        ]
    return []


class MemoryTransformer(nn.Module):
    """A language model with memory tokens; the interface of `LanguageModel`.

    `config.memory_transformer`: `carry` (memory tokens pass from a segment to the next;
    otherwise every segment begins with the learned ones) and `gradients` (through carried ones, as
    far as `config.train.segments_per_step` reaches). All blocks have the attention 'memory_tokens'.

    Attributes:
      config: `config.model`, frozen.
      segment_length: tokens per segment, `length` below; memory tokens do not count.
    """

    config: Any
    segment_length: int

    def setup(self):
        config = self.config
        num_tokens, at_end = self._sizes()
        self.stack = make_stack(config, self.segment_length, added=num_tokens * (1 + at_end))
        self.memory_tokens = LearnedTokens(
            num_tokens=num_tokens,
            d_model=config.d_model,
            std=token_std(config),  # as large as the embeddings around them
            dtype=jnp.dtype(config.dtype),
        )

    def _sizes(self) -> tuple[int, bool]:
        """The number of memory tokens, and whether they are appended."""
        fields = self.config.memory_tokens
        return fields.num_tokens, fields.at_end

    def initial_state(self, batch_size: int) -> MemoryTransformerState:
        """Memories at the start of a document; every leaf [batch_size, ...]."""
        carry = self.config.memory_transformer.carry
        vectors = self.memory_tokens(batch_size) if carry else None
        return MemoryTransformerState(self.stack.initial_state(batch_size), vectors)

    def _vectors(self, state: MemoryTransformerState, batch_size: int) -> jax.Array:
        """The memory tokens around the coming segment, [batch, num_tokens, d_model]."""
        if state.vectors is None:
            return self.memory_tokens(batch_size)
        return state.vectors

    def _write(
        self,
        state: MemoryTransformerState,
        blocks: tuple[BlockState, ...],
        written: jax.Array | None,
        alive: jax.Array,
    ) -> MemoryTransformerState:
        """The state after a segment; `written` is stored where lanes had tokens (`alive`)."""
        if state.vectors is None:
            return MemoryTransformerState(blocks, None)
        if not self.config.memory_transformer.gradients:
            # Not where they are read: a document begins with the learned tokens, which must train.
            written = jax.lax.stop_gradient(written)
        vectors = select_lanes(alive, written.astype(state.vectors.dtype), state.vectors)
        return MemoryTransformerState(blocks, vectors)

    def _read(
        self, segment: Segment, state: MemoryTransformerState, train: bool
    ) -> tuple[jax.Array, jax.Array, MemoryTransformerState, Aux]:
        """Reads a packed segment: output at tokens and at memory tokens, new state, `Aux`."""
        batch_size = segment.start.shape[0]
        num_tokens, at_end = self._sizes()
        state = reset_lanes(segment.start, self.initial_state(batch_size), state)
        segment = with_key(self, segment, train)
        x = self.stack.embedding.encode(segment.tokens, jnp.zeros((batch_size,), jnp.int32))
        vectors = self._vectors(state, batch_size)
        x, surrounded, packing = surround(x, segment, vectors, at_end)
        x = self.stack.drop(x, deterministic=not train)
        x, blocks, aux = self.stack.read(x, state.blocks, surrounded, train=train)
        x, written = take(x, packing, num_tokens)
        state = self._write(state, blocks, written, segment.valid.any(axis=1))
        return self.stack.drop(x, deterministic=not train), written, state, aux

    def hidden(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """The last layer's output at tokens, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, _, state, aux = self._read(packed, state, train)
        return packing.unpack(hidden), state, aux

    def written(self, segment: Segment, state: Any) -> jax.Array:
        """The last layer's output at the memory tokens, for inspection.

        Args:
          segment, state: as in `__call__`.

        Returns:
          [batch, num_tokens, d_model]; the trailing ones if there are any.
        """
        return self._read(pack(segment)[0], state, False)[1]

    def __call__(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Logits of the next token at every position, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, _, state, aux = self._read(packed, state, train)
        return packing.unpack(self.stack.embedding.logits(hidden)), state, aux

    def nll(
        self, segment: Segment, targets: jax.Array, state: Any, *, train: bool
    ) -> tuple[Scores, Any, Aux]:
        """Negative log-likelihood of `targets`, as in `LanguageModel`."""
        packed, packing = pack(segment)
        hidden, _, state, aux = self._read(packed, state, train)
        scores = self.stack.nll(hidden, packing.pack(targets), packed.valid)
        return jax.tree.map(packing.unpack, scores), state, aux

    def open_segment(self, state: Any, batch_size: int) -> tuple[BlockState, ...]:
        """Caches of a segment that begins, with the leading memory tokens in them."""
        caches = self.stack.open_segment(state.blocks, batch_size)
        return self.stack.extend(self._vectors(state, batch_size), caches, 0)[1]

    def extend(
        self,
        tokens: jax.Array,
        cache: Any,
        index: int | jax.Array,
        count: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[BlockState, ...]]:
        """Reads the next tokens of the open segment, as in `LanguageModel`."""
        num_tokens, _ = self._sizes()
        x = self.stack.embedding.encode(tokens, index)
        x, cache = self.stack.extend(x, cache, index + num_tokens, count=count)
        return self.stack.logits(x, count), cache

    def close_segment(
        self, state: Any, cache: tuple[BlockState, ...], count: jax.Array
    ) -> MemoryTransformerState:
        """Writes the first `count` (int32 [batch]) tokens of the open segment.

        The trailing memory tokens, if there are any, are read after these tokens.
        """
        num_tokens, at_end = self._sizes()
        written, end = None, count + num_tokens
        if at_end:
            first, end = end, end + num_tokens
            # The attention layer must know where they end, since they see one another.
            cache = tuple(
                block_cache.replace(attention=block_cache.attention.replace(end=end))
                for block_cache in cache
            )
            written, cache = self.stack.extend(self._vectors(state, count.shape[0]), cache, first)
        end = jnp.where(count > 0, end, jnp.zeros_like(end))
        blocks = self.stack.close_segment(state.blocks, cache, end)
        return self._write(state, blocks, written, count > 0)


def series(seen: Seen) -> Series:
    """How much the segment changed every memory token that is carried."""
    old, new = seen.state.vectors, seen.new.vectors
    if old is None:
        return Series()
    changes = jnp.linalg.norm((new - old).astype(jnp.float32), axis=-1)
    return Series(by_segment={'change of memory tokens': changes})


VIEW = View(series=series)
