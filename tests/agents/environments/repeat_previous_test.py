"""The rules of Repeat Previous."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.agents.environments import repeat_previous
from tests.agents.environments.play import rollout

BACK, STEPS = 3, 9


@functools.cache
def environment():
    return repeat_previous.build(4, BACK, STEPS)


def shown(start, steps):
    """Symbols in view before each step of an episode, and after the last one."""
    seen = np.concatenate([start[0][None], steps[5]['final_observation'][:STEPS]])
    assert (seen.sum(-1) == 1).all()
    return seen.argmax(-1)


def test_rewards():
    run = jax.jit(functools.partial(rollout, environment()))
    key = jax.random.key(0)
    symbols = shown(*run(key, np.zeros(STEPS)))
    answers = np.zeros(STEPS, int)
    answers[BACK:] = symbols[: STEPS - BACK]
    start, steps = run(key, answers)
    assert (shown(start, steps) == symbols).all(), 'answers do not change what is shown'
    pay = 1 / (STEPS - BACK)
    assert np.asarray(steps[2]) == pytest.approx([0] * BACK + [pay] * (STEPS - BACK))
    assert float(steps[5]['measures']['right'][-1]) == 1
    answers[BACK] = (answers[BACK] + 1) % 4
    _, steps = run(key, answers)
    assert np.asarray(steps[2]) == pytest.approx([0] * BACK + [-pay] + [pay] * (STEPS - BACK - 1))
    assert np.asarray(steps[3]).tolist() == [False] * (STEPS - 1) + [True]
    assert not steps[4].any()


def test_symbols_are_uniform_and_independent():
    lanes = jax.jit(jax.vmap(functools.partial(rollout, environment())))
    count = 2_000
    start, steps = lanes(jax.random.split(jax.random.key(1), count), jnp.zeros((count, 2)))
    symbols = np.stack([start[0], *np.moveaxis(np.asarray(steps[0]), 1, 0)]).argmax(-1)
    pairs = np.bincount(4 * symbols[:-1].ravel() + symbols[1:].ravel(), minlength=16)
    assert abs(pairs / pairs.sum() - 1 / 16).max() < 0.02
