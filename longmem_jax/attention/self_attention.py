"""Self-attention over a memory of hidden vectors and the segment, whole or token by token.

The parts that most memories share: position scheme, attention, and the cache of keys and values of
an open segment; the memory owns the projections. Memory keys come before those of the segment: with
a memory of M vectors, key j and query j of the segment have index M + j.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend, attend_in
from longmem_jax.attention.relative_position import POSITIONS, RelativePosition
from longmem_jax.attention.rules import Rules
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import Projections

# Weight that a vector before the segment has at first, as a logarithm, where a pretrained decoder's
# positions would take it for the vector at the same position of the segment.
FIRST_BIAS = -8.0

__all__ = ['POSITIONS', 'KeyValues', 'SelfAttention', 'attention_of', 'write_at']


class KeyValues(flax.struct.PyTreeNode):
    """Keys and values of the memory and of the open segment.

    Attributes:
      keys, values: [batch, kv_heads, memory_length + segment_length, head_dim].
    """

    keys: jax.Array
    values: jax.Array

    def write_at(
        self, keys: jax.Array, values: jax.Array, position: int | jax.Array
    ) -> 'KeyValues':
        """Writes keys and values [batch, kv_heads, n, head_dim] from `position` on; see `write_at`."""
        return KeyValues(
            write_at(self.keys, keys, position, 2, read=True),
            write_at(self.values, values, position, 2, read=True),
        )

    def before(self, end: int | jax.Array) -> 'KeyValues':
        """Those with an index below `end` if it is an int; all if it is int32 [batch]."""
        if not isinstance(end, int):
            return self
        return KeyValues(self.keys[:, :, :end], self.values[:, :, :end])


def write_at(
    array: jax.Array, new: jax.Array, position: int | jax.Array, axis: int, *, read: bool = False
) -> jax.Array:
    """Writes `new` into `array` along `axis`, starting at a position per batch row.

    Args:
      array: [batch, ...].
      new: like `array`, shorter along `axis`; cast to its dtype.
      position: the first position written, int32 [batch], or an int or int32 [] for all rows. What of
        several vectors is beyond the last position of `array` is dropped, where it is [batch].
      axis: at least 1.
      read: attention reads the result, too; without it a CPU may copy the whole array.

    Returns:
      Shape and dtype of `array`.
    """

    new = new.astype(array.dtype)
    if isinstance(position, int) or not position.ndim:
        return jax.lax.dynamic_update_slice_in_dim(array, new, position, axis)

    def write(array: jax.Array, new: jax.Array, position: jax.Array) -> jax.Array:
        if (
            new.shape[axis - 1] == 1
        ):  # a slice is faster, but is moved to where there is room for it
            return jax.lax.dynamic_update_slice_in_dim(array, new, position, axis - 1)
        index = position + jnp.arange(new.shape[axis - 1], dtype=jnp.int32)
        return array.at[(slice(None),) * (axis - 1) + (index,)].set(new, mode='drop')

    write_all = jax.vmap(write)
    if not read or new.shape[axis] != 1 or array.shape[0] != 1:
        return write_all(array, new, position)
    return jax.lax.platform_dependent(
        array, new, position, cpu=functools.partial(_in_a_loop, write_all), default=write_all
    )


def _in_a_loop(
    write: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    array: jax.Array,
    new: jax.Array,
    position: jax.Array,
) -> jax.Array:
    """`write(array, new, position)`, in a loop of one turn that the compiler cannot look through.

    Without it XLA for CPUs writes twice what is both read and carried on, where there is one lane, and
    copies the whole cache four times per token: a third of the time of drawing with a GPT-2.
    """

    def turn(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.bool_(False), write(carry[1], new, position)

    once = (position >= 0).any()  # always true
    return jax.lax.while_loop(lambda carry: carry[0], turn, (once, array))[1]


class SelfAttention(nn.Module):
    """Multi-head causal self-attention with relative positions.

    Attributes:
      settings: sizes of the model.
      projections: maps of queries, keys, values and output, owned by the memory.
      normalize: norm of a pre-norm model, applied to the segment and the memory.
      shared: module shared by layers (the Transformer-XL biases) or None.
      position: one of `POSITIONS`; with 'alibi_beyond' every head also has a learned bias for what is
        before the segment.
      memory_length: hidden vectors before the segment.
      clamp_length: larger distances are encoded as this one; 0 = no limit.
      window: only distances below it are seen; 0 = no limit.
      block_size: keys per block of the online softmax; 0 = all keys at once.
      parts: what the vectors of the memory are, for inspection; see `Look`. () = one cache.
    """

    settings: ModelSettings
    projections: Projections
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    position: str
    memory_length: int
    clamp_length: int = 0
    window: int = 0
    block_size: int = 0
    parts: tuple[tuple[str, int], ...] = ()

    def setup(self) -> None:
        self.relation = RelativePosition(
            settings=self.settings,
            shared=self.shared,
            kind=self.position,
            num_distances=self.memory_length + self.settings.segment_length,
            clamp_length=self.clamp_length,
        )
        self.memory_bias = None
        if self.position == 'alibi_beyond' and self.memory_length:
            init = initializers.with_axes(nn.initializers.constant(FIRST_BIAS), ('heads',))
            self.memory_bias = self.param('memory_bias', init, (self.settings.num_heads,))

    def _bias(self, num_keys: int) -> jax.Array | None:
        """Added to scores of the memory, float32 [1, heads, 1, num_keys]; None = nothing."""
        if self.memory_bias is None:
            return None
        before = jnp.arange(num_keys, dtype=jnp.int32) < self.memory_length
        return jnp.where(before, self.memory_bias[:, None], 0.0)[None, :, None]

    def _read(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        offset: int | jax.Array,
        first: jax.Array | None,
        train: bool,
    ) -> jax.Array:
        """Attends from normalised `x` [batch, n, d_model]; `offset` and `first` as in `Rules`."""
        queries = self.projections.queries(x)
        queries, by_distance = self.relation.apply_to_queries(
            queries, offset, keys.shape[2], train=train
        )
        rules = Rules(
            offset=offset,
            first=first,
            bias=self._bias(keys.shape[2]),
            window=self.window,
            scale=self.settings.score_scale,
            **by_distance,
        )
        parts = self.parts or (('cache', self.memory_length),)
        parts = (*parts, ('segment', keys.shape[2] - self.memory_length))
        out = attend_in(
            self, queries, keys, values, rules, train=train, parts=parts, block_size=self.block_size
        )
        return self.projections.out(out)

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
        count: jax.Array | None = None,
        *,
        train: bool,
    ) -> jax.Array:
        """Attends to the memory and the segment.

        Args:
          x: [batch, length, d_model], the residual stream.
          memory: [batch, memory_length, d_model], or None where `memory_length` is 0.
          count: int32 [batch], number of filled vectors of the memory, the last ones.
          train: turns dropout on.

        Returns:
          [batch, length, d_model].
        """
        x = self.normalize(x)
        if memory is None or count is None:
            return self._read(x, *self._keys_values(x, 0), 0, None, train)
        # Projected separately: a detached memory needs no gradient, which is most of that product.
        keys, values = (
            jnp.concatenate(both, axis=2)
            for both in zip(
                self._keys_values(self.normalize(memory), 0),
                self._keys_values(x, self.memory_length),
                strict=True,
            )
        )
        first = self.memory_length - count
        return self._read(x, keys, values, self.memory_length, first, train)

    def usage(
        self, x: jax.Array, memory: jax.Array, count: jax.Array, num_valid: jax.Array
    ) -> jax.Array:
        """Attention that every key receives from the first `num_valid` (int32 [batch]) queries.

        Averaged over heads, without dropout or gradient; other arguments as in `__call__`.

        Returns:
          float32 [batch, memory_length + length].
        """
        x = self.normalize(x)
        joined = jnp.concatenate([self.normalize(memory), x], axis=1)
        counted = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < num_valid[:, None]
        first = self.memory_length - count
        return self._received(x, *self._keys_values(joined, 0), self.memory_length, first, counted)

    def usage_of_tokens(
        self,
        x: jax.Array,
        cache: KeyValues,
        index: int | jax.Array,
        count: jax.Array,
        num_valid: jax.Array,
    ) -> jax.Array:
        """`usage` by the tokens `x` of an open segment, whose keys are already in the cache."""
        counted = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < num_valid[:, None]
        first = self.memory_length - count
        offset = self.memory_length + index
        seen, normalized = cache.before(offset + x.shape[1]), self.normalize(x)
        return self._received(normalized, seen.keys, seen.values, offset, first, counted)

    def _received(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        offset: int | jax.Array,
        first: jax.Array,
        counted: jax.Array,
    ) -> jax.Array:
        """Attention received by every key from the queries in `counted`; see `usage`."""
        # out_i = sum_j w_ij v_j for weights w, so that in any one channel
        #   d(sum_i out_i) / d v_j = sum_i w_ij,
        # which is what key j receives: `attend` need not return its weights.
        x, keys, values = jax.lax.stop_gradient((x, keys, values))
        queries, by_distance = self.relation.apply_to_queries(
            self.projections.queries(x), offset, keys.shape[2], train=False
        )
        rules = Rules(
            offset=offset,
            first=first,
            bias=self._bias(keys.shape[2]),
            scale=self.settings.score_scale,
            **by_distance,
        )

        def read(values: jax.Array) -> jax.Array:
            out = attend(queries, keys, values, rules)
            return jnp.where(counted[:, None, :, None], out[..., :1], jnp.zeros_like(out[..., :1]))

        out, pull = jax.vjp(read, values.astype(jnp.promote_types(values.dtype, jnp.float32)))
        # With grouped heads this is already the sum over the group.
        weights = pull(jnp.ones_like(out))[0][..., 0].sum(axis=1) / self.settings.num_heads
        return jax.lax.stop_gradient(weights).astype(jnp.float32)

    def _keys_values(self, x: jax.Array, start: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of normalised `x`, whose first vector has key index `start`."""
        return self.relation.apply_to_keys(
            self.projections.keys(x), start
        ), self.projections.values(x)

    def open(self, memory: jax.Array | None, batch_size: int) -> KeyValues:
        """Keys and values of the memory, followed by room for those of the segment."""
        settings = self.settings
        shape = (batch_size, settings.kv_heads, settings.segment_length, settings.head_dim)
        room = jnp.zeros(shape, settings.dtype)
        if memory is None:
            return KeyValues(room, room)
        keys, values = self._keys_values(self.normalize(memory), 0)
        return KeyValues(*(jnp.concatenate([array, room], axis=2) for array in (keys, values)))

    def extend(
        self,
        x: jax.Array,
        cache: KeyValues,
        index: int | jax.Array,
        count: jax.Array | None = None,
    ) -> tuple[jax.Array, KeyValues]:
        """Attends from the next tokens of the open segment.

        Args:
          x: [batch, n, d_model]; padding after the tokens is seen by none of them.
          cache: keys and values so far.
          index: position of the first of these tokens in the segment, as in `MemoryLayer.extend`.
          count: as in `__call__`.

        Returns:
          [batch, n, d_model], and the cache with these tokens.
        """
        x = self.normalize(x)
        offset = self.memory_length + index
        keys, values = self._keys_values(x, offset)
        cache = cache.write_at(keys, values, offset)
        first = None if not self.memory_length or count is None else self.memory_length - count
        seen = cache.before(offset + x.shape[1])
        return self._read(x, seen.keys, seen.values, offset, first, False), cache


def attention_of(layer: Any, memory_length: int, **others: Any) -> SelfAttention:
    """The attention of a memory of hidden vectors; called in its `setup`.

    Args:
      layer: has `settings`, `projections`, `normalize`, `shared` and `position`.
      memory_length: hidden vectors before the segment.
      **others: further attributes of `SelfAttention`.
    """
    return SelfAttention(
        settings=layer.settings,
        projections=layer.projections,
        normalize=layer.normalize,
        shared=layer.shared,
        position=layer.position,
        memory_length=memory_length,
        **others,
    )
