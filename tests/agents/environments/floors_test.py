"""The floors are what players earn who follow their rules in the environments themselves."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.reinforcement import floors
from longmem_jax.agents.environments import corridor, portal, registry, repeat_previous

UP, DOWN, LEFT, RIGHT = range(4)
EPISODES = 4_000


def earned(environment, play, memory):
    """Mean reward and mean measure of episodes that `play` plays to their end.

    Args:
      environment: what is played.
      play: (key, observation, memory) to (action, memory).
      memory: of the player at the start.
    """

    @jax.jit
    @jax.vmap
    def episode(key):
        key_start, key = jax.random.split(key)
        observation, state = environment.reset(key_start)

        def step(carry, key):
            observation, state, memory, alive, reward, measure = carry
            key_play, key_step = jax.random.split(key)
            action, memory = play(key_play, observation, memory)
            observation, state, paid, *ends, info = environment.step(key_step, state, action)
            (value,) = [
                info['measures'][name] for name in ('success', 'right') if name in info['measures']
            ]
            measure = jnp.where(alive, value, measure)
            reward += jnp.where(alive, paid, 0)
            return (observation, state, memory, alive & ~(ends[0] | ends[1]), reward, measure), None

        carry = (observation, state, memory, jnp.bool_(True), jnp.float32(0), jnp.float32(0))
        carry, _ = jax.lax.scan(step, carry, jax.random.split(key, environment.longest))
        return carry[4], carry[5]

    reward, measure = episode(jax.random.split(jax.random.key(3), EPISODES))
    return np.asarray(reward), np.asarray(measure)


def close(found, expected):
    """Whether means agree within four standard errors."""
    for values, mean in zip(found, expected, strict=True):
        error = max(values.std(), 0.02) / math.sqrt(len(values))
        assert abs(values.mean() - mean) < 4 * error, (values.mean(), mean, error)


def walks(span):
    """A player of Corridor who sees the object's colour for `span` steps after it."""
    words = [corridor.WORDS.index(word) for word in ('object', 'door', 'red')]

    def play(key, seen, memory):
        red, age = memory
        thing, door, colour = (seen[..., word] for word in words)
        at_start = thing[1, 0]
        red, age = jnp.where(at_start, colour[1, 0], red), jnp.where(at_start, 0, age + 1)
        red = jnp.where(age <= span, red, jax.random.bernoulli(key))
        up = colour[0, 1] == red
        return jnp.where(door[0, 1], jnp.where(up, UP, DOWN), RIGHT), (red, age)

    return play, (jnp.bool_(False), jnp.int32(0))


@pytest.mark.parametrize('span', [0, 3, 100])
def test_corridor(span):
    fields = dict(shortest=1, longest=8, steps_per_cell=1, extra_steps=0)
    expected = floors.of_corridor(fields, span)
    assert expected.success == {0: 0.5625, 3: 0.75, 100: 1.0}[span]
    close(earned(corridor.build(**fields), *walks(span)), expected)


def opens(rooms, remembers):
    """A player of Portal: it opens doors by chance, but those it knows if it remembers.

    The memory: which wall leads on in each room, where known (1 right, -1 left), the room it tried
    last and the wall.
    """

    def play(key, seen, memory):
        known, tried, wall, walking = memory
        room = jnp.argmax(seen[1, 1, len(portal.WORDS) :])
        arrived = ~walking & (tried >= 0)
        tried_at = jnp.maximum(tried, 0)
        found = jnp.where(room == tried + 1, wall, -wall)
        known = jnp.where(arrived, known.at[tried_at].set(found), known)
        coin = jnp.where(jax.random.bernoulli(key), 1, -1)
        choice = jnp.where(remembers & (known[room] != 0), known[room], coin)
        wall = jnp.where(walking, wall, choice)
        at_door = (seen[1, 0] | seen[1, 2])[portal.WORDS.index('door')]
        action = jnp.where(wall > 0, RIGHT, LEFT)
        return action, (known, room, wall, ~at_door)

    return play, (jnp.zeros(rooms, jnp.int32), jnp.int32(-1), jnp.int32(0), jnp.bool_(False))


@pytest.mark.parametrize('remembers', [False, True])
@pytest.mark.parametrize(
    'fields',
    [
        dict(rooms=4, size=3, mistakes=2, steps=100),
        dict(rooms=6, size=3, mistakes=2, steps=20),
        dict(rooms=4, size=3, mistakes=3, steps=21),
        dict(rooms=3, size=3, mistakes=1, steps=50),
    ],
    ids=str,
)
def test_portal(fields, remembers):
    rule = floors.portal_remembers if remembers else floors.portal_forgets
    play = opens(fields['rooms'], remembers)
    close(earned(portal.build(**fields), *play), rule(fields))


def test_portal_of_the_paper():
    forgets, remembers = floors.FLOORS['portal'](portal.DEFAULTS)
    assert 0.5 < forgets.reward < 0.7 and forgets.success < 1e-9
    assert 200 < remembers.reward < 800 and remembers.success < 0.2


def test_a_portal_of_two_rooms_by_hand():
    fields = dict(rooms=2, size=1, mistakes=2, steps=100)
    forgets, remembers = floors.FLOORS['portal'](fields)
    assert forgets == pytest.approx((0.075, 0.75)), 'either of two doors by chance'
    assert remembers == pytest.approx((0.1, 1.0)), 'a wrong door once at most'


@pytest.mark.parametrize('remembers', [False, True])
def test_repeat_previous(remembers):
    fields = dict(symbols=3, back=2, steps=8)

    def play(key, seen, last):
        last = jnp.concatenate([jnp.argmax(seen)[None], last[:-1]])
        return jnp.where(remembers, last[2], jax.random.randint(key, (), 0, 3)), last

    found = earned(repeat_previous.build(**fields), play, jnp.zeros(3, jnp.int32))
    close(found, floors.FLOORS['repeat_previous'](fields)[int(remembers)])


@functools.cache
def defaults(name):
    return floors.FLOORS[name](registry.ENVIRONMENTS[name].defaults)


@pytest.mark.parametrize('name', floors.FLOORS)
def test_remembering_is_worth_it(name):
    forgets, remembers = defaults(name)
    assert remembers.reward > forgets.reward + 0.45
