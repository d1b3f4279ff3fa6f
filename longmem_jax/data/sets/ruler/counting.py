"""RULER's two tasks of counting: the most common words of a list, the most frequent coded words."""

import collections
import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from longmem_jax.data.sets.ruler import words
from longmem_jax.data.sets.ruler.sizes import SHORT, Count, Draws, Family, Sample, Unfit, search

COMMON, COMMON_STEP, ESTIMATED_BY = 10, 10, 4096
COMMON_TEXT = (
    'Below is a numbered list of words. In these words, some appear more often than others. Memorize '
    'the ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the '
    'above list?'
)
COMMON_PREFIX = ' Answer: The top 10 words that appear most often in the list are:'
FREQUENT_TEXT = (
    'Read the following coded text and track the frequency of each coded word. Find the three most '
    'frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please '
    "ignore the dots '....'. What are the three most frequently appeared words in the above coded text?"
)
FREQUENT_PREFIX = (
    ' Answer: According to the coded text above, the three most frequently appeared words are:'
)
DOTS, CODED_LETTERS, FREQUENT = '...', 6, 3
ZETA_2 = np.pi**2 / 6  # the sum of rank ** -2 over all ranks


def _numbered(items: list[str]) -> str:
    return ' '.join(f'{number}. {item}' for number, item in enumerate(items, 1))


class CommonWords(Family):
    """Common words."""

    generated = 120
    question = 'Question:'
    letters = '[a-z -]+'  # some words are two, such as 'ad hoc'
    due = 'list are:'
    part = r'\d+\. (.+?)(?= \d+\.)'

    def __init__(self, order: int, example: bool, more: Callable[[], list[str]]):
        """Shuffles the words.

        Args:
          order: seed of the order of the words.
          example: whether a worked example is before the list.
          more: gives other words, for lists that need more than there are.

        Raises:
          UsageError: as in `words.listed`.
        """
        every = sorted({word for kind in words.KINDS for word in words.listed()[kind]})
        self._words = Draws(None, None, order).shuffled(every)  # type: ignore[arg-type]
        self._example, self._more = example, more

    def step(self, length: int) -> int:
        """Different words."""
        return COMMON_STEP

    def prepare(self, draws: Draws, count: Count, length: int) -> int:
        """The number of different words."""
        return search(
            lambda units: count(self.draw(draws, units, length, 0).prompt),
            length - self.generated, COMMON_STEP, ESTIMATED_BY, lambda each: int(length // each) * 2,
        )  # fmt: skip

    def parts(self, sample: Sample) -> list[str]:
        """The words in the order of the list, all as common."""
        listed = self._list(sample.text)
        return sorted(sample.outputs, key=listed.index)

    def written(self, parts: list[str]) -> str:
        """A numbered list."""
        return _numbered(parts)

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The most common words that were seen, in the order of the list."""
        counts = collections.Counter(self._list(seen))
        common = {word for word, _ in counts.most_common(COMMON)}
        ordered = [word for word in counts if word in common]
        return ordered[len(named)] if len(named) < len(ordered) else None

    def _list(self, text: str) -> list[str]:
        """The words of the last list of a text."""
        text = text.split('often.\n')[-1].split('\nQuestion')[0]
        return re.findall(r'\d+\. (.+?)(?= \d+\.|$)', text)

    def draw(self, draws: Draws, units: int, length: int, number: int) -> Sample:
        """See `sizes.Family`; units are the different words of the list."""
        short, before = length < SHORT, ''
        if self._example:
            listed, common = self._listed(draws, *((20, 3, 1) if short else (40, 10, 3)))
            before = COMMON_TEXT.format(context=listed) + f'{COMMON_PREFIX} {_numbered(common)}\n'
        listed, common = self._listed(draws, units, *((6, 1) if short else (30, 3)))
        return Sample(before + COMMON_TEXT.format(context=listed), COMMON_PREFIX, common)

    def _listed(
        self, draws: Draws, different: int, often: int, seldom: int
    ) -> tuple[str, list[str]]:
        """A list, and its common words."""
        enough = different <= len(self._words)
        drawn = draws.random.sample(self._words if enough else self._more(), different)
        common, others = drawn[:COMMON], drawn[COMMON:]
        return _numbered(draws.shuffled(common * often + others * seldom)), common


class FrequentWords(Family):
    """Frequent coded words; the most frequent one is shown as dots."""

    generated = 50
    question = 'Question:'
    due = 'words are:'
    letters = '[a-z]+'
    part = '([a-z]{6})'

    def prepare(self, draws: Draws, count: Count, length: int) -> int:
        """The number of words of the text, for one vocabulary."""
        room = length - self.generated
        coded, number, step = self._vocabulary(draws, length), room // CODED_LETTERS, room // 32
        while step and count(self._text(draws, coded, number).prompt) < room:
            number += step
        if number <= step:
            raise Unfit
        return number - step

    def sample(
        self, draws: Draws, count: Count, length: int, plan: Any, number: int, tries: int
    ) -> Sample:
        """See `sizes.Family`."""
        room, left = length - self.generated, plan
        coded = self._vocabulary(draws, length)
        while left > 0:
            sample = self._text(draws, coded, left)
            if count(sample.prompt) <= room:
                counts = self._counts(left, len(coded))
                if not (np.diff(counts[1 : FREQUENT + 2]) < 0).all():
                    break  # which are frequent is not clear
                return sample
            left -= room // 32
        raise Unfit

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The word of the rank that is due by the counts of what was seen."""
        coded = seen.split('coded words. ')[-1].split('\n')[0]
        counts = collections.Counter(word for word in coded.split() if word != DOTS)
        ranked = [word for word, _ in counts.most_common(FREQUENT)]
        return ranked[len(named)] if len(named) < len(ranked) else None

    def _vocabulary(self, draws: Draws, length: int) -> list[str]:
        """Coded words by rank; `Unfit` if there are too few."""
        size = (length - self.generated) // 50
        if size <= FREQUENT:
            raise Unfit
        coded: set[str] = set()
        while len(coded) < size:
            coded.add(''.join(draws.random.choices(string.ascii_lowercase, k=CODED_LETTERS)))
        return [DOTS, *draws.shuffled(sorted(coded))[1:]]

    def _counts(self, number: int, ranks: int) -> np.ndarray:
        """How often the word of every rank comes, int [ranks], then 0."""
        shares = number * np.arange(1, ranks + 1) ** -2.0 / ZETA_2
        return np.append(shares.astype(int), 0)

    def _text(self, draws: Draws, coded: list[str], number: int) -> Sample:
        """A text of about this many words."""
        counts = self._counts(number, len(coded))[:-1]
        every = [word for word, n in zip(coded, counts, strict=True) for _ in range(n)]
        text = FREQUENT_TEXT.format(context=' '.join(draws.shuffled(every)))
        return Sample(text, FREQUENT_PREFIX, coded[1 : FREQUENT + 1])
