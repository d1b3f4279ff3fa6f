"""Corridor: which colour had the object at the start? (Sukhbaatar et al., 2021, 5.2 and A.3.1).

    ##########R        # block, R red door, B blue door
    r.........@#       r red object; the agent @ has walked from the cell right of the object
    ##########B        to the cells between the doors

The agent begins next to an object that is red or blue, walks down the corridor, and gets +1 for the door
of the object's colour. It sees the words of the 3x3 cells around it, so in a long corridor it has to
remember one bit over all steps.

From the paper: lengths uniform between 3 and 200, two colours, the reward, the view, four moves. It
leaves open the rest, and these are our choices: a corridor of `length` cells, with the doors above and
below the last one; the object is to the left of the first and cannot be walked on; the wrong door ends
the episode with reward 0; an episode is cut off after 4 x length + 20 steps.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.environments import grid
from longmem_jax.agents.environments.interface import Box, Environment, Map, Moved, endless
from longmem_jax.problems import defaults_and_rules, of_section

NAME = 'corridor'
DEFAULTS, FIELDS = defaults_and_rules(
    shortest=(3, (1, 10**6)),  # fewest cells of a corridor
    longest=(200, (1, 10**6)),  # most cells; both ends are included
    steps_per_cell=(4, (1, 10**6)),  # an episode is cut off after this number of steps per cell
    extra_steps=(20, (0, 10**6)),  # ... and these
)
WORDS = ('agent', 'block', 'object', 'door', 'red', 'blue')
MIDDLE = 1  # row of the corridor; the doors are in rows 0 and 2


class State(flax.struct.PyTreeNode):
    """One episode; all leaves are of shape [], but for `position`.

    Attributes:
      length: int32, cells of the corridor; they are columns 1 .. length of the middle row.
      red: bool, the object is red, not blue.
      red_above: bool, the red door is the upper one.
      position: int32 [2], row and column of the agent.
      time: int32, steps taken.
    """

    length: jax.Array
    red: jax.Array
    red_above: jax.Array
    position: jax.Array
    time: jax.Array


def check(fields: Mapping[str, Any]) -> list[str]:
    """Problems of the fields; `FIELDS` lists what is allowed."""
    problems = of_section(fields, FIELDS)
    if not problems and fields['longest'] < fields['shortest']:
        problems.append(
            f'longest = {fields["longest"]}: must be at least shortest = {fields["shortest"]}'
        )
    return problems


def start(key: jax.Array, shortest: int, longest: int) -> State:
    """An episode with a length, a colour and doors by chance."""
    key_length, key_coins = jax.random.split(key)
    length = jax.random.randint(key_length, (), shortest, longest + 1)
    red, red_above = jax.random.bernoulli(key_coins, shape=(2,))
    return State(length, red, red_above, jnp.array([MIDDLE, 1]), jnp.int32(0))


def places(state: State, cells: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which cells, rows and columns int32 [..., 2], can be walked on, are the object, are doors.

    Three times bool [...].
    """
    row, column = cells[..., 0], cells[..., 1]
    floor = (row == MIDDLE) & (column >= 1) & (column <= state.length)
    thing = (row == MIDDLE) & (column == 0)
    doors = (abs(row - MIDDLE) == 1) & (column == state.length)
    return floor, thing, doors


def opens_red(state: State, cells: jax.Array) -> jax.Array:
    """Whether a door at these cells, int32 [..., 2], would be the red one: bool [...]."""
    return (cells[..., 0] < MIDDLE) == state.red_above


def at(state: State, cells: jax.Array) -> jax.Array:
    """The words that stand in some cells, rows and columns int32 [..., 2].

    Returns bool [..., 6], in the order of `WORDS`. Outside of the map there are none.
    """
    floor, thing, door = places(state, cells)
    row, column = cells[..., 0], cells[..., 1]
    inside = (row >= 0) & (row <= 2) & (column >= 0) & (column <= state.length + 1)
    red = jnp.where(door, opens_red(state, cells), state.red)
    return jnp.stack(
        [
            grid.same(cells, state.position),
            inside & ~(floor | thing | door),
            thing,
            door,
            (thing | door) & red,
            (thing | door) & ~red,
        ],
        -1,
    )


def move(state: State, action: jax.Array, steps_per_cell: int, extra_steps: int) -> Moved:
    """Walks one cell, or enters a door, which ends the episode; all else is in the way."""
    target = grid.ahead(state.position, action)
    floor, _, door = places(state, target)
    right = door & (opens_red(state, target) == state.red)
    position = jnp.where(floor | door, target, state.position)
    state = state.replace(position=position, time=state.time + 1)
    late = state.time >= steps_per_cell * state.length + extra_steps
    reward = right.astype(jnp.float32)
    return Moved(state, reward, door, late & ~door, {'success': reward})


def extent(state: State) -> tuple[int, int]:
    """Rows and columns of the map."""
    return 3, int(state.length) + 2


def build(
    shortest: int = 3, longest: int = 200, steps_per_cell: int = 4, extra_steps: int = 20
) -> Environment:
    """The environment; the defaults are those of the paper, or ours where it has none."""
    return endless(
        name=NAME,
        num_actions=len(grid.ACTIONS),
        space=Box(0, 1, (3, 3, len(WORDS)), jnp.bool_),
        longest=steps_per_cell * longest + extra_steps,
        # The doors are as many moves away as the corridor has cells.
        shortest=min(shortest, steps_per_cell * shortest + extra_steps),
        start=lambda key: start(key, shortest, longest),
        move=lambda key, state, action: move(state, action, steps_per_cell, extra_steps),
        observe=lambda state: at(state, grid.view(state.position)),
        map=Map(WORDS, extent, at),
    )
