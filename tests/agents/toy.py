"""A small environment and agents for it: a key is shown at the start and asked for at the end."""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.acting import first_lanes
from longmem_jax.agents.environments.interface import Box, Moved, endless
from longmem_jax.models.kinds import make_model
from tests.toys import LENGTH, model_config, parameters

KEYS = 3
LANES, SEGMENTS = 4, 3


@flax.struct.dataclass
class State:
    key: jax.Array
    length: jax.Array
    time: jax.Array


def key_door(shortest=2, longest=7, truncates=False):
    """The last of `shortest` to `longest` steps gives 1 for the action that the first one showed."""

    def start(key):
        first, second = jax.random.split(key)
        length = jax.random.randint(second, (), shortest, longest + 1)
        return State(jax.random.randint(first, (), 0, KEYS), length, jnp.int32(0))

    def move(key, state, action):
        last = state.time == state.length - 1
        reward = (last & (action == state.key)).astype(jnp.float32)
        ended = last & ~jnp.bool_(truncates), last & jnp.bool_(truncates)
        return Moved(state.replace(time=state.time + 1), reward, *ended, {'success': reward})

    def observe(state):
        shown = jax.nn.one_hot(jnp.where(state.time == 0, state.key, KEYS), KEYS + 1)
        return jnp.append(shown, state.time / 10)

    return endless(
        name='key_door',
        num_actions=KEYS,
        space=Box(0, 1, (KEYS + 2,)),
        longest=longest,
        shortest=shortest,
        start=start,
        move=move,
        observe=observe,
    )


def agent_config(name='transformer_xl', layers=2, previous=False, **changes):
    """`config.model` of an agent with layers of type `name`, as in the conformance suite."""
    config = model_config(name, layers)
    config.kind = 'agent'
    config.agent = dict(actions=KEYS, observation=KEYS + 2, previous=previous)
    for field, value in changes.items():
        config[field] = value
    return config


def agent(name='transformer_xl', layers=2, previous=False, **changes):
    """(model, parameters) of an agent whose policy is far from uniform."""
    model = make_model(agent_config(name, layers, previous, **changes), LENGTH)
    params = parameters(model, 1)
    params['policy']['kernel'] = 100 * params['policy']['kernel']
    return model, params


def lanes_of(model, params, environment, number=LANES):
    return first_lanes(model, params, environment, number, jax.random.key(2))
