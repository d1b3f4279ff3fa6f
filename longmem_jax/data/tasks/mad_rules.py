"""Rules for MAD's tasks: what follows from the words that were seen; see `registry.Task`."""

from typing import Any

import numpy as np

from longmem_jax.data.tasks.mad import Words, vocabulary
from longmem_jax.errors import UsageError


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at its key, or at the mark; see `registry.Task`.

    Raises:
      UsageError: every token is asked for, as in training on all of the text.
    """
    words = Words(settings)
    if settings['kind'] == 'memorization':
        return asked - 1
    if settings['kind'] in ('compression', 'copying'):
        return np.full(len(asked), np.flatnonzero(inputs == words.mark)[0])
    if asked[0] == 0:  # a key must have been shown
        raise UsageError(
            'config.data.task.train_on_text = True: on the training split every token is scored, and '
            'rules only know values; use --split=test, or --config.data.task.train_on_text=False.'
        )
    of_key = inputs < len(words.keys)
    begins = np.flatnonzero(of_key & ~np.concatenate([[False], of_key[:-1]]))
    return begins[np.searchsorted(begins, asked, side='right') - 1]


def _look_up(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """What was seen of the answer, and the facts of memorization; any word of an answer otherwise."""
    words, kind = Words(settings), settings['kind']
    chances = np.zeros((len(asked), vocabulary(settings).vocab_size))
    chances[:, words.values] = 1 / len(words.values)
    question = questions(settings, inputs, asked)
    for row, (place, ask, first) in enumerate(zip(asked, question, begin, strict=True)):
        if kind == 'memorization':
            found = words.of_values()[inputs[ask]]
        elif kind in ('recall', 'fuzzy'):
            found = _after_key(settings, inputs[first : place + 1], ask - first, first == 0)
        else:
            seen = inputs[first:ask]
            seen = seen[seen != words.blank]
            total = settings['num_copied'] if kind == 'copying' else settings['length'] - 1
            unseen = total - len(seen)
            at = place - ask - 1
            found = seen[at - unseen] if at >= unseen else None
        if found is not None:
            chances[row] = 0.0
            chances[row, found] = 1.0
    return chances


def _after_key(settings: Any, seen: np.ndarray, ask: int, whole: bool) -> int | None:
    """The next word of the value of the key that begins at `ask` and was in `seen` before; or None.

    `whole`: a key at the very beginning of `seen` has no words before.
    """
    words = Words(settings)
    longest = settings['key_length'] if settings['kind'] == 'fuzzy' else 1
    sort = np.where(seen < len(words.keys), 0, np.where(seen < words.plain, 1, 2))
    ends = np.flatnonzero(np.diff(sort, append=3)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    now = int(np.searchsorted(starts, ask))
    key, done = seen[ask : ends[now]], len(seen) - ends[now]
    for i in range(now - 1):
        same = sort[starts[i]] == 0 and np.array_equal(seen[starts[i] : ends[i]], key)
        if same and sort[starts[i + 1]] == 1 and (whole or starts[i] or len(key) == longest):
            return int(seen[starts[i + 1] + done])
    return None


RULES = {'look up': _look_up}
