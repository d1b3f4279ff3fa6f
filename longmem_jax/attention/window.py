"""A window of the most recent vectors of each lane (batch row): right-aligned, of fixed capacity.

It may keep the first vectors too. Then it holds, of n that were written, M at most,

    [first S ; last min(n, M) - S]
"""

import jax
import jax.numpy as jnp

from longmem_jax.contract import Fields


def newest(joined: jax.Array, num_valid: jax.Array, capacity: int, axis: int) -> jax.Array:
    """A window after a segment: the last vectors up to the first `num_valid` of the segment.

    Args:
      joined: [batch, ...], along `axis` the `capacity` vectors of the window and those of the segment.
      num_valid: int32 [batch].
      capacity: vectors of the window.
      axis: at least 1.
    """

    def moved(joined: jax.Array, num_valid: jax.Array) -> jax.Array:
        take = jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, capacity, axis - 1))
        return take(joined, num_valid)

    def of_one(joined: jax.Array, num_valid: jax.Array) -> jax.Array:
        length = joined.shape[axis] - capacity
        return jax.lax.cond(
            num_valid[0] == length,
            lambda joined, _: jax.lax.slice_in_dim(joined, length, None, axis=axis),
            moved,
            joined,
            num_valid,
        )

    # A CPU joins once what is read and kept: it does not look into the branches. Without them it holds
    # a copy of the whole state of all layers.
    if joined.shape[0] > 1:
        return moved(joined, num_valid)
    return jax.lax.platform_dependent(joined, num_valid, cpu=of_one, default=moved)


def push(
    window: jax.Array, count: jax.Array, new: jax.Array, num_valid: jax.Array, sinks: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Appends to a window of the last `capacity` vectors, dropping the oldest behind the first `sinks`.

    Args:
      window: [batch, capacity, ...]; the last `count` of each lane are filled, oldest first.
      count: int32 [batch].
      new: [batch, length, ...]; the first `num_valid` of each lane are appended.
      num_valid: int32 [batch].
      sinks: vectors that are never dropped, the first ones; less than `capacity`.

    Returns:
      window and count after writing, with the same shapes and dtypes.
    """
    capacity = window.shape[1]
    joined = jnp.concatenate([window, new.astype(window.dtype)], axis=1)
    filled = jnp.minimum(count + num_valid, capacity)
    if not sinks:
        take = jax.vmap(lambda lane, start: jax.lax.dynamic_slice_in_dim(lane, start, capacity))
        return take(joined, num_valid), filled
    place = jnp.arange(capacity, dtype=jnp.int32)[None]
    # The last ones, or the first for places of sinks.
    last, first = place + num_valid[:, None], place + (capacity - count)[:, None]
    overflows = (count + num_valid > capacity)[:, None]
    source = jnp.where(overflows & (place < sinks), first, last)
    source = source.reshape(*source.shape, *[1] * (joined.ndim - 2))
    return jnp.take_along_axis(joined, source, axis=1), filled


def check_sinks(fields: Fields) -> list[str]:
    """Checks that a window has room for the first tokens and for more."""
    if fields['memory_length'] > fields['sinks']:
        return []
    return [
        f'memory_length = {fields["memory_length"]}: holds no more than the first sinks = '
        f'{fields["sinks"]} tokens; use at least {fields["sinks"] + 1}, or fewer sinks'
    ]
