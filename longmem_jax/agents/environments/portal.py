"""Multi-Room Portal: which door led on in each room? (Sukhbaatar et al., 2021, 5.2 and A.3.1).

    #######
    #.....#        # block, R red door, B blue door
    #.....#
    R..@..B        the agent @ begins in the middle of every room
    #.....#
    #.....#
    #######

Rooms follow each other, each with two doors of different colours. One leads to the middle of the next
room, the other back to the first room. Which one is decided by chance, per room and episode, and is not
seen; so an agent tries, and has to remember what it has found in all rooms.

From the paper: 50 rooms of 5x5, the reward of 0.1 k on leaving room k for the next, the view of 3x3
cells, four moves, the number of the room in view, and three ends: two mistakes in one room, the last
room, 1,000 steps. It leaves open the rest, and these are our choices: 5x5 cells to walk on, inside of
walls; the doors are in the middle of the left and right walls, red and blue by chance, and stay the same
in the episode; the agent arrives in the middle; the word of the room's number stands in the agent's
cell; the end by steps counts as cut off (`truncated`), the others as ends of the task.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.environments import grid
from longmem_jax.agents.environments.interface import Box, Environment, Map, Moved, endless
from longmem_jax.problems import defaults_and_rules, of_section

NAME = 'portal'
DEFAULTS, FIELDS = defaults_and_rules(
    rooms=(50, (2, 10**4)),  # the last one is where an episode ends
    size=(5, (1, 99)),  # cells per side of a room, odd, without its walls
    mistakes=(2, (1, 50)),  # wrong doors in the same room that end an episode
    steps=(1_000, (1, 10**8)),  # an episode is cut off after this number of steps
)
REWARD = 0.1  # times the number of the room that is left for the next
WORDS = ('agent', 'block', 'door', 'red', 'blue')  # then a word for every room


class State(flax.struct.PyTreeNode):
    """One episode.

    Attributes:
      leads_right: bool [rooms], whether the door in the right wall of a room leads on, not the left one.
      red_left: bool [rooms], whether the door in the left wall is the red one.
      wrong: int32 [rooms], mistakes made in each room.
      room: int32 [], the agent's, from 0.
      farthest: int32 [], the last room that the agent has been in.
      position: int32 [2], row and column in the room; 0 is a wall.
      time: int32 [], steps taken.
    """

    leads_right: jax.Array
    red_left: jax.Array
    wrong: jax.Array
    room: jax.Array
    farthest: jax.Array
    position: jax.Array
    time: jax.Array


def check(fields: Mapping[str, Any]) -> list[str]:
    """Problems of the fields; `FIELDS` lists what is allowed."""
    problems = of_section(fields, FIELDS)
    if not problems and fields['size'] % 2 == 0:
        problems.append(f'size = {fields["size"]}: must be odd, so that a room has a middle')
    return problems


def middle(size: int) -> jax.Array:
    """Where the agent arrives in a room, int32 [2]; the walls are rows and columns 0 and size + 1."""
    return jnp.full(2, size // 2 + 1, jnp.int32)


def words(rooms: int) -> tuple[str, ...]:
    """All words that can stand in a cell."""
    return (*WORDS, *(f'room {room + 1}' for room in range(rooms)))


def start(key: jax.Array, rooms: int, size: int) -> State:
    """An episode whose doors are drawn by fair coins, two per room."""
    bits = jax.random.bits(key, (-(-rooms // 16),))  # 32 coins in each number
    coins = ((bits[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1).astype(bool).reshape(-1)
    zero = jnp.int32(0)
    none = jnp.zeros(rooms, jnp.int32)
    return State(coins[:rooms], coins[rooms : 2 * rooms], none, zero, zero, middle(size), zero)


def doors(cells: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Which cells, int32 [..., 2], are the door in the left wall and in the right: twice bool [...]."""
    in_middle = cells[..., 0] == size // 2 + 1
    return in_middle & (cells[..., 1] == 0), in_middle & (cells[..., 1] == size + 1)


def at(state: State, cells: jax.Array, rooms: int, size: int) -> jax.Array:
    """The words that stand in some cells of the agent's room.

    Returns bool [..., 5 + rooms], in the order of `words`. `cells` are rows and columns, int32 [..., 2].
    Outside of the room's walls there are none.
    """
    left, right = doors(cells, size)
    inside = jnp.all((cells >= 0) & (cells <= size + 1), -1)
    floor = jnp.all((cells >= 1) & (cells <= size), -1)
    agent = grid.same(cells, state.position)
    red_left = state.red_left[state.room]
    red, blue = jnp.where(red_left, left, right), jnp.where(red_left, right, left)
    plain = jnp.stack([agent, inside & ~floor & ~left & ~right, left | right, red, blue], -1)
    number = agent[..., None] & (jnp.arange(rooms) == state.room)
    return jnp.concatenate([plain, number], -1)


def move(
    state: State, action: jax.Array, rooms: int, size: int, mistakes: int, steps: int
) -> Moved:
    """Walks one cell, or enters a door; walls are in the way."""
    target = grid.ahead(state.position, action)
    left, right = doors(target, size)
    door, room = left | right, state.room
    good = door & (right == state.leads_right[room])
    bad = door & ~good
    wrong = state.wrong.at[room].add(bad.astype(jnp.int32))
    floor = jnp.all((target >= 1) & (target <= size))
    next_room = jnp.where(good, room + 1, jnp.where(bad, 0, room))
    after = state.replace(
        wrong=wrong,
        room=next_room,
        farthest=jnp.maximum(state.farthest, next_room),
        position=jnp.where(door, middle(size), jnp.where(floor, target, state.position)),
        time=state.time + 1,
    )
    last = next_room == rooms - 1
    terminated = last | (bad & (wrong[room] >= mistakes))
    reward = jnp.where(good, REWARD * (room + 1), 0.0).astype(jnp.float32)
    measures = {'success': last, 'rooms': after.farthest + 1}
    measures = {name: value.astype(jnp.float32) for name, value in measures.items()}
    return Moved(after, reward, terminated, (after.time >= steps) & ~terminated, measures)


def build(rooms: int = 50, size: int = 5, mistakes: int = 2, steps: int = 1_000) -> Environment:
    """The environment; the defaults are those of the paper."""
    to_door = size // 2 + 1

    def words_at(state: State, cells: jax.Array) -> jax.Array:
        return at(state, cells, rooms, size)

    return endless(
        name=NAME,
        num_actions=len(grid.ACTIONS),
        space=Box(0, 1, (3, 3, len(WORDS) + rooms), jnp.bool_),
        longest=steps,
        shortest=min(steps, to_door * min(mistakes, rooms - 1)),
        start=lambda key: start(key, rooms, size),
        move=lambda key, state, action: move(state, action, rooms, size, mistakes, steps),
        observe=lambda state: words_at(state, grid.view(state.position)),
        map=Map(words(rooms), lambda state: (size + 2, size + 2), words_at),
    )
