"""Suites of others through the adapter; what needs a package is skipped where it is missing."""

import functools
import importlib.util
import sys
from types import SimpleNamespace

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chex import assert_trees_all_close

from longmem_jax.agents.environments import registry, suites
from longmem_jax.agents.environments.adapters import adapt, shrunk
from longmem_jax.errors import UsageError
from tests.agents.environments.play import random_actions, rollout

KEY = jax.random.key(0)


@flax.struct.dataclass
class Count:
    time: jax.Array


class Five:
    """An environment of the older form: it ends after 4 steps, or with action 2 after 3."""

    num_actions = 3
    ends_late = False

    def reset_env(self, key, params):
        return jnp.zeros(2), Count(0)

    def step_env(self, key, state, action, params):
        state = Count(state.time + 1)
        late = state.time >= 4
        done = late | ((state.time == 3) & (action == 2))
        info = {'truncated': late} if self.ends_late else {}
        return jnp.full(2, state.time * 1.0), state, state.time * 2, done, info

    def action_space(self, params):
        return SimpleNamespace(n=3)

    def observation_space(self, params):
        return SimpleNamespace(low=0, high=np.array([1.0, 2.0]))


class Six(Five):
    """The same of gymnax 1.0: the limit of steps is told apart."""

    def step_env(self, key, state, action, params):
        seen, state, reward, _, info = super().step_env(key, state, action, params)
        return seen, state, reward, (state.time == 3) & (action == 2), info

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


def played(suite, actions, longest=10):
    params = SimpleNamespace(max_steps_in_episode=4)
    environment = adapt(suite, params, 'toy', longest=longest)
    return environment, *rollout(environment, KEY, actions)


def ends(steps):
    return np.flatnonzero(steps[3]).tolist(), np.flatnonzero(steps[4]).tolist()


def test_five_values():
    environment, start, steps = played(Five(), [0] * 6)
    assert ends(steps) == ([3], [])
    assert steps[5]['final_observation'][:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert steps[0][:, 0].tolist() == [1, 2, 3, 0, 1, 2]
    assert steps[2].tolist() == [2, 4, 6, 8, 2, 4] and steps[2].dtype == jnp.float32
    assert environment.num_actions == 3 and environment.observation.shape == (2,)
    assert (environment.space.low, environment.space.high) == (0, np.inf)


def test_five_values_with_a_limit_in_info():
    suite = Five()
    suite.ends_late = True
    assert ends(played(suite, [0] * 6)[2]) == ([], [3])
    assert ends(played(suite, [2] * 6)[2]) == ([2, 5], [])


def test_six_values():
    assert ends(played(Six(), [0] * 6)[2]) == ([], [3])
    assert ends(played(Six(), [2] * 6)[2]) == ([2, 5], [])


def test_the_limit_of_the_adapter():
    for suite in (Five(), Six()):
        assert ends(played(suite, [0] * 6, longest=2)[2]) == ([], [1, 3, 5])


def test_what_cannot_be_adapted():
    suite = Five()
    suite.action_space = lambda params: SimpleNamespace(shape=(2,))
    with pytest.raises(UsageError, match='toy: its actions are not discrete'):
        played(suite, [0])
    suite = Five()
    suite.reset_env = lambda key, params: ({'a': jnp.zeros(2)}, Count(0))
    with pytest.raises(UsageError, match='toy: its observations are not one array'):
        played(suite, [0])


def test_shrunk():
    picture = jnp.arange(4 * 4 * 3, dtype=jnp.uint8).reshape(4, 4, 3)
    small = shrunk(picture, 2)
    assert small.dtype == jnp.uint8 and small.shape == (2, 2, 3)
    assert small[0, 0].tolist() == [8, 8, 10]  # 7.5, 8.5, 9.5: means round to even


@pytest.mark.parametrize(
    'name,extra',
    [('memory_chain', 'rl'), ('popgym_arcade', 'popgym-arcade'), ('craftax', 'craftax')],
)
def test_a_missing_package_names_its_extra(name, extra, monkeypatch):
    for module in suites.EXTRAS:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'longmem_jax\[{extra}\]'"):
        registry.build(name)


def test_the_gymnax_of_popgym_arcade_is_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, 'gymnax', SimpleNamespace())
    old = SimpleNamespace(Environment=Five)
    monkeypatch.setitem(sys.modules, 'gymnax.environments.environment', old)
    with pytest.raises(UsageError, match='needs gymnax 1.0, but .* without popgym-arcade'):
        registry.build('memory_chain')


def needs(package, version=''):
    there = importlib.util.find_spec(package) is not None
    if there and version:
        there = importlib.util.find_spec('popgym_arcade') is None  # it brings an older gymnax
    return pytest.mark.skipif(not there, reason=f'{package} {version} is not installed')


def like_its_own(suite, params, environment, steps):
    """A rollout of ours and one of the suite's own `step` with the same keys are the same."""
    key_reset, key_steps = jax.random.split(KEY)
    observation, state = suite.reset(key_reset, params)
    actions = random_actions(environment, jax.random.key(1), (steps,))
    start, ours = jax.jit(functools.partial(rollout, environment))(KEY, actions)
    assert_trees_all_close(start[0], observation)
    for step, key in enumerate(jax.random.split(key_steps, steps)):
        observation, state, reward, *ends, info = suite.step(key, state, actions[step], params)
        # Not to the last bit: the two are compiled differently.
        assert_trees_all_close(ours[0][step], observation, rtol=1e-5, atol=1e-6)
        assert float(ours[2][step]) == pytest.approx(float(reward))
        assert [bool(end) for end in ends] == [bool(ours[3][step]), bool(ours[4][step])]
        final = ours[5]['final_observation'][step]
        assert_trees_all_close(final, info['final_observation'], rtol=1e-5, atol=1e-6)
    assert (ours[3] | ours[4]).any()


@needs('gymnax', '1.0')
@pytest.mark.parametrize(
    'task',
    [
        'MemoryChain-bsuite',
        *(pytest.param(n, marks=pytest.mark.slow) for n in ('UmbrellaChain-bsuite', 'CartPole-v1')),
    ],
)
def test_gymnax(task):
    suite, params = suites.package('gymnax').make(task)
    environment = registry.build('gymnax', dict(task=task))

    like_its_own(suite, params, environment, 60)


@needs('gymnax', '1.0')
def test_memory_chain():
    environment = registry.build('memory_chain', dict(length=4, bits=2))
    assert environment.observation.shape == (4,) and environment.num_actions == 2
    lanes = jax.jit(jax.vmap(functools.partial(rollout, environment)))
    actions = random_actions(environment, KEY, (8, 20))
    (first, _), steps = lanes(jax.random.split(KEY, 8), actions)
    ended = np.asarray(steps[3] | steps[4])
    assert (np.flatnonzero(ended[0]) == [4, 9, 14, 19]).all() and (ended == ended[0]).all()
    assert environment.shortest == environment.longest == 5
    # An observation of gymnax's chain is of the state before its step: the bits are shown twice, and the
    # query right before the answer.
    query = np.asarray(steps[0])[:, 3, 1].astype(int)
    assert 0 < query.mean() < 1
    assert (np.asarray(steps[0])[:, 0] == first).all() and not np.asarray(steps[0])[:, 1, 2:].any()
    bits = (np.asarray(first)[:, 2:] + 1) / 2
    right = bits[np.arange(8), query] == np.asarray(actions)[:, 4]
    assert (np.asarray(steps[2])[:, 4] == np.where(right, 1, -1)).all()
    assert (np.asarray(steps[2])[:, :4] == 0).all()


@needs('gymnax', '1.0')
def test_an_unknown_task_of_gymnax():
    with pytest.raises(UsageError, match="task = 'Chess': gymnax has no such environment"):
        registry.build('gymnax', dict(task='Chess'))


@needs('gymnax', '1.0')
def test_continuous_actions_of_gymnax():
    with pytest.raises(UsageError, match='its actions are not discrete'):
        registry.build('gymnax', dict(task='Pendulum-v1'))


@needs('popgym_arcade')
@pytest.mark.parametrize('observed', ['fully', 'partly'])
def test_popgym_arcade(observed):
    environment = registry.build(
        'popgym_arcade', dict(task='CartPoleEasy', observed=observed, shrink=8)
    )
    assert environment.observation.shape == (16, 16, 3) and environment.num_actions > 1
    actions = random_actions(environment, KEY, (2, 4))
    lanes = jax.jit(jax.vmap(functools.partial(rollout, environment)))
    _, steps = lanes(jax.random.split(KEY, 2), actions)
    assert steps[0].shape == (2, 4, 16, 16, 3) and len(np.unique(steps[0])) > 2
    assert (steps[0] <= environment.space.high).all()


@needs('craftax')
@pytest.mark.slow
def test_craftax():
    fields = dict(task='Craftax-Classic-Symbolic-v1', longest=3)
    environment = registry.build('craftax', fields)
    assert environment.observation.shape == (1345,) and environment.num_actions == 17
    _, steps = jax.jit(functools.partial(rollout, environment))(KEY, [0, 1, 2, 3])
    assert np.flatnonzero(steps[3] | steps[4]).tolist() == [2]
    assert steps[5]['measures']['achievements'].shape == (4,)


@needs('gymnax', '1.0')
def test_a_rollout_of_gymnax_plays_our_environments():
    from gymnax.experimental.rollout import RolloutWrapper

    environment = registry.build('corridor', dict(shortest=1, longest=2))
    wrapper = RolloutWrapper(env=environment, num_env_steps=40)
    observations, _, rewards, _, ended, _ = wrapper.batch_rollout(jax.random.split(KEY, 8), None)
    assert observations.shape == (8, 40, 3, 3, 6)
    assert (np.asarray(rewards) > 0).any() and not np.asarray(rewards)[~np.asarray(ended)].any()
