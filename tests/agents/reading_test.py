"""Learning reads what acting saw, wherever episodes end, with every memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.agents import acting, reading
from longmem_jax.memory.registry import AROUND, ATTENTION
from tests.agents.toy import LANES, SEGMENTS, agent, key_door, lanes_of
from tests.toys import LENGTH, OWN_CODE

# Rows that expire; tokens around the blocks and the others are in the slow tier.
QUICK = ('expire_span',)
MEMORIES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in sorted(OWN_CODE)
    if name in ATTENTION or name in AROUND
]


@functools.partial(jax.jit, static_argnums=(0, 2))
def act(model, params, environment, lanes, key):
    return acting.act(model, params, environment, lanes, key, segments=SEGMENTS)


@functools.partial(jax.jit, static_argnums=(0, 4))
def read(model, params, memory, rollout, room=SEGMENTS * LENGTH):
    found, _ = reading.read(
        model, params, memory, rollout, jax.random.key(0), room=room, train=False
    )
    return found


@pytest.mark.parametrize('name', MEMORIES)
def test_learning_reads_the_numbers_of_acting(name):
    environment = key_door()
    model, params = agent(name, layers=1, previous=True)
    lanes = lanes_of(model, params, environment)
    for number in range(2):  # the second rollout begins inside of episodes
        after, rollout = act(model, params, environment, lanes, jax.random.key(number))
        logits, value = read(
            model,
            params,
            lanes.memory,
            rollout,
            reading.most_starts(SEGMENTS * LENGTH, environment.shortest),
        )
        np.testing.assert_allclose(logits, rollout.logits, atol=2e-5)
        np.testing.assert_allclose(value, rollout.value, atol=2e-5)
        lanes = after
    assert rollout.start.sum() > LANES and not rollout.start[:, :, 0].all()
    assert float(jnp.abs(rollout.logits).max()) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize('name', ['expire_span', 'transformer_xl', 'infini', 'compressive'])
def test_an_episode_that_starts_at_any_place_is_read_like_a_first_one(name):
    """Lane p has an episode that starts at place p, after another one."""
    model, params = agent(name, layers=1)
    places = SEGMENTS * LENGTH
    keys = iter(jax.random.split(jax.random.key(3), 9))
    shape = (SEGMENTS, places, LENGTH)
    observation = jax.random.normal(next(keys), (*shape, model.config.agent.observation))
    step = jnp.arange(places).reshape(SEGMENTS, 1, LENGTH)
    zeros = jnp.zeros(shape)
    blank = acting.Rollout(
        observation=observation, action_before=zeros.astype(jnp.int32), reward_before=zeros,
        start=step == jnp.arange(places)[None, :, None], action=None, logits=None, value=None,
        reward=None, terminated=None, truncated=None, total=None, steps=None, measures={},
    )  # fmt: skip
    variables = {'params': params}
    fresh = model.apply(variables, places, method='initial_state')
    found = read(model, params, fresh, blank, 1)

    @jax.jit
    def alone(state):
        outputs = []
        for segment in range(SEGMENTS):
            valid = step[segment] >= jnp.arange(places)[:, None]
            x = model.apply(
                variables, observation[segment], blank.action_before[0], zeros[0], method='encode'
            )
            output, state, _ = model.apply(
                variables, x, valid, jnp.zeros(places, bool), state, train=False
            )
            outputs.append(output)
        return jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)

    wanted, after = alone(fresh), np.asarray(step >= jnp.arange(places)[None, :, None])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one[after], other[after], atol=2e-5)
    # Nothing of the episode before is in it: other observations there change no bit.
    noise = jax.random.normal(next(keys), observation.shape)
    other = jnp.where(after[..., None], observation, noise)
    again = read(model, params, fresh, blank.replace(observation=other), 1)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one[after], other[after])
        assert not np.allclose(one[~after], other[~after])


def test_an_episode_leaves_nothing_in_the_lanes():
    """Where it ends, even with a segment, the lane is that of an agent that has seen nothing."""
    model, params = agent('expire_span', layers=1)
    environment = key_door(shortest=SEGMENTS * LENGTH, longest=SEGMENTS * LENGTH)
    lanes = lanes_of(model, params, environment)
    after, rollout = act(model, params, environment, lanes, jax.random.key(0))
    assert rollout.terminated[-1, :, -1].all() and rollout.terminated.sum() == LANES
    chex.assert_trees_all_equal(after.memory, lanes.memory)
    assert after.start.all() and not after.total.any() and (after.action == -1).all()


@pytest.mark.parametrize('steps', [1, 2, 7, 12])
@pytest.mark.parametrize('shortest', [1, 2, 3, 20])
def test_there_is_room_for_all_starts(steps, shortest):
    most = max(len(range(first, steps, shortest)) for first in range(1, max(steps, 2)))
    assert reading.most_starts(steps, shortest) == most


def test_totals_and_measures_of_episodes():
    environment = key_door(shortest=3, longest=3)
    model, params = agent('local', layers=1)
    lanes = lanes_of(model, params, environment)
    _, rollout = act(model, params, environment, lanes, jax.random.key(1))
    ended = np.asarray(rollout.ended)
    assert ended.sum() == LANES * SEGMENTS * LENGTH // 3
    assert (np.asarray(rollout.steps)[ended] == 3).all()
    np.testing.assert_array_equal(
        np.asarray(rollout.total)[ended], np.asarray(rollout.measures['success'])[ended]
    )


@pytest.mark.slow
def test_what_there_is_no_room_for_is_left_out():
    environment = key_door(shortest=2, longest=3)
    model, params = agent('transformer_xl', layers=1)
    lanes = lanes_of(model, params, environment)
    _, rollout = act(model, params, environment, lanes, jax.random.key(1))
    kept = np.asarray(reading.learnable(rollout.start, 3))
    inside = np.asarray(rollout.start) & (np.arange(LENGTH) > 0)
    for lane in range(LANES):
        number = np.cumsum(inside[:, lane].reshape(-1))
        np.testing.assert_array_equal(kept[:, lane].reshape(-1), number <= 3)
    assert not kept.all() and kept[0].any(axis=1).all()
    logits, value = read(model, params, lanes.memory, rollout, 3)
    np.testing.assert_allclose(logits[kept], rollout.logits[kept], atol=2e-5)
    np.testing.assert_allclose(value[kept], rollout.value[kept], atol=2e-5)
