"""What an agent earns without memory, and one that remembers all: numbers to read curves by.

They are computed from the rules of an environment, not simulated. All players walk the shortest way, and
see what an agent sees.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.agents.environments import corridor, portal, repeat_previous

# Tries of a player of Portal that are counted. Where 50 mistakes are allowed, more than these have a
# chance of about 1e-4; their factorials would leave the range of float64.
MOST_TRIES = 150


class Earned(NamedTuple):
    """Means over episodes.

    Attributes:
      reward: sum of the rewards of an episode.
      success: share of episodes that were solved, or of answers that were right.
    """

    reward: float
    success: float


class Floors(NamedTuple):
    """The two ends of the scale.

    Attributes:
      forgets: a player who knows only what it sees, and guesses the rest.
      remembers: a player who has all it has seen in mind.
    """

    forgets: Earned
    remembers: Earned


def of_corridor(fields: Mapping[str, Any], span: float = 0) -> Earned:
    """A player who sees the last `span` observations, in addition to the present one.

    From the object to the last cell of a corridor of n cells are n - 1 steps; who has lost sight of the
    object guesses. Observations of cells between the ends are all the same, so a player without its
    actions in view cannot carry the colour along in the way it walks.
    """
    lengths = np.arange(fields['shortest'], fields['longest'] + 1)
    success = float(np.where(lengths - 1 <= span, 1.0, 0.5).mean())
    return Earned(success, success)


def _corridor(fields: Mapping[str, Any]) -> Floors:
    """Both ends for Corridor."""
    return Floors(of_corridor(fields, 0), of_corridor(fields, math.inf))


def portal_forgets(fields: Mapping[str, Any]) -> Earned:
    """A player who opens either door of every room with chance 1/2, whatever happened before.

    A try is a walk from the first room to a mistake: the mistake is in room j with chance 2^-j and costs
    j doors. `over[i, t]` is the chance that i tries took t doors and that no room has seen too many
    mistakes, divided by i!: a product over rooms of the exponential series of their mistakes.
    """
    rooms, mistakes, doors = fields['rooms'], fields['mistakes'], _doors(fields)
    tries = min((rooms - 1) * (mistakes - 1), doors, MOST_TRIES)
    over = np.zeros((tries + 1, doors + 1))
    over[0, 0] = 1.0
    for room in range(1, rooms):
        before, over = over, np.zeros_like(over)
        for count in range(mistakes):
            if count <= tries and count * room <= doors:
                chance = 2.0 ** (-room * count) / math.factorial(count)
                over[count:, count * room :] += (
                    chance * before[: tries + 1 - count, : doors + 1 - count * room]
                )
    begun = np.zeros(doors + 1)  # expected number of tries that begin after t doors
    factorial = 1.0
    for index, row in enumerate(over):
        factorial *= max(index, 1)
        begun += factorial * row
    passed = np.arange(1, rooms)
    pays = portal.REWARD * passed * 2.0**-passed
    earned = np.concatenate([[0.0], np.cumsum(pays)])  # by doors that are left
    left = np.minimum(doors - np.arange(doors + 1), rooms - 1)
    reward = float(np.sum(begun * earned[left]))
    success = float(np.sum(begun[left == rooms - 1])) * 2.0 ** -(rooms - 1)
    return Earned(reward, success)


def portal_remembers(fields: Mapping[str, Any]) -> Earned:
    """A player who never forgets a door and walks to the last room as fast as it can.

    It guesses in a room that it has not been in, and is wrong at most once there. A door found wrong in
    room k costs a walk through rooms 1 .. k, which is paid. More than this can be earned where the steps
    suffice to reach the last room: by one wrong door on purpose, to be paid for the same rooms again.
    """
    rooms, mistakes, doors = fields['rooms'], fields['mistakes'], _doors(fields)
    reward = np.zeros((rooms + 1, doors + 1))  # from room k, by doors that are left
    success = np.zeros_like(reward)
    success[rooms] = 1.0
    for room in range(rooms - 1, 0, -1):
        for left in range(1, doors + 1):
            right = np.array(
                [portal.REWARD * room + reward[room + 1, left - 1], success[room + 1, left - 1]]
            )
            wrong = np.zeros(2)
            if mistakes > 1:
                again = min(room, left - 1)
                wrong[0] = portal.REWARD * again * (again + 1) / 2
                if again == room:
                    wrong += reward[room + 1, left - 1 - room], success[room + 1, left - 1 - room]
            reward[room, left], success[room, left] = (right + wrong) / 2
    return Earned(float(reward[1, doors]), float(success[1, doors]))


def _doors(fields: Mapping[str, Any]) -> int:
    """Doors that can be reached in an episode of Portal."""
    return fields['steps'] // (fields['size'] // 2 + 1)


def _portal(fields: Mapping[str, Any]) -> Floors:
    """Both ends for Portal."""
    return Floors(portal_forgets(fields), portal_remembers(fields))


def _repeat_previous(fields: Mapping[str, Any]) -> Floors:
    """Both ends for Repeat Previous."""
    chance = 1 / fields['symbols']
    return Floors(Earned(2 * chance - 1, chance), Earned(1.0, 1.0))


def _memory_chain(fields: Mapping[str, Any]) -> Floors:
    """Both ends for MemoryChain: +1 or -1 for one answer; a chain of length 1 still shows its bits."""
    solved = Earned(1.0, 1.0)
    return Floors(Earned(0.0, 0.5) if fields['length'] > 1 else solved, solved)


FLOORS: dict[str, Callable[[Mapping[str, Any]], Floors]] = {
    corridor.NAME: _corridor,
    portal.NAME: _portal,
    repeat_previous.NAME: _repeat_previous,
    'memory_chain': _memory_chain,
}
