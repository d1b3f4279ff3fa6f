"""Generators of the random numbers that a training step draws: `config.train.prng`."""

from typing import Any

import jax
import jax.numpy as jnp

# 'threefry' computes its numbers, at tens of operations each, and they are the same on every mesh.
# 'rbg' asks the device: cheaper on TPUs, and other numbers on another mesh or kind of device.
PRNGS = ('threefry', 'rbg')


def prng_problems(config: Any, whom: str = '') -> list[str]:
    """Problems of the generator of a step's draws; `whom` = '' of models that may have any."""
    prng, allowed = config.train.prng, PRNGS[:1] if whom else PRNGS
    if prng in allowed or whom and prng not in PRNGS:
        return []
    whom = f' for {whom}' if whom else ''
    return [f'config.train.prng = {prng!r}: allowed{whom}: {", ".join(allowed)}']


def step_key(key: jax.Array, prng: str) -> jax.Array:
    """The key that a training step draws from, of the threefry key of the run.

    That is the same for all of `PRNGS`, and so are its checkpoints and first parameters.
    """
    if prng == 'threefry':
        return key
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([data, data]), impl='rbg')


def compiler_options(prng: str, platform: str) -> dict[str, bool] | None:
    """What XLA must be told to compile a step that draws with this generator; None = nothing.

    Otherwise every TPU draws the numbers of all of them, and keeps its part. What is drawn for arrays
    that are the same everywhere is the same everywhere with this, too.
    """
    if prng != 'rbg' or platform != 'tpu':
        return None
    return {'xla_tpu_spmd_rng_bit_generator_unsafe': True}
