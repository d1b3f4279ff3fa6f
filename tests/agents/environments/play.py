"""Small environments, and episodes of them."""

import functools

import jax
import jax.numpy as jnp

from longmem_jax.agents.environments import registry

# Environments that need no package, with fields that make them small.
SMALL = {
    'corridor': dict(shortest=1, longest=4, steps_per_cell=2, extra_steps=1),
    'portal': dict(rooms=3, size=1, mistakes=2, steps=9),
    'repeat_previous': dict(symbols=3, back=2, steps=7),
}


@functools.cache
def small(name):
    return registry.build(name, SMALL[name])


def rollout(environment, key, actions):
    """Steps with given actions.

    Args:
      environment: of one environment.
      key: of the reset and all steps.
      actions: int32 [steps].

    Returns:
      Observation and state at the start, and what `step` returned, with a leading axis of steps.
    """
    key_reset, key_steps = jax.random.split(key)
    observation, state = environment.reset(key_reset)

    def step(state, given):
        key, action = given
        values = environment.step(key, state, action)
        return values[1], values

    keys = jax.random.split(key_steps, len(actions))
    _, steps = jax.lax.scan(step, state, (keys, jnp.asarray(actions, jnp.int32)))
    return (observation, state), steps


def random_actions(environment, key, shape):
    """Uniform actions, int32 of a shape."""
    return jax.random.randint(key, shape, 0, environment.num_actions)
