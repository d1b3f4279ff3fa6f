"""The rules of Corridor, case by case against section 5.2 and A.3.1 of the paper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.agents.environments import corridor
from longmem_jax.agents.environments.corridor import WORDS

UP, DOWN, LEFT, RIGHT = range(4)
KEY = jax.random.key(0)


@functools.cache
def environment():
    return corridor.build()


@functools.cache
def stepper():
    return jax.jit(environment().step)


def episode(length=5, red=True, red_above=True, position=(1, 1), time=0):
    as_int = jnp.int32
    return corridor.State(
        as_int(length), jnp.bool_(red), jnp.bool_(red_above), as_int(position), as_int(time)
    )


def play(state, actions):
    """Steps until an end: rewards, terminated and truncated of each, and the last values."""
    step, told = stepper(), []
    for action in actions:
        values = step(KEY, state, action)
        state = values[1]
        told.append((float(values[2]), bool(values[3]), bool(values[4])))
        if any(told[-1][1:]):
            break
    return told, values


def words(observation, row, column):
    """Names of the words in a cell of a view."""
    return {WORDS[place] for place in np.flatnonzero(np.asarray(observation)[row, column])}


@pytest.mark.parametrize('red', [True, False])
@pytest.mark.parametrize('red_above', [True, False])
@pytest.mark.parametrize('action', [UP, DOWN])
@pytest.mark.parametrize('length', [1, 5])
def test_the_door_of_the_objects_colour_gives_one(red, red_above, action, length):
    right = (action == UP) == (red == red_above)
    told, values = play(episode(length, red, red_above), [RIGHT] * (length - 1) + [action])
    assert len(told) == length
    assert told[:-1] == [(0.0, False, False)] * (length - 1)
    assert told[-1] == (float(right), True, False)
    assert float(values[5]['measures']['success']) == right


def test_walls_and_the_object_are_in_the_way():
    for position, actions in [((1, 1), [UP, DOWN, LEFT]), ((1, 3), [UP, DOWN]), ((1, 5), [RIGHT])]:
        for action in actions:
            _, state, reward, terminated, truncated, _ = stepper()(
                KEY, episode(position=position), action
            )
            assert state.position.tolist() == list(position)
            assert int(state.time) == 1
            assert not (reward or terminated or truncated)


def test_moves():
    told, values = play(episode(), [RIGHT, RIGHT, LEFT, RIGHT])
    assert values[1].position.tolist() == [1, 3]
    assert not any(end for _, *ends in told for end in ends)


@pytest.mark.parametrize('red', [True, False])
def test_the_object_is_seen_at_the_start_only(red):
    see, colour = environment().observe, 'red' if red else 'blue'
    seen = see(episode(red=red))
    assert words(seen, 1, 0) == {'object', colour}
    assert words(seen, 1, 1) == {'agent'}
    assert words(seen, 1, 2) == set()
    assert words(seen, 0, 0) == words(seen, 2, 2) == {'block'}
    later = see(episode(red=red, position=(1, 2)))
    assert not later[..., [WORDS.index(word) for word in ('object', 'red', 'blue')]].any()
    assert words(later, 1, 0) == set()


@pytest.mark.parametrize('red_above', [True, False])
def test_the_doors_are_seen_at_the_end(red_above):
    above, below = ('red', 'blue') if red_above else ('blue', 'red')
    for position, column in [((1, 4), 2), ((1, 5), 1)]:
        seen = environment().observe(episode(red_above=red_above, position=position))
        assert words(seen, 0, column) == {'door', above}
        assert words(seen, 2, column) == {'door', below}
    assert words(seen, 1, 2) == {'block'}
    assert not environment().observe(episode(position=(1, 3)))[..., WORDS.index('door')].any()


def test_steps_are_limited():
    told, _ = play(episode(length=3), [LEFT] * 40)
    assert len(told) == 4 * 3 + 20
    assert told[-1] == (0.0, False, True)
    told, _ = play(episode(length=1, time=23), [UP])
    assert told == [(1.0, True, False)], 'a door entered with the last step still counts'


def test_lengths_colours_and_doors_are_uniform():
    count = 4_000
    states = jax.vmap(environment().reset)(jax.random.split(KEY, count))[1]
    lengths = np.asarray(states.length)
    assert lengths.min() == 3 and lengths.max() == 200
    assert abs(lengths.mean() - 101.5) < 4
    four = np.bincount(2 * np.asarray(states.red) + np.asarray(states.red_above), minlength=4)
    assert abs(four / count - 0.25).max() < 0.03
    assert (states.position == jnp.array([1, 1])).all()


def test_bounds_of_an_episode():
    assert environment().shortest == 3
    assert environment().longest == 4 * 200 + 20
    assert corridor.build(1, 2, 1, 0).shortest == 1


def test_the_map_is_what_is_seen():
    state = episode(length=4, position=(1, 3))
    rows, columns = environment().map.extent(state)
    cells = jnp.stack(jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing='ij'), -1)
    whole = environment().map.at(state, cells)
    assert (rows, columns) == (3, 6)
    assert (whole[:, 2:5] == environment().observe(state)).all()
