"""The language model that every memory is a drop-in part of.

Embedding, blocks of one attention and one feed-forward layer each, output. The state is a tuple of
`BlockState`, one per block. The model moves padding to the end and resets the memories of lanes in
which a document starts, so that layers can ignore both. Its methods are the interface that all kinds
of language model share.
"""

from typing import Any

import flax.linen as nn
import jax

from longmem_jax.models.block import BlockState
from longmem_jax.models.stack import make_stack, with_key
from longmem_jax.segment import Aux, Segment, pack, select_lanes


class LanguageModel(nn.Module):
    """A causal language model with memories.

    Attributes:
      config: `config.model`, frozen.
      segment_length: tokens per segment, `length` below.
    """

    config: Any
    segment_length: int

    def setup(self):
        self.stack = make_stack(self.config, self.segment_length)

    def initial_state(self, batch_size: int) -> tuple[BlockState, ...]:
        """Memories of documents that have not begun; every leaf [batch_size, ...]."""
        return self.stack.initial_state(batch_size)

    def _read(self, segment, state, train):
        """Reads a packed segment: the last block's output, memories after it, `Aux`."""
        fresh = self.initial_state(segment.start.shape[0])
        state = select_lanes(segment.start, fresh, state)
        segment = with_key(self, segment, train)
        x = self.stack.embed(segment.tokens, train=train)
        x, state, aux = self.stack.read(x, state, segment, train=train)
        return self.stack.drop(x, deterministic=not train), state, aux

    def hidden(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """The last layer's output, [batch, length, d_model]; otherwise as `__call__`."""
        packed, packing = pack(segment)
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
        packed, packing = pack(segment)
        hidden, state, aux = self._read(packed, state, train)
        return packing.unpack(self.stack.embedding.logits(hidden)), state, aux

    def nll(
        self, segment: Segment, targets: jax.Array, state: Any, *, train: bool
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Any, Aux]:
        """Negative log-likelihood of `targets`, without whole-vocabulary logits being returned.

        Args:
          segment, state, train: as in `__call__`.
          targets: int32 [batch, length], the tokens that follow; any value at padding.

        Returns:
          (nll, log_z, right): nll and log_z [batch, length] in nats, at least float32, zero at
          padding; bool [batch, length], whether the target was the likeliest token; memories after
          the segment; `Aux`.
        """
        packed, packing = pack(segment)
        hidden, state, aux = self._read(packed, state, train)
        scores = self.stack.nll(hidden, packing.pack(targets), packed.valid)
        return jax.tree.map(packing.unpack, scores), state, aux

    def open_segment(self, state: Any, batch_size: int) -> tuple[BlockState, ...]:
        """Caches of a segment that begins with the memories `state`; see `generation.stream`."""
        return self.stack.open_segment(state, batch_size)

    def extend(
        self, tokens: jax.Array, cache: Any, index: jax.Array
    ) -> tuple[jax.Array, tuple[BlockState, ...]]:
        """Reads the next tokens of the open segment.

        Args:
          tokens: int32 [batch, n].
          cache: caches of the open segment.
          index: int32 [batch], position of the first of these tokens in the segment.

        Returns:
          logits [batch, n, vocab_size] and the caches with these tokens in them.
        """
        x = self.stack.embedding.encode(tokens, index)
        x, cache = self.stack.extend(x, cache, index)
        return self.stack.embedding.logits(x), cache

    def close_segment(self, state: Any, cache: Any, count: jax.Array) -> tuple[BlockState, ...]:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memories."""
        return self.stack.close_segment(state, cache, count)
