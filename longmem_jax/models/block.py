"""The blocks that models are stacks of, made from `config.model`."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers.embedding import Embedding
from longmem_jax.layers.norms import Norm
from longmem_jax.memory.registry import ATTENTION, FEED_FORWARD, LAYERS
from longmem_jax.segment import merge_aux


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

    The block of a decoder has cross-attention between them, from `config.model.KIND.cross`.

    With `layer_drop` (Fan et al., 2020) the outputs and losses of a block are left out of some
    training steps; its memories are written all the same, so that they have no gaps.
    """

    settings: ModelSettings
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
    cross: Any = None

    def setup(self):
        self.attention_norm = Norm(self.norm)
        self.feed_forward_norm = Norm(self.norm)
        self.attention = ATTENTION[self.attention_name].layer(
            settings=self.settings,
            normalize=self.attention_norm if self.pre_norm else identity,
            shared=self.attention_shared,
            **self.attention_fields,
        )
        self.feed_forward = FEED_FORWARD[self.feed_forward_name].layer(
            settings=self.settings,
            normalize=self.feed_forward_norm if self.pre_norm else identity,
            shared=self.feed_forward_shared,
            **self.feed_forward_fields,
        )
        self.drop = nn.Dropout(self.residual_dropout)
        if self.cross is not None:
            self.cross_norm = Norm(self.norm)
            self.across = self.cross(
                settings=self.settings, normalize=self.cross_norm if self.pre_norm else identity
            )

    def source(self, encoded, valid):
        """What cross-attention reads: of [batch, n, d_model], where `valid` (bool [batch, n])."""
        return self.across.source(encoded, valid)

    def _join(self, x, y, norm, train):
        x = x + self.drop(y, deterministic=not train)
        return x if self.pre_norm else norm(x)

    def _through(self, x, attend, feed, train, source=None):
        """All sub-layers around their residual connections; each returns (y, rest)."""
        y, attended = attend(x)
        x = self._join(x, y, self.attention_norm, train)
        if source is not None:
            y = self.across(x, source, train=train)
            x = self._join(x, y, self.cross_norm, train)
        y, fed = feed(x)
        return self._join(x, y, self.feed_forward_norm, train), attended, fed

    def __call__(self, x, state, segment, *, train, source=None):
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
            source,
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

    def extend(self, x, cache, index, source=None):
        x, attention, feed_forward = self._through(
            x,
            lambda x: self.attention.extend(x, cache.attention, index),
            lambda x: self.feed_forward.extend(x, cache.feed_forward, index),
            False,
            source,
        )
        return x, BlockState(attention, feed_forward)

    def beside(self, read, x, cache, *where):
        """Reads rows that are no tokens by the method `read` of the attention layer."""
        x, attention, _ = self._through(
            x,
            lambda x: getattr(self.attention, read)(x, cache.attention, *where),
            lambda x: self.feed_forward.extend(
                x, cache.feed_forward, jnp.zeros((x.shape[0],), jnp.int32)
            ),
            False,
        )
        return x, cache.replace(attention=attention)

    def close_segment(self, state, cache, count):
        return BlockState(
            self.attention.close_segment(state.attention, cache.attention, count),
            self.feed_forward.close_segment(state.feed_forward, cache.feed_forward, count),
        )


def rate(config: Any, name: str) -> float:
    """A dropout rate of its own, or where that is -1 the general one."""
    return config.dropout if config[name] < 0 else config[name]


def make_settings(config: Any, segment_length: int) -> ModelSettings:
    """The sizes that every layer is told."""
    return ModelSettings(
        d_model=config.d_model,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        d_feed_forward=config.d_feed_forward,
        num_layers=config.num_layers,
        segment_length=segment_length,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        init_std=config.init_std,
        dtype=jnp.dtype(config.dtype),
    )


def make_embedding(config: Any, settings: ModelSettings) -> Embedding:
    """Embedding and softmax; `settings.segment_length` places, if they are absolute."""
    return Embedding(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_embed=config.d_embed,
        cutoffs=tuple(config.cutoffs),
        div_val=config.div_val,
        tie_weights=config.tie_weights,
        tie_projections=tuple(config.tie_projections),
        scale=config.scale_embedding,
        position=config.position,
        num_positions=settings.segment_length,
        init_std=config.init_std,
        dtype=settings.dtype,
    )


def make_blocks(config: Any, settings: ModelSettings, cross: Any = None) -> list[Block]:
    """The stack of `config.attention` and `config.feed_forward`, within a module's `setup`.

    Args:
      config: `config.model`.
      settings: sizes.
      cross: `(settings=, normalize=) -> module` of cross-attention, for the blocks of a decoder.
    """
    names = sorted({*config.attention, *config.feed_forward})
    fields = {name: dict(config[name]) for name in names}
    shared = {}
    for name in names:
        kind = LAYERS[name].shared and LAYERS[name].shared(fields[name])
        shared[name] = kind(settings, name=f'shared_{name}') if kind else None
    return [
        Block(
            settings=settings,
            norm=config.norm,
            pre_norm=config.pre_norm,
            layer_drop=config.layer_drop,
            residual_dropout=rate(config, 'residual_dropout'),
            attention_name=attention,
            attention_fields=fields[attention],
            attention_shared=shared[attention],
            feed_forward_name=feed_forward,
            feed_forward_fields=fields[feed_forward],
            feed_forward_shared=shared[feed_forward],
            cross=cross,
            name=f'block_{i}',
        )
        for i, (attention, feed_forward) in enumerate(
            zip(config.attention, config.feed_forward, strict=True)
        )
    ]
