"""Generators of the random numbers that a training step draws: `config.train.prng`."""

import jax
import jax.numpy as jnp

# 'threefry' computes its numbers, at tens of operations each, and they are the same on every mesh.
# 'rbg' asks the device: nearly free on TPUs, and other numbers on another mesh or kind of device.
PRNGS = ('threefry', 'rbg')


def step_key(key: jax.Array, prng: str) -> jax.Array:
    """The key that a training step draws from, of the threefry key of the run.

    That is the same for all of `PRNGS`, and so are its checkpoints and first parameters.
    """
    if prng == 'threefry':
        return key
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([data, data]), impl='rbg')
