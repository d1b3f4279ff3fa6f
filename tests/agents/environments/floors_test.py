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


def earned(environment, play, *memories):
    """Rewards and measures of episodes that `play` plays to their end, by one program.

    Args:
      environment: what is played.
      play: (key, observation, memory) to (action, memory).
      memories: of players at the start, who are asked for one after the other.
    """

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def episode(key, memory):
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

    keys = jax.random.split(jax.random.key(3), EPISODES)
    return [jax.device_get(episode(keys, memory)) for memory in memories]


def close(found, expected):
    """Whether means agree within four standard errors."""
    for values, mean in zip(found, expected, strict=True):
        error = max(values.std(), 0.02) / math.sqrt(len(values))
        assert abs(values.mean() - mean) < 4 * error, (values.mean(), mean, error)


def walks():
    """A player of Corridor who sees the object's colour for a number of steps after it: the last of
    its memory.
    """
    words = [corridor.WORDS.index(word) for word in ('object', 'door', 'red')]

    def play(key, seen, memory):
        red, age, span = memory
        thing, door, colour = (seen[..., word] for word in words)
        at_start = thing[1, 0]
        red, age = jnp.where(at_start, colour[1, 0], red), jnp.where(at_start, 0, age + 1)
        red = jnp.where(age <= span, red, jax.random.bernoulli(key))
        up = colour[0, 1] == red
        return jnp.where(door[0, 1], jnp.where(up, UP, DOWN), RIGHT), (red, age, span)

    return play


def test_corridor():
    fields = dict(shortest=1, longest=8, steps_per_cell=1, extra_steps=0)
    shares = {0: 0.5625, 3: 0.75, 100: 1.0}
    memories = [(np.bool_(False), np.int32(0), np.int32(span)) for span in shares]
    found = earned(corridor.build(**fields), walks(), *memories)
    for (span, share), own in zip(shares.items(), found, strict=True):
        expected = floors.of_corridor(fields, span)
        assert expected.success == share
        close(own, expected)


def opens():
    """A player of Portal: it opens doors by chance, but those it knows if it remembers.

    The memory: which wall leads on in each room, where known (1 right, -1 left), the room it tried
    last, the wall, whether it walks, and whether it remembers.
    """

    def play(key, seen, memory):
        known, tried, wall, walking, remembers = memory
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
        return action, (known, room, wall, ~at_door, remembers)

    return play


@pytest.mark.parametrize(
    'fields',
    [
        dict(rooms=4, size=3, mistakes=2, steps=100),
        dict(rooms=6, size=3, mistakes=2, steps=20),
        *(
            pytest.param(fields, marks=pytest.mark.slow)
            for fields in (
                dict(rooms=4, size=3, mistakes=3, steps=21),
                dict(rooms=3, size=3, mistakes=1, steps=50),
            )
        ),
    ],
    ids=str,
)
def test_portal(fields):
    first = np.zeros(fields['rooms'], np.int32), np.int32(-1), np.int32(0), np.bool_(False)
    memories = [(*first, np.bool_(remembers)) for remembers in (False, True)]
    forgets, remembers = earned(portal.build(**fields), opens(), *memories)
    close(forgets, floors.portal_forgets(fields))
    close(remembers, floors.portal_remembers(fields))


def test_portal_of_the_paper():
    forgets, remembers = floors.FLOORS['portal'](portal.DEFAULTS)
    assert 0.5 < forgets.reward < 0.7 and forgets.success < 1e-9
    assert 200 < remembers.reward < 800 and remembers.success < 0.2


def test_a_portal_of_two_rooms_by_hand():
    fields = dict(rooms=2, size=1, mistakes=2, steps=100)
    forgets, remembers = floors.FLOORS['portal'](fields)
    assert forgets == pytest.approx((0.075, 0.75)), 'either of two doors by chance'
    assert remembers == pytest.approx((0.1, 1.0)), 'a wrong door once at most'


def test_repeat_previous():
    fields = dict(symbols=3, back=2, steps=8)

    def play(key, seen, memory):
        last, remembers = memory
        last = jnp.concatenate([jnp.argmax(seen)[None], last[:-1]])
        action = jnp.where(remembers, last[2], jax.random.randint(key, (), 0, 3))
        return action, (last, remembers)

    memories = [(np.zeros(3, np.int32), np.bool_(remembers)) for remembers in (False, True)]
    found = earned(repeat_previous.build(**fields), play, *memories)
    for own, expected in zip(found, floors.FLOORS['repeat_previous'](fields), strict=True):
        close(own, expected)


@functools.cache
def defaults(name):
    return floors.FLOORS[name](registry.ENVIRONMENTS[name].defaults)


@pytest.mark.parametrize('name', floors.FLOORS)
def test_remembering_is_worth_it(name):
    forgets, remembers = defaults(name)
    assert remembers.reward > forgets.reward + 0.45
