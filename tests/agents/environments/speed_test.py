"""The program that measures environments runs, and its ratios are of one round."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from experiments.reinforcement import speed
from tests.agents.environments.play import SMALL, small


@pytest.mark.parametrize('name', SMALL)
def test_a_rollout_returns_what_gymnax_returns(name):
    environment = small(name)
    play = jax.jit(lambda key: speed.rollout(environment, 30, key))
    observations, actions, rewards, after, ended = play(jax.random.key(0))
    assert observations.shape == after.shape == (30, *environment.observation.shape)
    assert (observations[1:] == after[:-1]).all()
    assert ended.any() and len(jnp.unique(actions)) == environment.num_actions
    assert rewards.shape == (30,)


def test_programs_take_turns():
    ticks = itertools.count()
    named = {name: lambda keys: jax.random.bits(keys[0]) for name in 'ab'}
    times = speed.measure(named, 2, 3, lambda: next(ticks))
    assert times == {'a': [1, 1, 1], 'b': [1, 1, 1]}


def test_ratios():
    times = {'ours': [1.0, 4.0, 2.0], speed.THEIRS: [2.0, 2.0, 3.0]}
    rows = speed.lines(times, 10, 100)
    assert rows[0] == ['ours', '10', '500', '1.50 (0.50 - 2.00)']
    assert rows[1][3] == '1.00 (1.00 - 1.00)'
    assert len(speed.lines({'ours': [1.0]}, 10, 100)[0]) == 3
