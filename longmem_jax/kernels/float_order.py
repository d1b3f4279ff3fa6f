"""float32 numbers as integers in the same order, for comparisons and for halving of intervals."""

import jax
import jax.numpy as jnp

HIGHEST = 2**31 - 1


def as_integers(numbers: jax.Array) -> jax.Array:
    """int32 in the order of float32 numbers; undone by `as_floats`."""
    bits = jax.lax.bitcast_convert_type(numbers, jnp.int32)
    return jnp.where(bits < 0, bits ^ HIGHEST, bits)


def as_floats(integers: jax.Array) -> jax.Array:
    """float32 of int32 that `as_integers` made."""
    bits = jnp.where(integers < 0, integers ^ HIGHEST, integers)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
