"""Samples of RULER, and how many units of text fit into a length."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Count = Callable[[str], int]  # tokens of a text
SHORT = 4096  # below this length in tokens some steps and counts are smaller
# Samples drawn at the smallest size before it is given up: of the first sample, and of later ones.
FIRST, LATER = 20, 1000


class Unfit(ValueError):
    """No sample of a task fits into a length, or too few units are left for its parts."""


class Sample(NamedTuple):
    """A prompt and what must occur in the answer.

    Attributes:
      text: context and question.
      prefix: the beginning of the answer, a part of the prompt.
      outputs: the expected strings.
    """

    text: str
    prefix: str
    outputs: list[str]

    @property
    def prompt(self) -> str:
        """What a model reads."""
        return self.text + self.prefix


class Draws(NamedTuple):
    """The random numbers of a file or of a document.

    Attributes:
      random, numbers: Python's and NumPy's generators.
      order: seed of the permutations that are the same in all samples of a file.
    """

    random: random.Random
    numbers: np.random.RandomState
    order: int

    def shuffled(self, items: list[Any]) -> list[Any]:
        """`items` in the order that all samples have; in place."""
        random.Random(self.order).shuffle(items)
        return items


def draws_of(seed: int) -> Draws:
    """The random numbers of the file of a seed."""
    return Draws(random.Random(seed), np.random.RandomState(seed), seed)


class Family:
    """A task of RULER.

    Attributes:
      generated: tokens that a model may write.
      question, due: how the question begins, after a new line, and how the prefix ends.
      letters: a pattern of the characters of answers; any token of these may be an unknown part.
      part: a pattern of the whole parts of an answer, each a group.
      between: what stands between the parts of an answer.
    """

    generated: int
    question: str
    due: str
    letters: str
    part: str
    between = ', '

    def step(self, length: int) -> int:
        """Units by which a sample shrinks until it fits into a length."""
        raise NotImplementedError

    def draw(self, draws: Draws, units: int, length: int, number: int) -> Sample:
        """A sample with this many units of text; raises `Unfit` if there are too few for its parts."""
        raise NotImplementedError

    def prepare(self, draws: Draws, count: Count, length: int) -> Any:
        """What all samples of a length share, such as their number of units; raises `Unfit`."""
        step = self.step(length)
        return search(
            lambda units: count(self.draw(draws, units, length, 0).prompt),
            length - self.generated, step, step, lambda each: int((length / each) * 3),
        )  # fmt: skip

    def sample(
        self, draws: Draws, count: Count, length: int, plan: Any, number: int, tries: int
    ) -> Sample:
        """The sample of a `number` in its file, with a `plan` of `prepare`; otherwise as `fitted`."""
        room, step = length - self.generated, self.step(length)
        return fitted(lambda n: self.draw(draws, n, length, number), count, room, plan, step, tries)

    def parts(self, sample: Sample) -> list[str]:
        """The parts of the answer to learn, in an order that follows from the text."""
        return sample.outputs

    def written(self, parts: list[str]) -> str:
        """The answer of these parts."""
        return self.between.join(parts)

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The next part of the answer, after those `named`, by the end `seen` of the context."""
        raise NotImplementedError


def search(
    size: Callable[[int], int], room: int, step: int, first: int, most: Callable[[float], int]
) -> int:
    """The largest number of units that fits, by bisection; every try draws a sample.

    Args:
      size: tokens of a sample of this many units.
      room: tokens that it may have.
      step: units at least.
      first: units of the sample by which tokens per unit are estimated.
      most: the largest number of units that is tried, by tokens per unit.
    """
    found = low = step
    high = max(most(size(first) / first), 2 * step)
    while low <= high:
        middle = (low + high) // 2
        if size(middle) <= room:
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def fitted(
    draw: Callable[[int], Sample], count: Count, room: int, units: int, step: int, tries: int
) -> Sample:
    """A sample of at most `units` that fits: `step` fewer after each that does not, if there are more.

    Where too few are left, the released loop does not end; here it continues with `step` units.

    Raises:
      Unfit: none of `tries` of the smallest fits.
    """
    while tries:
        try:
            sample = draw(units)
            if count(sample.prompt) <= room:
                return sample
            tries -= units <= step
            units -= step if units > step else 0
        except Unfit:
            units, tries = step, tries - 1
    raise Unfit
