"""What an environment is: pure functions with static shapes, with the six values of gymnax 1.0.

    environment = corridor.build(shortest=3, longest=200)
    observation, state = environment.reset(key)
    observation, state, reward, terminated, truncated, info = environment.step(key, state, action)

`step` begins the next episode where one ends. All functions are of a single environment; `jax.vmap`
makes thousands of it. Loops written for gymnax run too: `params` is taken and not used, because the
fields of an environment are static and fixed when it is built.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

State = Any  # a pytree of arrays, of one environment
Info = dict[str, Any]


class Moved(NamedTuple):
    """What one step has done, before a next episode begins.

    Attributes:
      state: after the step.
      reward: float32 [].
      terminated: bool [], the task has ended the episode.
      truncated: bool [], a limit of steps has cut it off; not both.
      measures: name to float32 []: what to tell of an episode when it has ended, such as 'success'.
    """

    state: State
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    measures: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The numbers 0 .. n - 1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: DTypeLike = jnp.int32

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform number, int32 []."""
        return jax.random.randint(key, self.shape, 0, self.n, self.dtype)

    def contains(self, value: Any) -> jax.Array:
        """Whether a number is one of the space, bool []."""
        value = jnp.asarray(value)
        whole = jnp.issubdtype(value.dtype, jnp.integer) and value.shape == self.shape
        return whole & jnp.all((value >= 0) & (value < self.n))


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of one shape whose elements lie between two numbers, both included."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: DTypeLike = jnp.float32

    def sample(self, key: jax.Array) -> jax.Array:
        """An array of uniform elements; of bools and whole numbers all are equally likely."""
        dtype = np.dtype(self.dtype)
        if jnp.issubdtype(dtype, jnp.floating):
            return jax.random.uniform(key, self.shape, dtype, self.low, self.high)
        drawn = jax.random.randint(key, self.shape, int(self.low), int(self.high) + 1)
        return drawn.astype(dtype)

    def contains(self, value: Any) -> jax.Array:
        """Whether an array has the shape and lies between the ends, bool []."""
        value = jnp.asarray(value)
        return (value.shape == self.shape) & jnp.all((value >= self.low) & (value <= self.high))


class Map(NamedTuple):
    """The map of a grid world, for those who draw it.

    Attributes:
      words: all that can stand in a cell, in the order of the last axis of `at`.
      extent: state to rows and columns of the map.
      at: (state, cells) to the words that stand in some cells, bool [..., words]; cells are rows and
        columns, int32 [..., 2].
    """

    words: tuple[str, ...]
    extent: Callable[[State], tuple[int, int]]
    at: Callable[[State, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment whose episodes follow each other without an end.

    Attributes:
      name: as in the registry.
      num_actions: actions are int32 [] from 0 to `num_actions` - 1.
      space: of observations.
      longest: most steps of an episode.
      shortest: fewest steps of an episode, at least 1.
      reset: (key) to (observation, state) of a new episode.
      step: (key, state, action) to (observation, state, reward, terminated, truncated, info).
        reward: float32 []; terminated, truncated: bool [], of the step that was taken. Where one of
        them is true, `observation` and `state` are of the next episode. `info['final_observation']`
        is the observation before a next episode begins, whether or not one does;
        `info['measures']`: see `Moved`.
      observe: (state) to its observation; None where the suite keeps it to itself.
      map: of a grid world.
    """

    name: str
    num_actions: int
    space: Box
    longest: int
    shortest: int
    reset: Callable[..., tuple[jax.Array, State]]
    step: Callable[..., tuple[jax.Array, State, jax.Array, jax.Array, jax.Array, Info]]
    observe: Callable[[State], jax.Array] | None = None
    map: Map | None = None

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an observation."""
        return jax.ShapeDtypeStruct(self.space.shape, self.space.dtype)

    @property
    def default_params(self) -> None:
        """For loops written for gymnax."""
        return None

    def observation_space(self, params: Any = None) -> Box:
        """For loops written for gymnax."""
        del params
        return self.space

    def action_space(self, params: Any = None) -> Discrete:
        """For loops written for gymnax."""
        del params
        return Discrete(self.num_actions)


def select(which: jax.Array, then: Any, otherwise: Any) -> Any:
    """One of two pytrees, by a bool []."""
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), then, otherwise)


def endless(
    *,
    name: str,
    num_actions: int,
    space: Box,
    longest: int,
    shortest: int,
    start: Callable[[jax.Array], State],
    move: Callable[[jax.Array, State, jax.Array], Moved],
    observe: Callable[[State], jax.Array],
    map: Map | None = None,
) -> Environment:
    """An environment made of its rules: episodes begin where others end.

    Args:
      name, num_actions, space, longest, shortest: see `Environment`.
      start: key to the state of a new episode.
      move: (key, state, action) to what the action does.
      observe: state to observation.
      map: of a grid world.
    """

    def reset(key: jax.Array, params: Any = None) -> tuple[jax.Array, State]:
        del params
        state = start(key)
        return observe(state), state

    def step(
        key: jax.Array, state: State, action: jax.Array, params: Any = None
    ) -> tuple[Any, ...]:
        del params
        key_move, key_start = jax.random.split(key)
        moved = move(key_move, state, action)
        state = select(moved.terminated | moved.truncated, start(key_start), moved.state)
        info = {'final_observation': observe(moved.state), 'measures': moved.measures}
        return observe(state), state, moved.reward, moved.terminated, moved.truncated, info

    return Environment(name, num_actions, space, longest, shortest, reset, step, observe, map)
