"""What a layer of the infinity-former remembers, and what an open segment reads and will write."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.attention.window import push
from longmem_jax.contract import ModelSettings
from longmem_jax.segment import count_on, count_round, per_lane, select_lanes


class LongTermState(flax.struct.PyTreeNode):
    """The continuous memory of one layer.

    Attributes:
      coefficients: B, float32 [batch, num_basis, d_model].
      mass: float32 [batch, num_bins], attention of the last segment, for sticky memories.
      pending: [batch, first_length + write_length, d_model], vectors that wait to be written; the
        last `pending_count` (int32 [batch]) are filled, oldest first.
      stored: int32 [batch], vectors written since the last reset; 0 = nothing to read. It stays at
        2^31 - 1.
      writes: int32 [batch], writes in this document, modulo 2^31: it only tells random keys apart.
    """

    coefficients: jax.Array
    mass: jax.Array
    pending: jax.Array
    pending_count: jax.Array
    stored: jax.Array
    writes: jax.Array

    def oldest(self, number: int) -> jax.Array:
        """The `number` vectors that have waited longest, detached: [batch, number, d_model]."""
        start = self.pending.shape[1] - self.pending_count
        take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, number))
        return jax.lax.stop_gradient(take(self.pending, start))

    def after_write(
        self, ready: jax.Array, empty: jax.Array, needed: jax.Array, coefficients: jax.Array
    ) -> 'LongTermState':
        """The memory with new coefficients where lanes are `ready`, and its counts.

        Args:
          ready: bool [batch], lanes in which enough vectors wait.
          empty: bool [batch], lanes in which this is the first write.
          needed: int32 [batch], vectors of this write.
          coefficients: [batch, num_basis, d_model], after the write.
        """
        stored = count_on(jnp.where(empty, 0, self.stored), needed)
        return self.replace(
            coefficients=jnp.where(per_lane(ready, coefficients), coefficients, self.coefficients),
            pending_count=jnp.where(ready, self.pending_count - needed, self.pending_count),
            stored=jnp.where(ready, stored, self.stored),
            writes=count_round(self.writes, ready.astype(jnp.int32)),
        )


class InfinityFormerState(flax.struct.PyTreeNode):
    """Memories of one layer.

    Attributes:
      hidden: [batch, memory_length, d_model], the short-term memory; None if there is none.
      count: int32 [batch], its filled vectors, the last ones; None if there is none.
      long: the continuous memory.
    """

    hidden: jax.Array | None
    count: jax.Array | None
    long: LongTermState


class InfinityFormerCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      attention: keys and values of the short-term memory and of the tokens so far.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      count: as in the state.
      long: the continuous memory as this segment reads it, with the `mass` of the segment before.
      keys, values: [batch, heads, num_basis, head_dim], projected coefficients.
      mass: float32 [batch, num_bins], attention of this segment so far.
    """

    attention: KeyValues
    hidden: jax.Array
    count: jax.Array | None
    long: LongTermState
    keys: jax.Array
    values: jax.Array
    mass: jax.Array


def empty_state(
    settings: ModelSettings,
    batch: int,
    memory_length: int,
    num_basis: int,
    num_bins: int,
    room: int,
) -> InfinityFormerState:
    """Both memories empty; `room` for vectors that wait, `memory_length` 0 = no short-term memory."""
    width, dtype = settings.d_model, settings.dtype
    none = jnp.zeros((batch,), jnp.int32)
    long = LongTermState(
        coefficients=jnp.zeros((batch, num_basis, width), jnp.promote_types(dtype, jnp.float32)),
        mass=jnp.zeros((batch, num_bins), jnp.float32),
        pending=jnp.zeros((batch, room, width), dtype),
        pending_count=none,
        stored=none,
        writes=none,
    )
    if not memory_length:
        return InfinityFormerState(None, None, long)
    return InfinityFormerState(jnp.zeros((batch, memory_length, width), dtype), none, long)


def remember(
    state: InfinityFormerState,
    long: LongTermState,
    mass: jax.Array,
    hidden: jax.Array,
    num_valid: jax.Array,
) -> InfinityFormerState:
    """Writes a segment to the short-term memory; vectors that leave it become pending."""
    hidden = jax.lax.stop_gradient(hidden)
    evicted, num_leaving = hidden, num_valid
    recent, count = state.hidden, state.count
    if recent is not None and count is not None:
        joined = jnp.concatenate([recent, hidden.astype(recent.dtype)], axis=1)
        num_leaving = jnp.maximum(count + num_valid - recent.shape[1], 0)
        take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, hidden.shape[1]))
        evicted = take(joined, recent.shape[1] - count)
        recent, count = push(recent, count, hidden, num_valid)
    pending, pending_count = push(long.pending, long.pending_count, evicted, num_leaving)
    position = jnp.arange(pending.shape[1], dtype=jnp.int32)[None]
    filled = position >= pending.shape[1] - pending_count[:, None]
    long = long.replace(
        coefficients=jax.lax.stop_gradient(long.coefficients),
        mass=jax.lax.stop_gradient(mass),
        pending=jnp.where(filled[..., None], pending, jnp.zeros_like(pending)),
        pending_count=pending_count,
    )
    # A lane without tokens has not read, so it has not written either.
    long = select_lanes(num_valid > 0, long, state.long)
    return InfinityFormerState(recent, count, long)
