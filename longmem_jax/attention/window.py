"""A window of the most recent vectors of each lane (batch row): right-aligned, of fixed capacity.

It may keep the first vectors too. Then it holds, of n that were written, M at most,

    [first S ; last min(n, M) - S]
"""

import jax
import jax.numpy as jnp

from longmem_jax.contract import Fields


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
