"""The language model that every memory is a drop-in part of.

Embedding, blocks of one attention and one feed-forward layer each, output. The state is a tuple of
`BlockState`, one per block; the model resets the lanes in which a document starts and brings valid
tokens to the front, so that layers need not know of either.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.layers.norms import Norm
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.block import BlockState, make_blocks, make_embedding, make_settings, rate
from longmem_jax.segment import Aux, Segment, bring_forward, merge_aux, select_lanes


class LanguageModel(nn.Module):
    """A causal language model with memories.

    Attributes:
      config: `config.model`, frozen.
      segment_length: tokens per segment, `length` below.
    """

    config: Any
    segment_length: int

    def setup(self):
        config = self.config
        settings = make_settings(config, self.segment_length)
        self.embedding = make_embedding(config, settings)
        self.blocks = make_blocks(config, settings, self.make_cross())
        self.around = self._around(settings)
        self.final_norm = Norm(config.norm) if config.final_norm else None
        self.drop = nn.Dropout(rate(config, 'embedding_dropout'))
        self.prepare(settings)

    def make_cross(self) -> Any:
        """Cross-attention of the blocks: None, but for models that have an encoder."""
        return None

    def prepare(self, settings: Any) -> None:
        """Makes what another kind of model has besides."""

    def _around(self, settings):
        """The module of rows around every segment, where a kind of attention has one."""
        config = self.config
        name = next((name for name in config.attention if LAYERS[name].around), None)
        if name is None:
            return None
        module, wanted = LAYERS[name].around
        scale = config.d_model**0.5 if config.scale_embedding else 1.0
        return module(
            settings=settings,
            std=config.init_std * scale,  # as large as the embeddings it stands among
            name=name,
            **{field: config[name][field] for field in wanted},
        )

    def initial_state(self, batch_size: int) -> tuple[Any, ...]:
        """Memories of documents that have not begun; every leaf [batch_size, ...].

        One per block, and behind them that of the rows around a segment, if the model has such.
        """
        states = tuple(block.initial_state(batch_size) for block in self.blocks)
        return states if self.around is None else (*states, self.around.initial_state(batch_size))

    def _read(self, segment: Segment, state: Any, train: bool):
        """Reads a segment whose valid tokens come first."""
        batch_size = segment.tokens.shape[0]
        state = select_lanes(segment.start, self.initial_state(batch_size), state)
        x = self.embedding.encode(segment.tokens, jnp.zeros((batch_size,), jnp.int32))
        alive, inverse = segment.valid.any(axis=1), None
        if self.around is not None:
            x, segment, inverse = self.around.surround(x, segment, state[-1])
        x = self.drop(x, deterministic=not train)
        states, reports = [], []
        for i, (block, block_state) in enumerate(zip(self.blocks, state, strict=False)):
            with jax.named_scope(f'block_{i}'):
                x, new, aux = block(x, block_state, segment, train=train)
            states.append(new)
            reports.append(aux)
        x = self._finish(x)
        if self.around is not None:
            x, written = self.around.take(x, inverse)
            states.append(self.around.write(state[-1], written, alive))
        return self.drop(x, deterministic=not train), tuple(states), merge_aux(reports)

    def _finish(self, x):
        return x if self.final_norm is None else self.final_norm(x)

    def written(self, segment: Segment, state: Any) -> jax.Array:
        """What the last layer makes of the memory tokens around a full segment, for inspection.

        Args:
          segment, state: as in `__call__`, all tokens valid.

        Returns:
          [batch, num_tokens, d_model]; the trailing ones if there are any.
        """
        x = self.embedding.encode(segment.tokens, jnp.zeros_like(segment.start, jnp.int32))
        x, segment, inverse = self.around.surround(x, segment, state[-1])
        for block, block_state in zip(self.blocks, state, strict=False):
            x, _, _ = block(x, block_state, segment, train=False)
        return self.around.take(self._finish(x), inverse)[1]

    def _in_order(self, segment, state, train, then: Callable):
        """Reads, applies `then(hidden, order)`, and puts the [batch, length, ...] result back."""
        order, inverse = bring_forward(segment.valid)

        def sort(leaf):
            return jnp.take_along_axis(leaf, order, axis=1)

        key = self.make_rng('memory') if train and self.has_rng('memory') else None
        ordered = Segment(sort(segment.tokens), sort(segment.valid), segment.start, key)
        hidden, state, aux = self._read(ordered, state, train)
        result = jax.tree.map(
            lambda leaf: jnp.take_along_axis(leaf, per_lane_order(inverse, leaf), axis=1),
            then(hidden, sort),
        )
        return result, state, aux

    def hidden(self, segment: Segment, state: Any, *, train: bool):
        """The last layer's output, [batch, length, d_model]; new state; `Aux`."""
        return self._in_order(segment, state, train, lambda hidden, sort: hidden)

    def __call__(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Logits of the next token at every place.

        Args:
          segment: tokens of all lanes.
          state: memories before the segment.
          train: dropout and training-only behaviour of memories on or off.

        Returns:
          logits [batch, length, vocab_size], at least float32 (log-probabilities with clusters);
          memories after the segment; `Aux`.
        """
        return self._in_order(
            segment, state, train, lambda hidden, sort: self.embedding.logits(hidden)
        )

    def nll(self, segment: Segment, targets: jax.Array, state: Any, *, train: bool):
        """Negative log-likelihood of `targets`, without whole-vocabulary logits being returned.

        Args:
          segment, state, train: as in `__call__`.
          targets: int32 [batch, length], the tokens that follow; any value at padding.

        Returns:
          (nll, log_z, right): nll and log_z [batch, length] in nats, at least float32, zero at
          padding; bool [batch, length], whether the target was the likeliest token; memories after
          the segment; `Aux`.
        """
        (nll, log_z, right), state, aux = self._in_order(
            segment,
            state,
            train,
            lambda hidden, sort: self.embedding.nll(hidden, sort(targets)),
        )
        zero = jnp.zeros_like(nll)
        nll, log_z = (jnp.where(segment.valid, part, zero) for part in (nll, log_z))
        return (nll, log_z, right & segment.valid), state, aux

    def open_segment(self, state: Any, batch_size: int) -> tuple[BlockState, ...]:
        """Caches of a segment that begins behind the memories `state`; see `models.stream`."""
        caches = tuple(
            block.open_segment(part, batch_size)
            for block, part in zip(self.blocks, state, strict=False)
        )
        if self.around is None:
            return caches
        return self._beside('lead', self.around.vectors(state[-1], batch_size), caches)[1]

    def _beside(self, read, x, caches, *where):
        """Reads rows around the open segment; returns the last block's output and the caches."""
        new = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.beside(read, x, cache, *where)
            new.append(cache)
        return x, tuple(new)

    def extend(
        self, tokens: jax.Array, cache: Any, index: jax.Array
    ) -> tuple[jax.Array, tuple[BlockState, ...]]:
        """Reads the next tokens of the open segment.

        Args:
          tokens: int32 [batch, n].
          cache: caches of the open segment.
          index: int32 [batch], place of the first of these tokens in the segment.

        Returns:
          logits [batch, n, vocab_size] and the caches with these tokens in them.
        """
        x = self.embedding.encode(tokens, index)
        caches = []
        for block, part in zip(self.blocks, cache, strict=True):
            x, part = block.extend(x, part, index)
            caches.append(part)
        return self.embedding.logits(self._finish(x)), tuple(caches)

    def close_segment(self, state: Any, cache: Any, count: jax.Array) -> tuple[Any, ...]:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memories."""
        last = ()
        if self.around is not None:
            last = (None,)
            if self.around.at_end:
                vectors = self.around.vectors(state[-1], count.shape[0])
                x, cache = self._beside('trail', vectors, cache, count)
                last = (self.around.write(state[-1], self._finish(x), count > 0),)
        blocks = (
            block.close_segment(old, part, count)
            for block, old, part in zip(self.blocks, state, cache, strict=False)
        )
        return (*blocks, *last)


def per_lane_order(order: jax.Array, leaf: jax.Array) -> jax.Array:
    """Index `order` [batch, length] shaped for `take_along_axis` on [batch, length, ...]."""
    return order.reshape(order.shape + (1,) * (leaf.ndim - 2))
