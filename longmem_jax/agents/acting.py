"""Acting: every lane is an episode of its environment, read step by step by the agent's stream.

Memories are written at the borders of segments, which all lanes reach together. Where an episode ends,
its lane begins the next one at once, with the memories of a new document.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.model import Agent
from longmem_jax.segment import select_lanes


class Lanes(flax.struct.PyTreeNode):
    """Everything that acting carries from one step to the next; every leaf [lanes, ...].

    Attributes:
      environment: states of the environments.
      observation: what they show now.
      memory: memories at the last border of segments.
      action, reward: int32, float32 [lanes], of the step before; -1 and 0 at the start of an episode.
      start: bool [lanes], whether `observation` is the first of its episode.
      total: float32 [lanes], sum of the rewards of the episode so far.
      steps: int32 [lanes], steps of the episode so far.
    """

    environment: Any
    observation: jax.Array
    memory: Any
    action: jax.Array
    reward: jax.Array
    start: jax.Array
    total: jax.Array
    steps: jax.Array


class Rollout(flax.struct.PyTreeNode):
    """What agents saw and did; every leaf [segments, lanes, length, ...].

    Attributes:
      observation: what was seen before the action.
      action_before, reward_before, start: as in `Lanes`, with that observation.
      action: int32, what was done.
      logits: float32 [..., actions], the policy that it was drawn from.
      value: float32, what the critic said before the action.
      reward: float32, what the action gave.
      terminated, truncated: bool, whether the episode ended after it, by its rules or by a limit.
      total: float32, sum of the rewards of the episode up to here.
      steps: int32, steps of the episode up to here.
      measures: name to float32, what else the environment tells of an episode that has ended.
    """

    observation: jax.Array
    action_before: jax.Array
    reward_before: jax.Array
    start: jax.Array
    action: jax.Array
    logits: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    total: jax.Array
    steps: jax.Array
    measures: dict[str, jax.Array]

    @property
    def ended(self) -> jax.Array:
        """Whether the episode ended after the action, bool [segments, lanes, length]."""
        return self.terminated | self.truncated


def first_lanes(
    model: Agent, params: Any, environment: Environment, num_lanes: int, key: jax.Array
) -> Lanes:
    """Lanes at the start of their first episodes."""
    observation, state = jax.vmap(environment.reset)(jax.random.split(key, num_lanes))
    return Lanes(
        environment=state,
        observation=observation,
        memory=model.apply({'params': params}, num_lanes, method='initial_state'),
        action=jnp.full((num_lanes,), -1, jnp.int32),
        reward=jnp.zeros((num_lanes,), jnp.float32),
        start=jnp.ones((num_lanes,), bool),
        total=jnp.zeros((num_lanes,), jnp.float32),
        steps=jnp.zeros((num_lanes,), jnp.int32),
    )


def _step(
    environment: Environment, lanes: Lanes, action: jax.Array, key: jax.Array
) -> tuple[Lanes, dict[str, Any]]:
    """Takes one step in every lane; the lanes after it, without their memories, and what it gave."""
    keys = jax.random.split(key, action.shape[0])
    observation, state, reward, terminated, truncated, info = jax.vmap(environment.step)(
        keys, lanes.environment, action
    )
    ended, reward = terminated | truncated, reward.astype(jnp.float32)
    total, steps = lanes.total + reward, lanes.steps + 1
    after = lanes.replace(
        environment=state,
        observation=observation,
        action=jnp.where(ended, -1, action),
        reward=jnp.where(ended, 0.0, reward),
        start=ended,
        total=jnp.where(ended, 0.0, total),
        steps=jnp.where(ended, 0, steps),
    )
    given = dict(
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        total=total,
        steps=steps,
        measures=info.get('measures', {}),
    )
    return after, given


def _look(
    model: Agent, params: Any, lanes: Lanes, cache: Any, index: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """Logits [lanes, actions] and values [lanes] of what is seen now, and caches with it."""
    x = model.apply(
        {'params': params},
        lanes.observation[:, None],
        lanes.action[:, None],
        lanes.reward[:, None],
        method='encode',
    )
    (logits, value), cache = model.apply({'params': params}, x, cache, index, method='extend')
    return (logits[:, 0].astype(jnp.float32), value[:, 0].astype(jnp.float32)), cache


def act(
    model: Agent,
    params: Any,
    environment: Environment,
    lanes: Lanes,
    key: jax.Array,
    *,
    segments: int,
    greedy: bool = False,
) -> tuple[Lanes, Rollout]:
    """Acts for `segments` times `model.segment_length` steps.

    Returns:
      The lanes at the next border, and what happened.
    """
    num_lanes = lanes.action.shape[0]
    variables = {'params': params}
    fresh_memory = model.apply(variables, num_lanes, method='initial_state')
    fresh_cache = model.apply(variables, fresh_memory, num_lanes, method='open_segment')

    def step(carry: Any, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        lanes, cache, index, fresh = carry
        (logits, value), cache = _look(model, params, lanes, cache, index)
        choosing, stepping = jax.random.split(key)
        action = logits.argmax(-1) if greedy else jax.random.categorical(choosing, logits)
        action = action.astype(jnp.int32)
        after, given = _step(environment, lanes, action, stepping)
        ended = after.start
        # As new memories are those of a new document, nothing of an episode is left for the next one.
        cache = jax.lax.cond(
            ended.any(), lambda cache: select_lanes(ended, fresh_cache, cache), lambda x: x, cache
        )
        index = jnp.where(ended, 0, index + 1)
        seen = dict(
            observation=lanes.observation,
            action_before=lanes.action,
            reward_before=lanes.reward,
            start=lanes.start,
            action=action,
            logits=logits,
            value=value,
        )
        return (after, cache, index, fresh | ended), seen | given

    def segment(lanes: Lanes, key: jax.Array) -> tuple[Lanes, dict[str, Any]]:
        before, lanes = lanes.memory, lanes.replace(memory=None)
        cache = model.apply(variables, before, num_lanes, method='open_segment')
        nothing = jnp.zeros((num_lanes,), jnp.int32)
        carry = (lanes, cache, nothing, nothing > 0)
        keys = jax.random.split(key, model.segment_length)
        (lanes, cache, index, fresh), seen = jax.lax.scan(step, carry, keys)
        before = select_lanes(fresh, fresh_memory, before)
        memory = model.apply(variables, before, cache, index, method='close_segment')
        return lanes.replace(memory=memory), seen

    lanes, seen = jax.lax.scan(segment, lanes, jax.random.split(key, segments))
    return lanes, Rollout(**jax.tree.map(lambda leaf: leaf.swapaxes(1, 2), seen))


def next_value(model: Agent, params: Any, lanes: Lanes) -> jax.Array:
    """The critic's values of lanes at a border of segments, float32 [lanes]; no state is kept."""
    num_lanes = lanes.action.shape[0]
    cache = model.apply({'params': params}, lanes.memory, num_lanes, method='open_segment')
    (_, value), _ = _look(model, params, lanes, cache, jnp.zeros((num_lanes,), jnp.int32))
    return value
