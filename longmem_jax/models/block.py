"""The block that models are stacks of: attention, feed-forward layer, norms and residual sums."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers import initializers
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.token_shift import TokenShift
from longmem_jax.memory.registry import LAYERS
from longmem_jax.memory.returned import closed, extended, initial, read
from longmem_jax.segment import Aux, Segment, merge_aux, select_lanes


class BlockState(flax.struct.PyTreeNode):
    """Memories of one block.

    Attributes:
      attention: state of its attention layer.
      feed_forward: state of its feed-forward layer.
      recent: the vectors just before, of a `token_shift`; None without one.
      beside: state of the attention layer beside, if there is one.
      around: state of the memory around this and the next blocks, in the first of them.
    """

    attention: Any
    feed_forward: Any
    recent: Any = None
    beside: Any = None
    around: Any = None


def draw_skipped(key: jax.Array, rate: float) -> jax.Array:
    """Whether LayerDrop skips a block in this training step, in all lanes: a bool scalar."""
    return jax.random.bernoulli(key, rate)


class Block(nn.Module):
    """One attention and one feed-forward layer with their norms and residual connections.

    The block of a decoder has cross-attention between them. Another attention layer may stand beside
    attention: its output is multiplied by a gate per channel, which begins at 0, and added.

    With `layer_drop` (Fan et al., 2020) the outputs and losses of a block are left out of some
    training steps; its memories are still written, so they have no gaps.

    Attributes:
      settings: model settings shared by all layers.
      parallel: the feed-forward layer reads the block's input, as attention does, not their sum.
      layer_drop: probability of skipping the block in a training step.
      token_shift: a view of the tokens just before for the attention layer, see `TokenShift`.
      parts: by 'attention', 'feed_forward' and perhaps 'beside', the type of the layer in the registry,
        its config section, and what it shares with other blocks, or None.
      cross: module class of cross-attention, or None.
      between: the memory around the block has a part between attention and feed-forward layer.
      output_norm: in a pre-norm model, norms of what the layers return, not of what they read.
      both_norms: in a pre-norm model, norms of what the layers read, and others of what they return.
    """

    settings: ModelSettings
    parallel: bool
    layer_drop: float
    token_shift: str
    parts: Mapping[str, tuple[str, Any, Any]]
    cross: Any = None
    between: bool = False
    output_norm: bool = False
    both_norms: bool = False

    def setup(self) -> None:
        self.attention_norm, self.feed_forward_norm = self._norm(), self._norm()
        self.attention_output_norm = self._norm() if self.both_norms else None
        self.feed_forward_output_norm = self._norm() if self.both_norms else None
        self.attention = self._layer('attention', self.attention_norm)
        self.feed_forward = self._layer('feed_forward', self.feed_forward_norm)
        self.drop = Dropout(self.settings.residual_rate)
        self.shift = TokenShift(self.settings, self.token_shift)
        self.beside = None
        if 'beside' in self.parts:
            self.beside = self._layer('beside', self.attention_norm)
            zeros = initializers.with_axes(nn.initializers.zeros, ('embed',))
            self.beside_gate = self.param('beside_gate', zeros, (self.settings.d_model,))
        if self.cross is not None:
            self.cross_norm = self._norm()
            self.across = self.cross(
                settings=self.settings, normalize=self._normalize(self.cross_norm)
            )
        if self.between:
            self.between_norm = self._norm()

    def _norm(self) -> Norm:
        return Norm(self.settings.norm, self.settings.norm_epsilon)

    def _normalize(self, norm: Norm) -> Callable[[jax.Array], jax.Array]:
        """The `normalize` of a layer."""
        return norm if self.settings.pre_norm and not self.output_norm else identity

    def _layer(self, part: str, norm: Norm) -> nn.Module:
        name, fields, shared = self.parts[part]
        return LAYERS[name].layer.module(
            settings=self.settings, normalize=self._normalize(norm), shared=shared, **fields
        )

    def source(self, encoded: jax.Array, valid: jax.Array) -> Any:
        """What cross-attention reads: `encoded` [batch, n, d_model] where `valid`, bool [batch, n]."""
        return self.across.source(encoded, valid)

    def _add(
        self, x: jax.Array, y: jax.Array, norm: Norm, train: bool, of_output: Norm | None = None
    ) -> jax.Array:
        of_output = norm if self.output_norm else of_output
        y = y if of_output is None else of_output(y)
        x = x + self.drop(y, deterministic=not train)
        return x if self.settings.pre_norm else norm(x)

    def _with_beside(self, y: jax.Array, beside: jax.Array) -> jax.Array:
        return y + beside * self.beside_gate.astype(y.dtype)

    def _between(
        self, x: jax.Array, source: Any, between: Callable[..., jax.Array] | None, train: bool
    ) -> jax.Array:
        """What stands between attention and feed-forward layer."""
        if source is not None:
            x = self._add(x, self.across(x, source, train=train), self.cross_norm, train)
        if self.between and between is not None:
            y = between(self._normalize(self.between_norm)(x))
            x = self._add(x, y, self.between_norm, train)
        return x

    def __call__(
        self,
        x: jax.Array,
        state: BlockState,
        segment: Segment,
        *,
        train: bool,
        source: Any = None,
        between: Callable[..., jax.Array] | None = None,
    ) -> tuple[jax.Array, BlockState, Aux]:
        """Reads a segment, as `MemoryLayer`.

        Args:
          source: what cross-attention reads, in a decoder; see `source`.
          between: `Around.between` of the memory around, as a function of x.
        """
        start = segment.start if segment.start.ndim == 2 else None
        shifted, recent = self.shift(x, state.recent, segment.valid.sum(1, jnp.int32), start)
        y, attention_state, attention_aux = read(
            self.attention, shifted, state.attention, segment, train
        )
        beside_state, auxes = None, [attention_aux]
        if self.beside is not None:
            beside, beside_state, aux = read(self.beside, shifted, state.beside, segment, train)
            y, auxes = self._with_beside(y, beside), [attention_aux, aux]
        out = self._add(x, y, self.attention_norm, train, self.attention_output_norm)
        out = self._between(out, source, between, train)
        y, feed_forward_state, feed_forward_aux = read(
            self.feed_forward, x if self.parallel else out, state.feed_forward, segment, train
        )
        out = self._add(out, y, self.feed_forward_norm, train, self.feed_forward_output_norm)
        aux = merge_aux([*auxes, feed_forward_aux])
        if train and self.layer_drop:
            skipped = draw_skipped(self.make_rng('memory'), self.layer_drop)
            out = jnp.where(skipped, x, out)
            losses = {
                name: jnp.where(skipped, jnp.zeros_like(loss), loss)
                for name, loss in aux.losses.items()
            }
            aux = aux.replace(losses=losses)
        return out, BlockState(attention_state, feed_forward_state, recent, beside_state), aux

    def initial_state(self, batch_size: int) -> BlockState:
        """Memories at the start of a document; every leaf [batch_size, ...]."""
        return BlockState(
            initial(self.attention, batch_size),
            initial(self.feed_forward, batch_size),
            self.shift.initial_state(batch_size),
            None if self.beside is None else initial(self.beside, batch_size),
        )

    def open_segment(self, state: BlockState, batch_size: int) -> BlockState:
        """Caches of a segment that begins with the memories `state`."""
        return BlockState(
            self.attention.open_segment(state.attention, batch_size),
            self.feed_forward.open_segment(state.feed_forward, batch_size),
            state.recent,
            None if self.beside is None else self.beside.open_segment(state.beside, batch_size),
        )

    def before_trailing(self, cache: BlockState, end: jax.Array) -> BlockState:
        """The cache before trailing extra tokens, which end before the position `end`, int32 [batch]."""
        if not hasattr(self.attention, 'before_trailing'):
            return cache
        return cache.replace(attention=self.attention.before_trailing(cache.attention, end))

    def extend(
        self,
        x: jax.Array,
        cache: BlockState,
        index: int | jax.Array,
        count: jax.Array,
        source: Any = None,
        *,
        between: Callable[..., jax.Array] | None = None,
    ) -> tuple[jax.Array, BlockState]:
        """Reads the first `count` of `x`, from `index` on; see `MemoryLayer` and `__call__`."""
        shifted, recent = self.shift(x, cache.recent, count)
        y, attention_cache = extended(self.attention, shifted, cache.attention, index, count)
        beside_cache = None
        if self.beside is not None:
            beside, beside_cache = extended(self.beside, shifted, cache.beside, index, count)
            y = self._with_beside(y, beside)
        out = self._add(x, y, self.attention_norm, False, self.attention_output_norm)
        out = self._between(out, source, between, False)
        y, feed_forward_cache = extended(
            self.feed_forward, x if self.parallel else out, cache.feed_forward, index, count
        )
        out = self._add(out, y, self.feed_forward_norm, False, self.feed_forward_output_norm)
        return out, BlockState(attention_cache, feed_forward_cache, recent, beside_cache)

    def close_segment(self, state: BlockState, cache: BlockState, count: jax.Array) -> BlockState:
        """Writes the first `count` (int32 [batch]) positions of the open segment."""
        return BlockState(
            closed(self.attention, state.attention, cache.attention, count),
            closed(self.feed_forward, state.feed_forward, cache.feed_forward, count),
            select_lanes(count > 0, cache.recent, state.recent),
            None if self.beside is None else closed(self.beside, state.beside, cache.beside, count),
        )
