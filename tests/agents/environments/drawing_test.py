"""Episodes drawn as text, pictures and films."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from longmem_jax.agents.environments import corridor, drawing, portal
from longmem_jax.agents.environments.interface import Box, Moved, endless
from tests.agents.environments.play import SMALL, random_actions, rollout, small

DOWN, RIGHT = 1, 3


def episode(environment, actions, held=None, key=0):
    """Steps of a rollout as they are drawn."""
    play = jax.jit(functools.partial(rollout, environment))
    start, steps = jax.device_get(play(jax.random.key(key), np.asarray(actions)))

    def before(first, after):
        return np.concatenate([np.asarray(first)[None], after[:-1]])

    states = jax.tree.map(before, start[1], steps[1])
    return drawing.Episode(states, before(start[0], steps[0]), np.asarray(actions), steps[2], held)


@functools.cache
def walk():
    """A corridor of three cells; the seed has a red object, and a red door below."""
    environment = corridor.build(3, 3)
    for key in range(20):
        walked = episode(environment, [RIGHT, RIGHT, DOWN], np.eye(3), key)
        state = walked.state(0)
        if state.red and not state.red_above:
            return environment, walked
    raise AssertionError('no such seed')


def test_a_corridor_as_text():
    assert drawing.as_text(*walk()).splitlines() == [
        'step 0: right', '###B#', 'r@..#', '###R#', '[@  ]', '',
        'step 1: right', '###B#', 'r.@.#', '###R#', '[ @ ]', '',
        'step 2: down, reward +1', '###B#', 'r..@#', '###R#', '[  @]',
    ]  # fmt: skip


def test_a_portal_as_text():
    environment = portal.build(rooms=3, size=1)
    rooms = episode(environment, [0, 1])
    state = rooms.state(0)
    left, right = 'RB' if state.red_left[0] else 'BR'
    assert drawing.text(environment, state, rooms.observations[0]) == f'###\n{left}@{right}\n###'
    assert drawing.caption(environment, rooms, 1) == 'step 1: down, room 1'


def test_colours_of_a_picture():
    environment, walked = walk()
    drawn = drawing.picture(environment, walked.state(0), walked.observations[0])
    size = drawing.LARGEST
    assert drawn.shape == (3 * size, 5 * size, 3)
    named = {'block': (0, 0), 'blue': (0, 3), 'red': (1, 0), 'agent': (1, 1), 'floor': (1, 2)}
    for name, (row, column) in named.items():
        middle = drawn[row * size + size // 2, column * size + size // 2]
        assert tuple(middle) == drawing.COLOURS[name], name


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=() if n == 'corridor' else pytest.mark.slow) for n in SMALL]
)
def test_files(name, tmp_path):
    environment = small(name)
    actions = random_actions(environment, jax.random.key(0), (30,))
    played = episode(environment, actions)
    drawing.write_png(tmp_path / 'a.png', environment, played, most=5)
    drawing.write_gif(tmp_path / 'a.gif', environment, played, milliseconds=20)
    assert sorted(file.name for file in tmp_path.iterdir()) == ['a.gif', 'a.png']
    with Image.open(tmp_path / 'a.png') as png, Image.open(tmp_path / 'a.gif') as gif:
        frame = drawing._frames(environment, played, 5)[0]
        assert png.size == (frame.width, 5 * (frame.height + drawing.GAP))
        assert gif.n_frames > 5  # equal frames are one, which stays for longer
    lines = drawing.as_text(environment, played)
    assert lines.count('step ') == 30


def test_what_is_held_is_below():
    environment, walked = walk()
    for step in range(3):
        bar = np.asarray(drawing.frame(environment, walked, step))[-1].astype(int)
        full = abs(bar - drawing.COLOURS['held']).sum(-1) == 0
        thirds = [full[len(full) * k // 3 + 2 : len(full) * (k + 1) // 3 - 2] for k in range(3)]
        assert [bool(third.all()) for third in thirds] == [k == step for k in range(3)]


def test_steps_are_spread():
    _, walked = walk()
    long = dataclasses.replace(walked, actions=np.zeros(100))
    assert list(drawing.chosen(long, 4)) == [0, 33, 66, 99]
    assert list(drawing.chosen(walked, 4)) == [0, 1, 2]


def test_wide_maps_fit():
    environment = corridor.build(200, 200)
    long = episode(environment, [RIGHT])
    drawn = drawing.picture(environment, long.state(0), None)
    assert drawn.shape[1] <= drawing.WIDTH
    assert drawing.COLOURS['agent'] in map(tuple, drawn.reshape(-1, 3))


@pytest.mark.parametrize('shape,dtype', [((4, 4, 3), jnp.uint8), ((5,), jnp.float32)])
def test_other_observations(shape, dtype, tmp_path):
    def observe(state):
        return (jnp.arange(np.prod(shape)).reshape(shape) + state).astype(dtype)

    def move(key, state, action):
        over = state >= 3
        return Moved(state + 1, jnp.float32(0), over, ~over & over, {})

    environment = endless(
        name='toy', num_actions=2, space=Box(0, 255, shape, dtype), longest=4, shortest=4,
        start=lambda key: jnp.int32(0), move=move, observe=observe,
    )  # fmt: skip
    played = episode(environment, [0, 1, 0])
    drawing.write_png(tmp_path / 'a.png', environment, played)
    drawn = drawing.picture(environment, None, played.observations[0])
    assert drawn.dtype == np.uint8 and drawn.shape[-1] == 3
    assert drawing.as_text(environment, played).startswith('step 0: action 0\n0 1 2 3 4')
