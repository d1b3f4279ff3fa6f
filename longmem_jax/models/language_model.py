"""The language model that every memory is a drop-in part of.

Embedding, blocks of one attention and one feed-forward layer each, output. The state is a tuple of
`BlockState`, one per block. The model moves padding to the end and resets the memories of lanes in
which a document starts, so that layers can ignore both. Its methods are the interface that all kinds
of language model share.

Absolute positions begin at 0 in every segment. With a table of fixed length (`config.num_positions`)
they continue through the document instead, so the state also counts tokens, unless
`config.positions_restart`. A decoder without any other memory than its cache has never seen a text that
is longer than the table, so it reads one in windows: a segment that the table has no positions for
begins at position 0 with an empty cache. With another memory, tokens beyond the table have its last one.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.in_place import reset_lanes
from longmem_jax.layers.scores import Scores
from longmem_jax.models.block import BlockState
from longmem_jax.models.stack import has_table, is_plain, make_stack, takes_starts, with_key
from longmem_jax.segment import Aux, Segment, pack


class Counted(flax.struct.PyTreeNode):
    """State, or caches, of a model whose absolute positions continue through a document.

    Attributes:
      blocks: states, or caches, of the blocks.
      position: int32 [batch], tokens of the document before the segment, at most `num_positions`.
    """

    blocks: tuple[BlockState, ...]
    position: jax.Array


class LanguageModel(nn.Module):
    """A causal language model with memories.

    Attributes:
      config: `config.model`, frozen.
      segment_length: tokens per segment, `length` below.
    """

    config: Any
    segment_length: int

    if TYPE_CHECKING:  # Flax's result has a second type, that of calls with `mutable`.

        def apply(self, *given: Any, **named: Any) -> Any: ...

    def setup(self) -> None:
        self.stack = make_stack(self.config, self.segment_length)

    def initial_state(self, batch_size: int) -> tuple[BlockState, ...] | Counted:
        """Memories at the start of a document; every leaf [batch_size, ...]."""
        return self._join(self.stack.initial_state(batch_size), jnp.zeros((batch_size,), jnp.int32))

    @property
    def _counts(self) -> bool:
        """Whether positions continue through a document."""
        return has_table(self.config)

    @property
    def _in_windows(self) -> bool:
        """Whether a text that is longer than the table of positions is read in windows."""
        return self._counts and is_plain(self.config)

    def _ends(self, position: jax.Array) -> jax.Array:
        """Whether the table has no positions for a segment from `position` on; bool [batch]."""
        return position + self.segment_length > self.config.num_positions

    def _at_border(
        self, state: tuple[BlockState, ...] | Counted
    ) -> tuple[BlockState, ...] | Counted:
        """What a segment begins with, from the memories that the one before it has left."""
        if not self._in_windows or not isinstance(state, Counted):
            return state
        fresh = self.initial_state(state.position.shape[0])
        return reset_lanes(self._ends(state.position), fresh, state)

    def _join(
        self, blocks: tuple[BlockState, ...], position: jax.Array | None
    ) -> tuple[BlockState, ...] | Counted:
        """A state, or caches, with the count of tokens if the model has one."""
        return Counted(blocks, position) if self._counts and position is not None else blocks

    def _split(
        self, state: tuple[BlockState, ...] | Counted
    ) -> tuple[tuple[BlockState, ...], jax.Array | None]:
        """The blocks' states, or caches, and the count of tokens (None if there is none)."""
        if isinstance(state, Counted):
            return state.blocks, state.position
        return state, None

    def _after(self, position: jax.Array | None, count: jax.Array) -> jax.Array | None:
        """`Counted.position` after `count` (int32 [batch]) tokens; what is beyond the table is alike."""
        if position is None:
            return None
        return jnp.minimum(position + count, self.config.num_positions)

    def _read(self, segment: Segment, state: Any, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Reads a packed segment: the last block's output, memories after it, `Aux`."""
        start = segment.start
        if self._in_windows:
            start = start | self._ends(state.position)
        if start.ndim == 1:  # otherwise layers reset themselves where documents start
            state = reset_lanes(start, self.initial_state(len(start)), state)
        segment = with_key(self, segment, train)
        blocks, position = self._split(state)
        x = self.stack.embed(segment.tokens, first=position, train=train)
        x, blocks, aux = self.stack.read(x, blocks, segment, train=train)
        after = self._after(position, segment.valid.sum(1, jnp.int32))
        return self.stack.drop(x, deterministic=not train), self._join(blocks, after), aux

    def hidden(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """The last layer's output, [batch, length, d_model]; otherwise as `__call__`."""
        packed, packing = pack(segment, takes_starts=takes_starts(self.config))
        hidden, state, aux = self._read(packed, state, train)
        return packing.unpack(hidden), state, aux

    def __call__(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Logits of the next token at every position.

        Args:
          segment: tokens of all lanes.
          state: memories before the segment.
          train: dropout and training-only behaviour of memories on or off.

        Returns:
          logits [batch, length, vocab_size], at least float32 (log-probabilities with clusters);
          memories after the segment; `Aux`.
        """
        packed, packing = pack(segment, takes_starts=takes_starts(self.config))
        hidden, state, aux = self._read(packed, state, train)
        return packing.unpack(self.stack.embedding.logits(hidden)), state, aux

    def nll(
        self, segment: Segment, targets: jax.Array, state: Any, *, train: bool
    ) -> tuple[Scores, Any, Aux]:
        """Negative log-likelihood of `targets`, without returning logits over the vocabulary.

        Args:
          segment, state, train: as in `__call__`.
          targets: int32 [batch, length], the tokens that follow; any value at padding.

        Returns:
          Scores [batch, length], zero at padding; memories after the segment; `Aux`.
        """
        packed, packing = pack(segment, takes_starts=takes_starts(self.config))
        hidden, state, aux = self._read(packed, state, train)
        scores = self.stack.nll(hidden, packing.pack(targets), packed.valid)
        return jax.tree.map(packing.unpack, scores), state, aux

    def open_segment(
        self, state: tuple[BlockState, ...] | Counted, batch_size: int
    ) -> tuple[BlockState, ...] | Counted:
        """Caches of a segment that begins with the memories `state`; see `generation.stream`."""
        blocks, position = self._split(self._at_border(state))
        return self._join(self.stack.open_segment(blocks, batch_size), position)

    def extend(
        self,
        tokens: jax.Array,
        cache: tuple[BlockState, ...] | Counted,
        index: int | jax.Array,
        count: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[BlockState, ...] | Counted]:
        """Reads the next tokens of the open segment.

        Args:
          tokens: int32 [batch, n]; the segment has room for n.
          index: position of the first of these tokens in the segment, int32 [batch] or an int; see
            `MemoryLayer.extend`. A plain decoder also takes int32 [], the same in all lanes.
          count: int32 [batch], only the first `count` are tokens, the others padding; None = all are.

        Returns:
          logits [batch, n, vocab_size] and the caches with these tokens in them. With `count` only the
          logits after the last token, [batch, 1, vocab_size]; without meaning where `count` is 0.
        """
        caches, position = self._split(cache)
        first = index if position is None else position + index
        x = self.stack.embedding.encode(tokens, first)
        x, caches = self.stack.extend(x, caches, index, count=count)
        return self.stack.logits(x, count), self._join(caches, position)

    def close_segment(
        self,
        state: tuple[BlockState, ...] | Counted,
        cache: tuple[BlockState, ...] | Counted,
        count: jax.Array,
    ) -> tuple[BlockState, ...] | Counted:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memories."""
        (blocks, position), (caches, _) = self._split(self._at_border(state)), self._split(cache)
        after = self._after(position, count)
        return self._join(self.stack.close_segment(blocks, caches, count), after)
