"""Players without parameters for BABILong: they read the facts by their forms, which no model may.

So they are floors and a ceiling, and no results. 'rules' with N tokens before the question is a window
of N tokens that knows all rules of bAbI.
"""

import collections
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from longmem_jax.data.sets.babilong.reasoning import answer, whatever_thing
from longmem_jax.data.sets.babilong.stories import LABELS, story
from longmem_jax.data.sets.babilong.text import facts_in, question_of
from longmem_jax.data.tasks.registry import Players
from longmem_jax.data.tokenizers import Tokenizer

QUESTION, ANSWER = '\n\nQuestion:', '\nAnswer:'
OF_THINGS = ('qa2', 'qa3')  # where a thing is, or was
COUNTED = 200  # stories whose answers are counted


def said(label: str) -> str:
    """The answer that names a label."""
    return f' {label}.'


Named = Callable[[str, str], str | None]  # text that was seen, question: a label, or None


def players(task: str, tokenizer: Tokenizer) -> Players:
    """Where questions begin, and the rules of a task; see `data.tasks.registry.Task`."""
    player = _Player(task, tokenizer)
    named = {
        'rules': by_rules,
        'last label': player.last_label,
        'commonest label': player.commonest,
    }
    if task in OF_THINGS:
        named['whatever thing'] = by_whatever_thing
    rules = {name: functools.partial(player.chances, way) for name, way in named.items()}
    return Players(player.questions, rules)


def by_rules(seen: str, question: str) -> str | None:
    """The answer that follows from the facts that were seen."""
    asked = question_of(question)
    found = answer([fact for _, fact in facts_in(seen)], asked) if asked else None
    return found and found.answer


def by_whatever_thing(seen: str, question: str) -> str | None:
    """See `reasoning.whatever_thing`."""
    asked = question_of(question)
    return whatever_thing([fact for _, fact in facts_in(seen)], asked) if asked else None


@functools.cache
def commonest(task: str) -> str:
    """The most common answer."""
    draws = random.Random(0)
    answers = (sample.answer for _ in range(COUNTED) for sample in story(task, draws))
    return collections.Counter(answers).most_common(1)[0][0]


class _Player:
    """Knows the labels of a task, and their tokens."""

    def __init__(self, task: str, tokenizer: Tokenizer):
        self._task, self._tokenizer = task, tokenizer
        self._mark = tokenizer.encode(QUESTION.encode())
        self._tokens = {label: tokenizer.encode(said(label).encode()) for label in LABELS[task]}

    def _text(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens).decode('utf-8', 'replace')

    def questions(self, settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """The token with which the last question of a document begins."""
        size, last = len(self._mark), int(asked[0]) + 1
        places = range(last - size, -1, -1)
        found = (p for p in places if np.array_equal(inputs[p : p + size], self._mark))
        return np.full(len(asked), next(found))

    def last_label(self, seen: str, question: str) -> str | None:
        """The label that the facts name last and the question does not."""
        words = [word for _, fact in facts_in(seen) for word in fact[1:]]
        labels = [word for word in words if word in self._tokens and word not in question]
        return labels[-1] if labels else None

    def commonest(self, seen: str, question: str) -> str | None:
        """The most common answer of the task."""
        return commonest(self._task)

    def chances(
        self, named: Named, settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray
    ) -> np.ndarray:
        """The tokens of a label; of any label that the question does not name, if none is known."""
        place, first = int(self.questions(settings, inputs, asked)[0]), int(asked[0])
        text = self._text(inputs[place : first + 1])
        question = text.removeprefix(QUESTION).removesuffix(ANSWER).removeprefix(' ')
        chances = np.zeros((len(asked), self._tokenizer.vocab_size))
        for since in np.unique(begin):
            label = named(self._text(inputs[since:place]), question)
            others = [each for each in self._tokens if each not in question]
            for row in np.flatnonzero(begin == since):
                given = inputs[first + 1 : asked[row] + 1]
                for each in [label] if label else others:
                    ids = self._tokens[each]
                    if len(ids) > len(given) and np.array_equal(ids[: len(given)], given):
                        chances[row, ids[len(given)]] += 1
                if not chances[row].any():  # the answer has begun as no label that is thought of
                    chances[row] = 1
                chances[row] /= chances[row].sum()
        return chances
