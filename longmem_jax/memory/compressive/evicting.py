"""What leaves a memory of recent vectors, in groups that are ready to be compressed."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class CompressiveState:
    """Memories of one layer; vectors in the compute dtype, right-aligned.

    Attributes:
      hidden: [batch, memory_length, d_model]; the last `count` (int32 [batch]) are filled.
      compressed: [batch, compressed_length, d_model]; the last `compressed_count` are filled.
      pending: [batch, rate - 1, d_model], vectors that have left the memory and wait for their
        group to be whole; the last `pending_count`. Only segments that are no multiple of `rate`
        long leave any.
      usage: 'most_used' only, float32 [batch, rate - 1 + memory_length]: attention that the
        vectors of `pending` and `hidden` have received since they are memories.
    """

    hidden: jax.Array
    count: jax.Array
    compressed: jax.Array
    compressed_count: jax.Array
    pending: jax.Array
    pending_count: jax.Array
    usage: Any = None


@flax.struct.dataclass
class Evicted:
    """Vectors to be compressed now.

    Attributes:
      rows: [batch, n, d_model], n a multiple of the rate; the first `groups * rate` count.
      groups: int32 [batch].
      usage: float32 [batch, n] or None.
    """

    rows: jax.Array
    groups: jax.Array
    usage: Any


def _slices(rows: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """Entries [batch, size, ...] from position `start` (int32 [batch]) of each lane on."""
    take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, size))
    return take(rows, start)


def evict(
    state: CompressiveState,
    hidden: jax.Array,
    num_valid: jax.Array,
    received: jax.Array | None,
    rate: int,
) -> tuple[CompressiveState, Evicted]:
    """Moves a segment into the memory and what leaves it out (Sec. 3, Algorithm 1).

    Args:
      state: memories before.
      hidden: [batch, length, d_model], inputs of the layer, tokens first.
      num_valid: int32 [batch], how many of them are tokens.
      received: float32 [batch, memory_length], attention to the memory in this segment, or None.
      rate: vectors per slot.

    Returns:
      The state without the new slots, and `Evicted`.
    """
    capacity, length = state.hidden.shape[1], hidden.shape[1]
    spare = rate - 1
    groups_at_most = (spare + length) // rate
    hidden = hidden.astype(state.hidden.dtype)
    queue = jnp.concatenate([state.pending, state.hidden, hidden], axis=1)
    # `pending` is filled only where `hidden` is full, so the queue has no gaps.
    first = spare + capacity - state.pending_count - state.count
    leaving = state.pending_count + jnp.maximum(state.count + num_valid - capacity, 0)
    groups = leaving // rate
    rest = leaving - groups * rate

    def aligned(rows, number):
        """Zeros before the last `number` rows of each lane."""
        place = jnp.arange(rows.shape[1], dtype=jnp.int32)[None]
        stays = place >= rows.shape[1] - number[:, None]
        stays = stays.reshape(stays.shape + (1,) * (rows.ndim - 2))
        return jnp.where(stays, rows, jnp.zeros_like(rows))

    def padded(rows):
        return jnp.pad(rows, [(0, 0), (0, groups_at_most * rate)] + [(0, 0)] * (rows.ndim - 2))

    rows = _slices(padded(queue), first, groups_at_most * rate)
    usage, evicted_usage = None, None
    if state.usage is not None:
        total = state.usage.at[:, spare:].add(received)
        total = jnp.pad(total, [(0, 0), (0, length)])
        evicted_usage = _slices(padded(total), first, groups_at_most * rate)
        usage = jnp.concatenate(
            [
                aligned(_slices(total, first + leaving - spare, spare), rest),
                _slices(total, num_valid + spare, capacity),
            ],
            axis=1,
        )
    new = state.replace(
        hidden=_slices(queue, num_valid + spare, capacity),
        count=jnp.minimum(state.count + num_valid, capacity),
        pending=aligned(_slices(queue, first + leaving - spare, spare), rest),
        pending_count=rest,
        usage=usage,
    )
    return new, Evicted(rows, groups, evicted_usage)
