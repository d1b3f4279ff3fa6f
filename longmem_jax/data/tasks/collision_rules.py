"""Rules for object collision: what follows from the collisions that were seen; see `registry.Task`."""

from typing import Any, NamedTuple

import numpy as np


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at its step."""
    width = 8 if settings['question'] == 'colours' else 5
    return asked // width * width


class _Seen(NamedTuple):
    """Collisions in the order of the pair they are asked by, then of time, and what was seen of them.

    Attributes:
      quadrants: int [collisions], of each.
      first, last: int [asked], those seen for a question are `quadrants[first:last]`, oldest first.
      guess: float [asked, 4], chances of the four quadrants by the present positions alone.
    """

    quadrants: np.ndarray
    first: np.ndarray
    last: np.ndarray
    guess: np.ndarray


def _seen(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> _Seen:
    """What was seen for every question; a step that was seen in part is not counted."""
    size, colours = settings['size'], settings['num_colours']
    by_pair = settings['question'] == 'colours'
    width = 8 if by_pair else 5
    now, since = asked // width, -(-begin // width)
    steps = inputs[: (now.max() + 1) * width].reshape(-1, width).astype(np.int64)
    second = 3 if by_pair else 2
    met = np.flatnonzero((steps[:, :2] == steps[:, second : second + 2]).all(axis=1))
    half = size // 2
    quadrants = [
        2 * (steps[:, at] >= half) + (steps[:, at + 1] - size >= half) for at in (0, second)
    ]
    pairs, questions = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    if by_pair:
        pairs = (steps[:, 2] - 2 * size) * colours + steps[:, 5] - 2 * size
        asking = steps[:, 6:] - 2 * size - colours
        questions = asking[:, 0] * colours + asking[:, 1]
    place = pairs[met] * len(steps) + met
    order = np.argsort(place)
    place, wanted = place[order], questions[now] * len(steps)
    guess = np.zeros((len(asked), 4))
    for quadrant in quadrants:
        guess[np.arange(len(asked)), quadrant[now]] += 0.5
    return _Seen(
        quadrants[0][met][order],
        np.searchsorted(place, wanted + since),
        np.searchsorted(place, wanted + now, side='right'),
        guess,
    )


def _answers(settings: Any, seen: list[np.ndarray]) -> np.ndarray:
    """Chances of the words from those of the quadrants, float [asked, 4], the newest first."""
    first = 1 if settings['question'] == 'colours' else 0  # the word of quadrant 0
    joint = seen[0]
    if settings['question'] == 'last_three':
        newest, middle, oldest = seen
        joint = np.einsum('ai,aj,ak->aijk', oldest, middle, newest).reshape(-1, 64)
    return np.pad(joint, [(0, 0), (first, 0)])


def _latest(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The last collisions seen; what was not seen is taken to be where the next one was."""
    seen, chances = _seen(settings, inputs, asked, begin), []
    following = seen.guess
    for back in range(1, 4):
        there = seen.last - back >= seen.first
        known = np.zeros_like(following)
        known[there, seen.quadrants[(seen.last - back)[there]]] = 1.0
        following = np.where(there[:, None], known, following)
        chances.append(following)
    return _answers(settings, chances)


def _commonest(
    settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray
) -> np.ndarray:
    """The most common quadrant of the collisions seen, as if their order had been forgotten."""
    seen = _seen(settings, inputs, asked, begin)
    each = np.eye(4)[seen.quadrants]
    totals = np.concatenate([np.zeros((1, 4)), each.cumsum(axis=0)])
    counts = totals[np.maximum(seen.last, seen.first)] - totals[seen.first]
    top = counts == counts.max(axis=1, keepdims=True)
    chances = np.where(
        counts.any(axis=1, keepdims=True), top / top.sum(axis=1, keepdims=True), seen.guess
    )
    return _answers(settings, [chances] * 3)


RULES = {'latest': _latest, 'commonest': _commonest}
