"""One adapter for environments written for gymnax 1.0 (six values) and for its older form (five values).

Both forms have `reset_env` and `step_env` below their `reset` and `step`; the adapter is made of these,
with keys split as they split them, so that an episode is the same. What it adds:
observations before an automatic reset, which the older form does not give; ends told apart as terminated
and truncated; a limit of steps; static dtypes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.agents.environments.interface import Box, Environment, Moved, endless
from longmem_jax.errors import UsageError


class State(flax.struct.PyTreeNode):
    """One episode.

    Attributes:
      inner: state of the suite's environment.
      seen: the observation, which some suites draw by chance and so cannot be made from `inner`.
      time: int32 [], steps taken.
    """

    inner: Any
    seen: jax.Array
    time: jax.Array


def adapt(
    suite: Any,
    params: Any,
    name: str,
    *,
    longest: int,
    shortest: int = 1,
    see: Callable[[jax.Array], jax.Array] | None = None,
    measure: Callable[[Mapping[str, Any]], dict[str, jax.Array]] | None = None,
) -> Environment:
    """An environment of a suite as one of ours.

    Args:
      suite: an object with `reset_env`, `step_env` and `action_space` as gymnax has them.
      longest: steps after which an episode is cut off.
      shortest: fewest steps of an episode, if more than one is known.
      see: (observation) to what is seen of it.
      measure: (info) to the measures of a step.

    Raises:
      UsageError: actions are not discrete, or observations are not one array.
    """
    num_actions = getattr(suite.action_space(params), 'n', None)
    if num_actions is None:
        raise UsageError(f'{name}: its actions are not discrete; take a task with discrete ones.')
    see = see or (lambda seen: seen)
    like = jax.eval_shape(lambda key: suite.reset_env(key, params), jax.random.key(0))
    seen = jax.eval_shape(see, like[0]) if hasattr(like[0], 'shape') else None
    if seen is None:
        raise UsageError(f'{name}: its observations are not one array; take another task.')

    def start(key: jax.Array) -> State:
        observation, inner = _strong(suite.reset_env(key, params), like)
        return State(inner, see(observation), jnp.int32(0))

    def move(key: jax.Array, state: State, action: jax.Array) -> Moved:
        *both, reward, done, info = suite.step_env(key, state.inner, action, params)
        observation, inner = _strong(tuple(both), like)
        time = state.time + 1
        done = jnp.asarray(done, bool)
        cut = time >= longest
        if hasattr(suite, 'is_truncated'):  # gymnax 1.0: `done` is of the task only
            late, terminated = _truncated(suite, inner, params, info), done
        else:
            late = jnp.asarray(info.get('truncated', False), bool)
            terminated = done & ~late
        return Moved(
            State(inner, see(observation), time),
            jnp.asarray(reward, jnp.float32),
            terminated,
            (done | late | cut) & ~terminated,
            measure(info) if measure else {},
        )

    return endless(
        name=name,
        num_actions=int(num_actions),
        space=_box(suite.observation_space(params), seen),
        longest=longest,
        shortest=shortest,
        start=start,
        move=move,
        observe=lambda state: state.seen,
    )


def _truncated(suite: Any, inner: Any, params: Any, info: Mapping[str, Any]) -> jax.Array:
    """Whether a limit of the suite has cut an episode off, bool [].

    Environments written for the older form may run on gymnax 1.0 without its count of steps.
    """
    if hasattr(inner, 'time') and hasattr(params, 'max_steps_in_episode'):
        return jnp.asarray(suite.is_truncated(inner, params), bool)
    return jnp.asarray(info.get('truncated', False), bool)


def _strong(values: Any, like: Any) -> Any:
    """Values as arrays of the dtypes at a reset: some suites mix Python numbers and arrays."""

    def array(value: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return value
        return jax.lax.convert_element_type(value, like.dtype)

    return jax.tree.map(array, values, like)


def _box(space: Any, seen: jax.ShapeDtypeStruct) -> Box:
    """The space of observations: its ends where the suite gives two numbers, else without ends."""
    ends = []
    for name, otherwise in (('low', -np.inf), ('high', np.inf)):
        value = np.asarray(getattr(space, name, otherwise))
        ends.append(float(value) if value.ndim == 0 else otherwise)
    low, high = ends
    return Box(low, high, seen.shape, seen.dtype)


def shrunk(picture: jax.Array, size: int) -> jax.Array:
    """A picture, uint8 [height, width, 3], with means of `size` x `size` pixels, rounded."""
    height, width, colours = picture.shape
    blocks = picture.reshape(height // size, size, width // size, size, colours)
    return jnp.round(blocks.astype(jnp.float32).mean((1, 3))).astype(picture.dtype)
