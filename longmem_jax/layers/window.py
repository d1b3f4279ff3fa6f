"""The window of most recent vectors of a lane: right-aligned, of fixed capacity."""

import jax
import jax.numpy as jnp


def push(
    rows: jax.Array, count: jax.Array, new: jax.Array, num_valid: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Appends to a window of the last `capacity` vectors, dropping the oldest.

    Args:
      rows: [batch, capacity, width]; the last `count` of each lane are filled, oldest first.
      count: int32 [batch].
      new: [batch, length, width]; the first `num_valid` of each lane count.
      num_valid: int32 [batch].

    Returns:
      rows, count after writing, of the same shapes and types.
    """
    capacity = rows.shape[1]
    joined = jnp.concatenate([rows, new.astype(rows.dtype)], axis=1)
    window = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, capacity))
    return window(joined, num_valid), jnp.minimum(count + num_valid, capacity)
