"""The language model that every memory is a drop-in part of.

Embedding, blocks of one attention and one feed-forward layer each, output. The state is a tuple of
`BlockState`, one per block; the model resets the lanes in which a document starts and brings valid
tokens to the front, so that layers need not know of either.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import ml_collections

from longmem_jax.layers.embedding import Embedding
from longmem_jax.layers.norms import Norm
from longmem_jax.memory.contract import Host, identity
from longmem_jax.memory.registry import ATTENTION, FEED_FORWARD, LAYERS
from longmem_jax.segment import (
    Aux,
    Segment,
    bring_forward,
    merge_aux,
    select_lanes,
)


@flax.struct.dataclass
class BlockState:
    """Memories of one block.

    Attributes:
      attention: state of its attention layer.
      feed_forward: state of its feed-forward layer.
    """

    attention: Any
    feed_forward: Any


def draw_skipped(key: jax.Array, rate: float) -> jax.Array:
    """Whether a block is thrown away in this training step, for all lanes: LayerDrop."""
    return jax.random.bernoulli(key, rate)


class Block(nn.Module):
    """One attention and one feed-forward layer with their norms and residual connections.

    With `layer_drop` (Fan et al., 2020) the outputs and losses of a block are left out of some
    training steps; its memories are written all the same, so that they have no gaps.
    """

    host: Host
    norm: str
    pre_norm: bool
    layer_drop: float
    residual_dropout: float
    attention_name: str
    attention_fields: Any
    attention_shared: Any
    feed_forward_name: str
    feed_forward_fields: Any
    feed_forward_shared: Any

    def setup(self):
        self.attention_norm = Norm(self.norm)
        self.feed_forward_norm = Norm(self.norm)
        self.attention = ATTENTION[self.attention_name].layer(
            host=self.host,
            normalize=self.attention_norm if self.pre_norm else identity,
            shared=self.attention_shared,
            **self.attention_fields,
        )
        self.feed_forward = FEED_FORWARD[self.feed_forward_name].layer(
            host=self.host,
            normalize=self.feed_forward_norm if self.pre_norm else identity,
            shared=self.feed_forward_shared,
            **self.feed_forward_fields,
        )
        self.drop = nn.Dropout(self.residual_dropout)

    def _join(self, x, y, norm, train):
        x = x + self.drop(y, deterministic=not train)
        return x if self.pre_norm else norm(x)

    def _through(self, x, attend, feed, train):
        """Both sub-layers around their residual connections; each returns (y, rest)."""
        y, attended = attend(x)
        x = self._join(x, y, self.attention_norm, train)
        y, fed = feed(x)
        return self._join(x, y, self.feed_forward_norm, train), attended, fed

    def __call__(self, x, state, segment, *, train):
        def call(layer, state):
            def run(x):
                y, new, aux = layer(x, state, segment, train=train)
                return y, (new, aux)

            return run

        y, (attention, first), (feed_forward, second) = self._through(
            x,
            call(self.attention, state.attention),
            call(self.feed_forward, state.feed_forward),
            train,
        )
        aux = merge_aux([first, second])
        if train and self.layer_drop:
            skipped = draw_skipped(self.make_rng('memory'), self.layer_drop)
            y = jnp.where(skipped, x, y)
            losses = {
                name: jnp.where(skipped, jnp.zeros_like(loss), loss)
                for name, loss in aux.losses.items()
            }
            aux = aux.replace(losses=losses)
        return y, BlockState(attention, feed_forward), aux

    def initial_state(self, batch_size):
        return BlockState(
            self.attention.initial_state(batch_size), self.feed_forward.initial_state(batch_size)
        )

    def open_segment(self, state, batch_size):
        return BlockState(
            self.attention.open_segment(state.attention, batch_size),
            self.feed_forward.open_segment(state.feed_forward, batch_size),
        )

    def extend(self, x, cache, index):
        x, attention, feed_forward = self._through(
            x,
            lambda x: self.attention.extend(x, cache.attention, index),
            lambda x: self.feed_forward.extend(x, cache.feed_forward, index),
            False,
        )
        return x, BlockState(attention, feed_forward)

    def close_segment(self, state, cache, count):
        return BlockState(
            self.attention.close_segment(state.attention, cache.attention, count),
            self.feed_forward.close_segment(state.feed_forward, cache.feed_forward, count),
        )


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
        host = Host(
            d_model=config.d_model,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            d_feed_forward=config.d_feed_forward,
            num_layers=config.num_layers,
            segment_length=self.segment_length,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            init_std=config.init_std,
            dtype=jnp.dtype(config.dtype),
        )
        self.embedding = Embedding(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            d_embed=config.d_embed,
            cutoffs=tuple(config.cutoffs),
            div_val=config.div_val,
            tie_weights=config.tie_weights,
            tie_projections=tuple(config.tie_projections),
            scale=config.scale_embedding,
            position=config.position,
            num_positions=self.segment_length,
            init_std=config.init_std,
            dtype=host.dtype,
        )
        names = sorted({*config.attention, *config.feed_forward})
        fields = {name: dict(config[name]) for name in names}
        shared = {}
        for name in names:
            kind = LAYERS[name].shared and LAYERS[name].shared(fields[name])
            shared[name] = kind(host, name=f'shared_{name}') if kind else None
        self.blocks = [
            Block(
                host=host,
                norm=config.norm,
                pre_norm=config.pre_norm,
                layer_drop=config.layer_drop,
                residual_dropout=_rate(config, 'residual_dropout'),
                attention_name=attention,
                attention_fields=fields[attention],
                attention_shared=shared[attention],
                feed_forward_name=feed_forward,
                feed_forward_fields=fields[feed_forward],
                feed_forward_shared=shared[feed_forward],
                name=f'block_{i}',
            )
            for i, (attention, feed_forward) in enumerate(
                zip(config.attention, config.feed_forward, strict=True)
            )
        ]
        self.final_norm = Norm(config.norm) if config.final_norm else None
        self.drop = nn.Dropout(_rate(config, 'embedding_dropout'))

    def initial_state(self, batch_size: int) -> tuple[BlockState, ...]:
        """Memories of documents that have not begun; every leaf [batch_size, ...]."""
        return tuple(block.initial_state(batch_size) for block in self.blocks)

    def _read(self, segment: Segment, state: Any, train: bool):
        """Reads a segment whose valid tokens come first."""
        batch_size = segment.tokens.shape[0]
        state = select_lanes(segment.start, self.initial_state(batch_size), state)
        x = self.embedding.encode(segment.tokens, jnp.zeros((batch_size,), jnp.int32))
        x = self.drop(x, deterministic=not train)
        states, reports = [], []
        for i, (block, block_state) in enumerate(zip(self.blocks, state, strict=True)):
            with jax.named_scope(f'block_{i}'):
                x, new, aux = block(x, block_state, segment, train=train)
            states.append(new)
            reports.append(aux)
        return self._finish(x, train), tuple(states), merge_aux(reports)

    def _finish(self, x, train):
        x = x if self.final_norm is None else self.final_norm(x)
        return self.drop(x, deterministic=not train)

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
        return tuple(
            block.open_segment(part, batch_size)
            for block, part in zip(self.blocks, state, strict=True)
        )

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
        return self.embedding.logits(self._finish(x, False)), tuple(caches)

    def close_segment(self, state: Any, cache: Any, count: jax.Array) -> tuple[BlockState, ...]:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memories."""
        return tuple(
            block.close_segment(old, part, count)
            for block, old, part in zip(self.blocks, state, cache, strict=True)
        )


def _rate(config, name):
    """A dropout rate of its own, or -1 for the general one."""
    return config.dropout if config[name] < 0 else config[name]


def per_lane_order(order: jax.Array, leaf: jax.Array) -> jax.Array:
    """Index `order` [batch, length] shaped for `take_along_axis` on [batch, length, ...]."""
    return order.reshape(order.shape + (1,) * (leaf.ndim - 2))


def make_model(config: Any, segment_length: int) -> LanguageModel:
    """The model of `config.model` for segments of `segment_length` tokens."""
    return LanguageModel(
        config=ml_collections.FrozenConfigDict(config), segment_length=segment_length
    )
