"""The policy gradient against differences of the expected reward, and the objectives by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.agents import actor_critic
from longmem_jax.agents.actor_critic import A2C, PPO, Acted
from longmem_jax.agents.returns import advantages

STEPS, ACTIONS = 3, 2
PLAIN = dict(clip=0.2, value_cost=0.5, entropy_cost=0.0, normalize=False)
EPISODES = np.asarray(list(itertools.product(range(ACTIONS), repeat=STEPS)))  # all that can happen


def rewards(actions):
    """Of an episode, [steps]: what was done before matters."""
    return np.asarray(
        [1.0 * (actions[0] == 1), actions[0] - 0.5 * actions[1], 2.0 * len({*actions})]
    )


def policies(theta, episodes):
    """Logits [episodes, steps, actions]: of a policy that looks at the number of ones so far."""
    ones = jnp.cumsum(episodes, axis=1) - episodes
    return jnp.tanh(theta['in'][ones] + theta['step'])[..., None] * theta['out']


def expected_reward(theta):
    logits = policies(theta, EPISODES)
    log_p = actor_critic.log_probability(logits, jnp.asarray(EPISODES)).sum(-1)
    return (jnp.exp(log_p) * np.asarray([rewards(e).sum() for e in EPISODES])).sum()


def acted(theta, value):
    """All episodes, with a critic that says `value` [steps] whatever was done before."""
    reward = jnp.asarray(np.stack([rewards(episode) for episode in EPISODES]).T)
    values = jnp.broadcast_to(value[:, None], reward.shape)
    ended = jnp.zeros(reward.shape, bool).at[-1].set(True)
    advantage = advantages(
        reward, values, ended, jnp.zeros_like(ended), values[0], discount=1.0, trace=1.0
    )
    return Acted(
        action=jnp.asarray(EPISODES),
        logits=policies(theta, EPISODES),
        value=values.T,
        advantage=advantage.T,
        returned=(advantage + values).T,
        counts=jnp.ones(reward.T.shape),
    )


@pytest.mark.parametrize('algorithm', [A2C, PPO])
@pytest.mark.parametrize('value', [(0.0, 0.0, 0.0), (1.5, -0.3, 0.7)])
def test_the_gradient_is_that_of_the_expected_reward(algorithm, value):
    """Over all episodes with their probabilities; whatever the critic says, which moves no mean."""
    with jax.enable_x64(True):
        theta = {
            'in': jnp.asarray([0.3, -0.8, 0.5]), 'step': jnp.asarray([0.2, -0.4, 0.9]),
            'out': jnp.asarray([0.7, -1.1]),
        }  # fmt: skip
        seen = jax.jit(acted)(theta, jnp.asarray(value))
        log_p = jax.jit(actor_critic.log_probability)(seen.logits, seen.action).sum(-1)
        weights = np.exp(log_p)

        def loss(theta):
            def one(logits, episode):
                kept = dict(PLAIN, value_cost=0.0)
                total, _ = actor_critic.objective(
                    logits, episode.value, episode, algorithm=algorithm, **kept
                )
                return total * STEPS

            return (weights * jax.vmap(one)(policies(theta, EPISODES), seen)).sum()

        found, reward = jax.jit(jax.grad(loss))(theta), jax.jit(expected_reward)
        for name, values in theta.items():
            for place in range(values.size):
                step = 1e-6 * (np.arange(values.size) == place)
                high, low = (reward(theta | {name: values + sign * step}) for sign in (1, -1))
                difference = (high - low) / 2e-6
                np.testing.assert_allclose(-found[name][place], difference, atol=1e-8)


def one_step(advantage, ratio):
    """A single step of two actions whose first one is now `ratio` times as likely as it was."""
    before, now = jnp.log(jnp.asarray([0.4, 0.6])), jnp.asarray([0.4 * ratio, 1 - 0.4 * ratio])
    value = jnp.zeros(())
    seen = Acted(jnp.int32(0), before, value, jnp.float32(advantage), value + 1.0, jnp.ones(()))
    return jnp.log(now), seen


@pytest.mark.parametrize(
    'advantage, ratio, expected',
    [
        (1, 1.1, -1.1),
        (1, 1.5, -1.2),
        (1, 0.5, -0.5),
        (-1, 0.5, 0.8),
        (-1, 1.5, 1.5),
        (-1, 1.1, 1.1),
    ],
)
def test_ppo_gains_nothing_beyond_its_limits(advantage, ratio, expected):
    logits, seen = one_step(advantage, ratio)
    found = actor_critic.clipped_policy(logits, seen, 0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_parts_of_the_objective():
    logits, seen = one_step(2.0, 1.0)
    value = jnp.float32(0.5)
    given = PLAIN | dict(entropy_cost=0.1)
    total, metrics = actor_critic.objective(logits, value, seen, algorithm=A2C, **given)
    spread = -(0.4 * np.log(0.4) + 0.6 * np.log(0.6))
    np.testing.assert_allclose(metrics['entropy'], spread, rtol=1e-5)
    np.testing.assert_allclose(metrics['policy_loss'], -np.log(0.4) * 2, rtol=1e-5)
    np.testing.assert_allclose(metrics['value_loss'], 0.125, rtol=1e-5)
    np.testing.assert_allclose(total, -np.log(0.4) * 2 + 0.5 * 0.125 - 0.1 * spread, rtol=1e-5)
    np.testing.assert_allclose(metrics['kl'], 0.0, atol=1e-6)
    # The critic that moved by .5 is held to .2.
    _, metrics = actor_critic.objective(logits, value, seen, algorithm=PPO, **given)
    np.testing.assert_allclose(metrics['value_loss'], 0.5 * 0.8**2, rtol=1e-5)


def test_only_steps_that_count():
    advantage = jnp.asarray([1.0, 2.0, 6.0, 99.0])
    zeros = jnp.zeros(4)
    logits = jax.random.normal(jax.random.key(0), (4, 2))
    seen = Acted(
        zeros.astype(int), logits, zeros, advantage, advantage, jnp.asarray([1, 1, 1, 0.0])
    )
    found = actor_critic.normalized(seen)[:3]
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=1e-6)
    first = jax.tree.map(lambda leaf: leaf[:3], (logits, zeros, seen))
    for algorithm in (A2C, PPO):
        given = dict(PLAIN, algorithm=algorithm, normalize=True)
        total = jax.jit(functools.partial(actor_critic.objective, **given))
        totals = [total(*x)[0] for x in ((logits, zeros, seen), first)]
        np.testing.assert_allclose(*totals, rtol=1e-6)
