"""The Compressive baseline of the Expire-Span paper: pooled before reading, windows that slide.

A query sees the `memory_length` positions before it, never itself, and `compressed_length + 1` slots. A
slot pools `rate` neighbours as soon as the first query comes that no longer sees all of them, so nothing
is lost between window and slots, and one slot overlaps the window. One position table, shared by layers
and heads, has a vector for every distance and for every slot, by age.

State and equations; the module is in `sliding_layer.py`.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.window import push
from longmem_jax.contract import ModelSettings


class SlidingState(flax.struct.PyTreeNode):
    """Memories of one layer; vectors in the compute dtype, right-aligned.

    Attributes:
      hidden: [batch, memory_length, d_model]; the last `count` (int32 [batch]) are filled.
      compressed: [batch, compressed_length + 1, d_model]; the last `compressed_count` are filled.
      phase: int32 [batch], tokens of the document so far, modulo the rate.
    """

    hidden: jax.Array
    count: jax.Array
    compressed: jax.Array
    compressed_count: jax.Array
    phase: jax.Array


class SlidingCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      keys, values: [batch, kv_heads, slots + memory_length + segment_length, head_dim]; the slots
        are the old ones, followed by room for new ones.
      hidden: [batch, memory_length + segment_length, d_model], window and inputs so far.
      count, compressed_count, phase: int32 [batch], as in the state.
    """

    keys: jax.Array
    values: jax.Array
    hidden: jax.Array
    count: jax.Array
    compressed_count: jax.Array
    phase: jax.Array


def empty_state(
    settings: ModelSettings, batch: int, length: int, slots: int, zeros: bool
) -> SlidingState:
    """`length` vectors and `slots`, which are zeros that are attended to, or none."""
    phase = jnp.zeros((batch,), jnp.int32)
    width, dtype = settings.d_model, settings.dtype
    return SlidingState(
        hidden=jnp.zeros((batch, length, width), dtype),
        count=phase + (length if zeros else 0),
        compressed=jnp.zeros((batch, slots, width), dtype),
        compressed_count=phase + (slots if zeros else 0),
        phase=phase,
    )


def most_new(length: int, rate: int) -> int:
    """Largest number of new slots in a segment of `length`."""
    return -(-length // rate)


def first_seeing(phase: jax.Array, rate: int) -> jax.Array:
    """Position in the segment of the first query that sees a new slot, int32 [batch]."""
    return (rate - phase) % rate


def num_seen(phase: jax.Array, position: jax.Array, rate: int) -> jax.Array:
    """Number of new slots seen by queries at `position` (int32 [batch | 1, n]): int32 [batch, n]."""
    first = first_seeing(phase, rate)[:, None]
    return jnp.where(position >= first, (position - first) // rate + 1, 0)


def to_pool(hidden: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """`size` vectors of `hidden` [batch, n, d_model] from `start` (int32 [batch]) on; then zeros."""
    hidden = jnp.pad(hidden, [(0, 0), (0, size), (0, 0)])
    take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, size))
    return take(hidden, start)


def visible(
    state: SlidingState | SlidingCache,
    position: jax.Array,
    *,
    window: int,
    old: int,
    rate: int,
    slots: int,
    num_keys: int,
) -> jax.Array:
    """Which slots, and vectors of window and segment, are seen.

    Keys are numbered in three ways, with `old = compressed_length + 1`:

        keys     | old slots     | new slots         | window            | segment           |
        column   | 0 ..   old-1  | old ..   slots-1  | slots ..          |                   |
        j        |               | 0 .. slots-old-1  |                   |                   |
        index    |               |                   | 0 ..     window-1 | window + position |

    New slot j pools `rate` vectors of window and segment, from index `first + j * rate` on. A
    query that sees s new slots sees columns s .. s + old - 1 of the slots, the youngest last:
    scores by age move right by s. Of the window it sees the `window` indices before its own.

    Args:
      state: provides `count`, `compressed_count` and `phase`.
      position: int32 [batch | 1, n], positions of the queries in the segment.
      window: vectors of the window.
      old: slots of the state, `compressed_length + 1`.
      rate: vectors per slot.
      slots: number of columns of slots.
      num_keys: columns of slots, window and segment.

    Returns:
      bool [batch, 1, n, num_keys].
    """
    count, compressed_count, phase = state.count, state.compressed_count, state.phase
    seen = jnp.broadcast_to(num_seen(phase, position, rate), (phase.shape[0], position.shape[1]))
    column = jnp.arange(slots, dtype=jnp.int32)[None]
    # New slot j begins at index first + j * rate of window and segment.
    begins = first_seeing(phase, rate)[:, None] + (column - old) * rate
    complete = jnp.where(
        column < old,
        column >= old - compressed_count[:, None],
        begins >= window - count[:, None],
    )
    newest = seen[..., None] + old - 1
    of_slots = complete[:, None] & (column[None] <= newest) & (column[None] > newest - old)
    index = jnp.arange(num_keys - slots, dtype=jnp.int32)[None, None]
    distance = window + position[..., None] - index
    near = (distance >= 1) & (distance <= window) & (index >= (window - count)[:, None, None])
    return jnp.concatenate([of_slots, near], axis=2)[:, None]


def remember(
    state: SlidingState,
    hidden: jax.Array,
    num_valid: jax.Array,
    compress: Callable[[jax.Array], jax.Array],
    rate: int,
) -> SlidingState:
    """The memories after the first `num_valid` (int32 [batch]) of `hidden` [batch, n, d_model].

    `compress` pools [batch, groups * rate, d_model] to [batch, groups, d_model].
    """
    hidden = jax.lax.stop_gradient(hidden).astype(state.hidden.dtype)
    window, slots, number = (
        state.hidden.shape[1],
        state.compressed.shape[1],
        most_new(hidden.shape[1], rate),
    )
    first = first_seeing(state.phase, rate)
    joined = jnp.concatenate([state.hidden, hidden], axis=1)
    pooled = jax.lax.stop_gradient(compress(to_pool(joined, first, number * rate)))
    new = num_seen(state.phase, num_valid[:, None] - 1, rate)[:, 0]
    compressed, _ = push(state.compressed, state.compressed_count, pooled, new)
    # At the start of a document the first slots are pooled of room that was never filled.
    begins = first[:, None] + jnp.arange(number)[None] * rate
    empty = begins < window - state.count[:, None]
    complete = new - (empty & (jnp.arange(number)[None] < new[:, None])).sum(1, jnp.int32)
    return SlidingState(
        *push(state.hidden, state.count, hidden, num_valid),
        compressed=compressed,
        compressed_count=jnp.minimum(state.compressed_count + complete, slots),
        phase=(state.phase + num_valid) % rate,
    )
