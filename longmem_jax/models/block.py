"""The block that models are stacks of: attention, feed-forward layer, norms and residual sums."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.token_shift import TokenShift
from longmem_jax.memory.registry import ATTENTION, FEED_FORWARD
from longmem_jax.segment import Aux, Segment, merge_aux, select_lanes


@flax.struct.dataclass
class BlockState:
    """Memories of one block.

    Attributes:
      attention: state of its attention layer.
      feed_forward: state of its feed-forward layer.
      recent: the vectors just before, of a `token_shift`; None without one.
    """

    attention: Any
    feed_forward: Any
    recent: Any = None


def with_carried(state: BlockState, carried: dict[str, Any]) -> BlockState:
    """A state, or cache, with what the attention layers of earlier blocks hand on, if it takes that."""
    if not hasattr(state.attention, 'carried'):
        return state
    return state.replace(attention=state.attention.replace(carried=carried))


def without_carried(
    state: BlockState, carried: dict[str, Any]
) -> tuple[BlockState, dict[str, Any]]:
    """The state, or cache, without it, and what later blocks get."""
    carried = getattr(state.attention, 'carried', carried)
    return with_carried(state, {}), carried


def draw_skipped(key: jax.Array, rate: float) -> jax.Array:
    """Whether LayerDrop skips a block in this training step, in all lanes: a bool scalar."""
    return jax.random.bernoulli(key, rate)


class Block(nn.Module):
    """One attention and one feed-forward layer with their norms and residual connections.

    The block of a decoder has cross-attention between them.

    With `layer_drop` (Fan et al., 2020) the outputs and losses of a block are left out of some
    training steps; its memories are still written, so they have no gaps.

    Attributes:
      settings: model settings shared by all layers.
      norm, pre_norm: kind of norm; before the layers or after the sums.
      parallel: the feed-forward layer reads the block's input, as attention does, not their sum.
      layer_drop: probability of skipping the block in a training step.
      residual_dropout: dropout of what is added to the residual stream.
      token_shift: a view of the tokens just before for the attention layer, see `TokenShift`.
      attention_name, feed_forward_name: layer types in the registry.
      attention_fields, feed_forward_fields: their config sections.
      attention_shared, feed_forward_shared: what they share with other blocks, or None.
      cross: module class of cross-attention, or None.
    """

    settings: ModelSettings
    norm: str
    pre_norm: bool
    parallel: bool
    layer_drop: float
    residual_dropout: float
    token_shift: str
    attention_name: str
    attention_fields: Any
    attention_shared: Any
    feed_forward_name: str
    feed_forward_fields: Any
    feed_forward_shared: Any
    cross: Any = None

    def setup(self):
        self.attention_norm = Norm(self.norm, self.settings.norm_epsilon)
        self.feed_forward_norm = Norm(self.norm, self.settings.norm_epsilon)
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
        self.shift = TokenShift(self.settings, self.token_shift)
        if self.cross is not None:
            self.cross_norm = Norm(self.norm, self.settings.norm_epsilon)
            self.across = self.cross(
                settings=self.settings, normalize=self.cross_norm if self.pre_norm else identity
            )

    def source(self, encoded: jax.Array, valid: jax.Array) -> Any:
        """What cross-attention reads: `encoded` [batch, n, d_model] where `valid`, bool [batch, n]."""
        return self.across.source(encoded, valid)

    def _add(self, x: jax.Array, y: jax.Array, norm: Norm, train: bool) -> jax.Array:
        x = x + self.drop(y, deterministic=not train)
        return x if self.pre_norm else norm(x)

    def __call__(
        self, x: jax.Array, state: BlockState, segment: Segment, *, train: bool, source: Any = None
    ) -> tuple[jax.Array, BlockState, Aux]:
        """Reads a segment, as `MemoryLayer`.

        Args:
          x: [batch, length, d_model], the residual stream.
          state: memories before the segment.
          segment: the packed segment.
          train: dropout and LayerDrop on or off.
          source: what cross-attention reads, in a decoder; see `source`.
        """
        start = segment.start if segment.start.ndim == 2 else None
        shifted, recent = self.shift(x, state.recent, segment.valid.sum(1, jnp.int32), start)
        y, attention_state, attention_aux = self.attention(
            shifted, state.attention, segment, train=train
        )
        out = self._add(x, y, self.attention_norm, train)
        if source is not None:
            out = self._add(out, self.across(out, source, train=train), self.cross_norm, train)
        y, feed_forward_state, feed_forward_aux = self.feed_forward(
            x if self.parallel else out, state.feed_forward, segment, train=train
        )
        out = self._add(out, y, self.feed_forward_norm, train)
        aux = merge_aux([attention_aux, feed_forward_aux])
        if train and self.layer_drop:
            skipped = draw_skipped(self.make_rng('memory'), self.layer_drop)
            out = jnp.where(skipped, x, out)
            losses = {
                name: jnp.where(skipped, jnp.zeros_like(loss), loss)
                for name, loss in aux.losses.items()
            }
            aux = aux.replace(losses=losses)
        return out, BlockState(attention_state, feed_forward_state, recent), aux

    def initial_state(self, batch_size: int) -> BlockState:
        """Memories at the start of a document; every leaf [batch_size, ...]."""
        return BlockState(
            self.attention.initial_state(batch_size),
            self.feed_forward.initial_state(batch_size),
            self.shift.initial_state(batch_size),
        )

    def open_segment(self, state: BlockState, batch_size: int) -> BlockState:
        """Caches of a segment that begins with the memories `state`."""
        return BlockState(
            self.attention.open_segment(state.attention, batch_size),
            self.feed_forward.open_segment(state.feed_forward, batch_size),
            state.recent,
        )

    def extend(
        self,
        x: jax.Array,
        cache: BlockState,
        index: int | jax.Array,
        count: jax.Array,
        source: Any = None,
    ) -> tuple[jax.Array, BlockState]:
        """Reads the first `count` of `x`, from `index` on; see `MemoryLayer` and `__call__`."""
        shifted, recent = self.shift(x, cache.recent, count)
        y, attention_cache = self.attention.extend(shifted, cache.attention, index, count)
        out = self._add(x, y, self.attention_norm, False)
        if source is not None:
            out = self._add(out, self.across(out, source, train=False), self.cross_norm, False)
        y, feed_forward_cache = self.feed_forward.extend(
            x if self.parallel else out, cache.feed_forward, index, count
        )
        out = self._add(out, y, self.feed_forward_norm, False)
        return out, BlockState(attention_cache, feed_forward_cache, recent)

    def close_segment(self, state: BlockState, cache: BlockState, count: jax.Array) -> BlockState:
        """Writes the first `count` (int32 [batch]) positions of the open segment."""
        return BlockState(
            self.attention.close_segment(state.attention, cache.attention, count),
            self.feed_forward.close_segment(state.feed_forward, cache.feed_forward, count),
            select_lanes(count > 0, cache.recent, state.recent),
        )
