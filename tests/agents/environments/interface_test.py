"""What all environments promise: six values, the same for the same key, episodes that do not leak."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chex import assert_trees_all_equal

from longmem_jax.agents.environments.interface import Box, Discrete
from tests.agents.environments.play import SMALL, random_actions, rollout, small

STEPS, LANES = 120, 8


@functools.cache
def lanes_of(name):
    return jax.jit(jax.vmap(functools.partial(rollout, small(name))))


@functools.cache
def played(name, seed=0):
    """A rollout of `LANES` environments with random actions: keys, actions, start and steps."""
    keys = jax.random.split(jax.random.key(seed), LANES)
    actions = random_actions(small(name), jax.random.key(seed + 100), (LANES, STEPS))
    return keys, actions, *lanes_of(name)(keys, actions)


@pytest.mark.parametrize('name', SMALL)
def test_shapes_and_dtypes_are_as_said(name):
    environment, (_, _, (observation, _), steps) = small(name), played(name)
    for seen in (observation[:, None], steps[0], steps[5]['final_observation']):
        assert seen.shape[2:] == environment.observation.shape
        assert seen.dtype == environment.observation.dtype
        assert environment.observation_space().contains(seen[0, 0])
        assert (seen >= environment.space.low).all() and (seen <= environment.space.high).all()
    assert steps[2].dtype == jnp.float32 and steps[2].shape == (LANES, STEPS)
    assert steps[3].dtype == steps[4].dtype == jnp.bool_
    assert not (steps[3] & steps[4]).any(), 'an episode is terminated or truncated, not both'
    for value in steps[5]['measures'].values():
        assert value.dtype == jnp.float32 and value.shape == (LANES, STEPS)


@pytest.mark.parametrize('name', SMALL)
def test_episodes_are_as_long_as_said(name):
    environment, steps = small(name), played(name)[3]
    ended = np.asarray(steps[3] | steps[4])
    lengths = np.concatenate([np.diff(np.flatnonzero(lane), prepend=-1) for lane in ended])
    assert len(lengths) > LANES
    assert lengths.min() >= environment.shortest
    assert lengths.max() <= environment.longest
    for lane in ended:  # the last episode has not ended, but is not too long either
        assert STEPS - 1 - np.flatnonzero(lane).max(initial=-1) < environment.longest


@pytest.mark.parametrize('name', SMALL)
def test_one_key_gives_one_rollout(name):
    keys, actions, start, steps = played(name)
    assert_trees_all_equal((start, steps), lanes_of(name)(keys, actions))
    assert (np.asarray(played(name, 1)[3][0]) != np.asarray(steps[0])).any()


@pytest.mark.parametrize('name', SMALL)
def test_many_at_once_are_each_alone(name):
    keys, actions, start, steps = played(name)
    alone = jax.jit(functools.partial(rollout, small(name)))
    for lane in (0, LANES - 1):
        expected = jax.tree.map(lambda leaf, lane=lane: leaf[lane], (start, steps))
        assert_trees_all_equal(alone(keys[lane], actions[lane]), expected)


@pytest.mark.parametrize('name', SMALL)
def test_nothing_leaks_into_the_next_episode(name):
    """After an end, state and observation are those of a reset, whatever the episode was."""
    environment, (_, actions, (_, first), steps) = small(name), played(name)
    states = jax.tree.map(
        lambda start, after: np.concatenate([start[:, None], after[:, :-1]], 1), first, steps[1]
    )
    ended = np.argwhere(np.asarray(steps[3] | steps[4]))[:40]
    key = jax.random.key(5)
    before = jax.tree.map(lambda leaf: jnp.asarray(leaf[tuple(ended.T)]), states)
    step = jax.jit(jax.vmap(environment.step, (None, 0, 0)))
    observation, state, _, terminated, truncated, _ = step(key, before, actions[tuple(ended.T)])
    # The game may draw, so that not every step ends under this key; those that do say the same.
    ends = np.flatnonzero(np.asarray(terminated | truncated))
    assert len(ends) > 1
    fresh = environment.reset(jax.random.split(key)[1])
    for lane in ends:
        found = jax.tree.map(lambda leaf, lane=lane: leaf[lane], (observation, state))
        assert_trees_all_equal(found, fresh)


@pytest.mark.parametrize('name', SMALL)
def test_the_final_observation_is_of_the_old_episode(name):
    steps = played(name)[3]
    ended = np.asarray(steps[3] | steps[4])
    observations, final = np.asarray(steps[0]), np.asarray(steps[5]['final_observation'])
    assert (observations[~ended] == final[~ended]).all()
    assert (observations[ended] != final[ended]).any()


@pytest.mark.parametrize('name', SMALL)
def test_loops_written_for_gymnax_run(name):
    environment, key = small(name), jax.random.key(0)
    params = environment.default_params
    observation, state = environment.reset(key, params)
    action = environment.action_space(params).sample(key)
    assert environment.action_space(params).contains(action)
    values = environment.step(key, state, action, params)
    assert len(values) == 6
    assert environment.observation_space(params).contains(values[0])
    assert_trees_all_equal(environment.observe(state), observation)


def test_spaces():
    key = jax.random.key(0)
    assert Discrete(3).sample(key) in (0, 1, 2)
    assert [bool(Discrete(3).contains(value)) for value in (-1, 0, 2, 3)] == [
        False,
        True,
        True,
        False,
    ]
    assert not Discrete(3).contains(1.0) and not Discrete(3).contains(jnp.zeros(2, jnp.int32))
    for dtype in (jnp.bool_, jnp.int32, jnp.float32):
        box = Box(0, 1, (4, 2), dtype)
        drawn = jax.vmap(box.sample)(jax.random.split(key, 20))
        assert drawn.dtype == dtype and jax.vmap(box.contains)(drawn).all()
        assert (drawn.min() < 0.5) & (drawn.max() > 0.5)
    assert not Box(0, 1, (2,)).contains(jnp.array([0.0, 1.5]))
    assert not Box(0, 1, (2,)).contains(jnp.zeros(3))
