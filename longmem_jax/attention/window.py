"""A window of the most recent vectors of each lane (batch row): right-aligned, of fixed capacity."""

import jax
import jax.numpy as jnp


def push(
    window: jax.Array, count: jax.Array, new: jax.Array, num_valid: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Appends to a window of the last `capacity` vectors, dropping the oldest.

    Args:
      window: [batch, capacity, width]; the last `count` of each lane are filled, oldest first.
      count: int32 [batch].
      new: [batch, length, width]; the first `num_valid` of each lane are appended.
      num_valid: int32 [batch].

    Returns:
      window and count after writing, with the same shapes and dtypes.
    """
    capacity = window.shape[1]
    joined = jnp.concatenate([window, new.astype(window.dtype)], axis=1)
    take = jax.vmap(lambda lane, start: jax.lax.dynamic_slice_in_dim(lane, start, capacity))
    return take(joined, num_valid), jnp.minimum(count + num_valid, capacity)
