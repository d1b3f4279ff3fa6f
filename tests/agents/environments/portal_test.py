"""The rules of Multi-Room Portal, case by case against section 5.2 and A.3.1 of the paper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.agents.environments import portal

UP, DOWN, LEFT, RIGHT = range(4)
KEY = jax.random.key(0)
# Of four rooms; the first and the third lead on by the right door.
LEADS_RIGHT = (True, False, True, False)


@functools.cache
def environment(rooms=4, size=5, mistakes=2, steps=1_000):
    return portal.build(rooms, size, mistakes, steps)


@functools.cache
def stepper(**fields):
    return jax.jit(environment(**fields).step)


def episode(room=0, position=(3, 3), wrong=(0, 0, 0, 0), red_left=(True,) * 4, time=0):
    return portal.State(
        jnp.array(LEADS_RIGHT), jnp.array(red_left), jnp.int32(wrong), jnp.int32(room), jnp.int32(room),
        jnp.int32(position), jnp.int32(time),
    )  # fmt: skip


def play(state, actions, **fields):
    """Steps until an end: rewards and ends of each, the states, and the last info."""
    step, told, states = stepper(**fields), [], []
    for action in actions:
        values = step(KEY, state, action)
        state = values[1]
        told.append((round(float(values[2]), 4), bool(values[3]), bool(values[4])))
        states.append(state)
        if any(told[-1][1:]):
            break
    return told, states, values[5]


def words(observation, row, column):
    """Names of the words in a cell of a view."""
    named = portal.words(4)
    return {named[place] for place in np.flatnonzero(np.asarray(observation)[row, column])}


@pytest.mark.parametrize('room', [0, 1])
def test_the_right_door_leads_to_the_next_room(room):
    action = RIGHT if LEADS_RIGHT[room] else LEFT
    told, states, info = play(episode(room), [action] * 3)
    assert told == [(0, False, False)] * 2 + [(round(0.1 * (room + 1), 4), False, False)]
    assert int(states[-1].room) == room + 1
    assert states[-1].position.tolist() == [3, 3]
    assert states[-1].wrong.tolist() == [0] * 4
    assert float(info['measures']['rooms']) == room + 2


@pytest.mark.parametrize('room', [0, 1, 2])
def test_the_wrong_door_leads_to_the_first_room(room):
    action = LEFT if LEADS_RIGHT[room] else RIGHT
    told, states, info = play(episode(room), [action] * 3)
    assert told == [(0, False, False)] * 3
    assert int(states[-1].room) == 0
    assert states[-1].position.tolist() == [3, 3]
    assert states[-1].wrong.tolist() == [int(other == room) for other in range(4)]
    assert float(info['measures']['rooms']) == room + 1


def test_two_mistakes_in_one_room_end_the_episode():
    told, _, info = play(episode(), [LEFT] * 6)
    assert told == [(0, False, False)] * 5 + [(0, True, False)]
    assert float(info['measures']['success']) == 0
    there = [RIGHT] * 3 + [LEFT] * 3  # through the first two rooms
    walk = [LEFT] * 3 + [RIGHT] * 6 + [*there, *[LEFT] * 3]  # a mistake in rooms 1, 2 and 3
    told, states, _ = play(episode(), walk)
    assert len(told) == len(walk) and not told[-1][1]
    assert states[-1].wrong.tolist() == [1, 1, 1, 0]
    told, _, info = play(states[-1], [*there, *[LEFT] * 3])
    assert told[-1] == (0, True, False) and len(told) == 9
    assert float(info['measures']['rooms']) == 3


def test_the_number_of_mistakes_is_a_field():
    told, _, _ = play(episode(), [LEFT] * 9, mistakes=3)
    assert [end for _, end, _ in told] == [False] * 8 + [True]


def test_the_last_room_ends_the_episode():
    told, _, info = play(episode(), [RIGHT] * 3 + [LEFT] * 3 + [RIGHT] * 3)
    assert told[-1] == (0.3, True, False)
    assert sum(reward for reward, *_ in told) == pytest.approx(0.6)
    assert float(info['measures']['success']) == 1
    assert float(info['measures']['rooms']) == 4


def test_passing_again_is_paid_again():
    told, _, _ = play(episode(), [RIGHT] * 3 + [RIGHT] * 3 + [RIGHT] * 3)
    assert [reward for reward, *_ in told if reward] == [0.1, 0.1]


def test_a_clean_pass_of_the_paper_pays_122_5():
    assert sum(portal.REWARD * k for k in range(1, portal.DEFAULTS['rooms'])) == pytest.approx(
        122.5
    )


def test_steps_are_limited():
    told, _, _ = play(episode(), [UP] * 10, steps=7)
    assert told == [(0, False, False)] * 6 + [(0, False, True)]
    told, _, _ = play(episode(position=(3, 5), room=2, time=6), [RIGHT], steps=7)
    assert told == [(0.3, True, False)], 'the last room counts with the last step'
    told, _, _ = play(episode(position=(3, 5), time=6), [RIGHT], steps=7)
    assert told == [(0.1, False, True)]


def test_walls_are_in_the_way():
    for position, action in [
        ((1, 1), UP),
        ((1, 1), LEFT),
        ((5, 5), DOWN),
        ((5, 5), RIGHT),
        ((4, 5), RIGHT),
    ]:
        _, (state,), _ = play(episode(position=position), [action])
        assert state.position.tolist() == list(position)
        assert int(state.room) == 0


@pytest.mark.parametrize('red_left', [True, False])
def test_words(red_left):
    see = environment().observe
    left, right = ('red', 'blue') if red_left else ('blue', 'red')
    coloured = dict(red_left=(not red_left, red_left, not red_left, not red_left))
    seen = see(episode(1, **coloured))
    assert words(seen, 1, 1) == {'agent', 'room 2'}
    assert np.asarray(seen).sum() == 2, 'nothing else is seen from the middle'
    seen = see(episode(1, position=(3, 1), **coloured))
    assert words(seen, 1, 0) == {'door', left}
    assert words(seen, 0, 0) == words(seen, 2, 0) == {'block'}
    assert words(see(episode(1, position=(3, 5), **coloured)), 1, 2) == {'door', right}
    corner = see(episode(3, position=(5, 5)))
    assert words(corner, 1, 1) == {'agent', 'room 4'}
    assert words(corner, 2, 2) == words(corner, 1, 2) == words(corner, 2, 0) == {'block'}


def test_the_right_door_is_not_seen():
    one, other = (environment().observe(episode().replace(leads_right=jnp.full(4, leads)))
                  for leads in (True, False))  # fmt: skip
    assert (one == other).all()


def test_doors_are_fair_coins():
    states = jax.vmap(environment(rooms=50).reset)(jax.random.split(KEY, 2_000))[1]
    coins = np.stack([states.leads_right, states.red_left], 1).astype(float)  # [2000, 2, 50]
    assert abs(coins.mean(0) - 0.5).max() < 0.05
    flat = coins.reshape(len(coins), -1)
    related = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert abs(related).max() < 0.12, 'coins of rooms are independent of each other'


def test_bounds_of_an_episode():
    assert portal.build().longest == 1_000
    assert portal.build().shortest == 6
    assert portal.build().observation.shape == (3, 3, 55)
    assert portal.build(rooms=2, size=1).shortest == 1
    assert portal.build(rooms=3, size=5, mistakes=2, steps=4).shortest == 4
