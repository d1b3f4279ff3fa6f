"""Players without parameters for RULER's tasks: they read the text, as far as it was seen."""

import re
from typing import Any

import numpy as np

from longmem_jax.data.sets.ruler.sizes import Family
from longmem_jax.data.tasks.registry import Players
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError


def players(family: Family, tokenizer: Tokenizer) -> Players:
    """Where questions begin, and the rules of a task; see `data.tasks.registry.Task`."""
    player = _Player(family, tokenizer)
    return Players(player.questions, {'look up': player.look_up})


class _Player:
    """Knows the rules of a task, and the tokens that its answers may have."""

    def __init__(self, family: Family, tokenizer: Tokenizer):
        self._family, self._tokenizer = family, tokenizer
        made_of = re.compile(rf'\s?{family.letters}')
        tokens = np.arange(tokenizer.vocab_size)
        fits = [bool(made_of.fullmatch(self._text(tokens[i : i + 1]))) for i in tokens]
        self._any = np.asarray(fits, float) if any(fits) else np.ones(len(tokens))
        self._any /= self._any.sum()

    def _text(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens).decode('utf-8', 'replace')

    def questions(self, settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """The token with which the last question of a document begins."""
        known, first, last = inputs[: asked[0] + 1], max(int(asked[0]) - 63, 0), int(asked[0])
        while first and self._family.question not in self._text(known[first:]):
            first, last = max(last - 2 * (last - first + 1), 0), first
        while last - first > 1:  # the question begins at `first` or later, but before `last`
            middle = (first + last) // 2
            inside = self._family.question in self._text(known[middle:])
            first, last = (middle, last) if inside else (first, middle)
        return np.full(len(asked), first)

    def look_up(
        self, settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray
    ) -> np.ndarray:
        """What the text says, word for word; any token of an answer where it was not seen."""
        place = self.questions(settings, inputs, asked)[0]
        first, last = int(place), int(asked[0])  # the answer is due at `last` or before
        while last - first > 1:
            middle = (first + last) // 2
            ends = self._family.due in self._text(inputs[place : middle + 1])
            first, last = (first, middle) if ends else (middle, last)
        question, answer = self._text(inputs[place : last + 1]), last + 1
        _, found, question = question.rpartition(self._family.question)
        if not found:
            raise UsageError(
                "config.data.tokenizer: the rules read a sample's question as text, and these tokens do "
                'not give its text back, such as its capitals; choose another tokenizer, or bytes.'
            )
        question = found + question
        chances = np.tile(self._any, (len(asked), 1))
        for first in np.unique(begin):
            seen = self._text(inputs[first:place])
            for row in np.flatnonzero(begin == first):
                following = self._next(seen, question, inputs[answer : asked[row] + 1])
                if following is not None:
                    chances[row] = 0.0
                    chances[row, following] = 1.0
        return chances

    def _next(self, seen: str, question: str, given: np.ndarray) -> int | None:
        """The token that follows those `given` of the answer."""
        known = re.findall(self._family.part, self._text(given))
        while (part := self._family.guess(seen, question, known)) is not None:
            known.append(part)
            ids = self._tokenizer.encode(f' {self._family.written(known)}'.encode())
            if not np.array_equal(ids[: len(given)], given[: len(ids)]):
                break
            if len(ids) > len(given):
                return int(ids[len(given)])
        return None
