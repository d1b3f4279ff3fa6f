"""Eviction: moves the oldest vectors out of the recent memory, in groups ready for compression."""

import flax.struct
import jax
import jax.numpy as jnp


class CompressiveState(flax.struct.PyTreeNode):
    """Memories of one layer; vectors in the compute dtype, right-aligned.

    Attributes:
      hidden: [batch, memory_length, d_model]; the last `count` (int32 [batch]) are filled.
      compressed: [batch, compressed_length, d_model]; the last `compressed_count` are filled.
      pending: [batch, rate - 1, d_model], vectors that have left the memory and wait until their
        group is complete; the last `pending_count` are filled. There are none unless segment
        lengths are not multiples of `rate`.
      usage: 'most_used' only, float32 [batch, rate - 1 + memory_length]: attention that the
        vectors of `pending` and `hidden` have received since they became memories.
    """

    hidden: jax.Array
    count: jax.Array
    compressed: jax.Array
    compressed_count: jax.Array
    pending: jax.Array
    pending_count: jax.Array
    usage: jax.Array | None = None


class Evicted(flax.struct.PyTreeNode):
    """Vectors to be compressed now.

    Attributes:
      vectors: [batch, n, d_model], n a multiple of the rate; the first `groups * rate` are filled.
      groups: int32 [batch].
      usage: float32 [batch, n] or None.
    """

    vectors: jax.Array
    groups: jax.Array
    usage: jax.Array | None


def _slices(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """Slices [batch, size, ...], starting at `start` (int32 [batch]) in each lane."""
    take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, size))
    return take(array, start)


def evict(
    state: CompressiveState,
    hidden: jax.Array,
    num_valid: jax.Array,
    received: jax.Array | None,
    rate: int,
) -> tuple[CompressiveState, Evicted]:
    """Writes a segment to the memory and takes out the vectors that leave it (Sec. 3, Algorithm 1).

    Args:
      state: memories before.
      hidden: [batch, length, d_model], inputs of the layer, tokens first.
      num_valid: int32 [batch], number of tokens.
      received: float32 [batch, memory_length], attention to the memory in this segment, or None.
      rate: vectors per slot.

    Returns:
      The state, without the new slots, and `Evicted`.
    """
    capacity, length = state.hidden.shape[1], hidden.shape[1]
    num_pending = rate - 1
    max_groups = (num_pending + length) // rate
    hidden = hidden.astype(state.hidden.dtype)
    queue = jnp.concatenate([state.pending, state.hidden, hidden], axis=1)
    # `pending` is filled only where `hidden` is full, so the queue has no gaps.
    first = num_pending + capacity - state.pending_count - state.count
    leaving = state.pending_count + jnp.maximum(state.count + num_valid - capacity, 0)
    groups = leaving // rate
    rest = leaving - groups * rate

    def keep_last(array: jax.Array, num_kept: jax.Array) -> jax.Array:
        """Sets all but the last `num_kept` entries of each lane to zero."""
        position = jnp.arange(array.shape[1], dtype=jnp.int32)[None]
        stays = position >= array.shape[1] - num_kept[:, None]
        stays = stays.reshape(stays.shape + (1,) * (array.ndim - 2))
        return jnp.where(stays, array, jnp.zeros_like(array))

    def padded(array: jax.Array) -> jax.Array:
        return jnp.pad(array, [(0, 0), (0, max_groups * rate)] + [(0, 0)] * (array.ndim - 2))

    vectors = _slices(padded(queue), first, max_groups * rate)
    usage, evicted_usage = None, None
    if state.usage is not None:
        total = state.usage.at[:, num_pending:].add(received)
        total = jnp.pad(total, [(0, 0), (0, length)])
        evicted_usage = _slices(padded(total), first, max_groups * rate)
        usage = jnp.concatenate(
            [
                keep_last(_slices(total, first + leaving - num_pending, num_pending), rest),
                _slices(total, num_valid + num_pending, capacity),
            ],
            axis=1,
        )
    new = state.replace(
        hidden=_slices(queue, num_valid + num_pending, capacity),
        count=jnp.minimum(state.count + num_valid, capacity),
        pending=keep_last(_slices(queue, first + leaving - num_pending, num_pending), rest),
        pending_count=rest,
        usage=usage,
    )
    return new, Evicted(vectors, groups, evicted_usage)
