"""What must be computed before something else, said where XLA does not see it."""

import jax
import jax.numpy as jnp


def once_computed(result: jax.Array, numbers: jax.Array) -> jax.Array:
    """`numbers` as they are, on CPUs only known when `result` is computed.

    An array that is written at a place that depends on the numbers is then written after the result was
    read from it. Otherwise XLA for CPUs copies the array. Optimization barriers do not help there: they
    are removed before the copies are added. Other devices do not wait.

    Args:
      result: numbers of any type, [batch, ...].
      numbers: integers [batch].
    """

    def wait(result: jax.Array, numbers: jax.Array) -> jax.Array:
        kind = jnp.dtype(f'int{8 * result.dtype.itemsize}')
        bits = jax.lax.bitcast_convert_type(result.reshape(len(numbers), -1)[:, 0], kind)
        # Always 0, also for what is not finite; XLA does not know, so it must wait for the result.
        nothing = jnp.minimum(bits & jnp.iinfo(kind).max, 0)
        return numbers + nothing.astype(numbers.dtype)

    return jax.lax.platform_dependent(
        jax.lax.stop_gradient(result), numbers, cpu=wait, default=lambda result, numbers: numbers
    )
