"""RULER's variable tracking: which variables have a value, by a chain of assignments in noise?"""

import re
import string
from typing import Any, NamedTuple

from longmem_jax.data.sets.ruler.needles import NOISE
from longmem_jax.data.sets.ruler.sizes import (
    FIRST,
    SHORT,
    Count,
    Draws,
    Family,
    Sample,
    Unfit,
    fitted,
    search,
)
from longmem_jax.errors import UsageError

TEXT = (
    'Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n'
    'Question: Find all variables that are assigned the value {value} in the text above.'
)
PREFIX = (
    ' Answer: According to the chain(s) of variable assignment in the text above, {number} variables '
    'are assigned the value {value}, they are: '
)
NAMES = 5  # of a chain
EXAMPLE_LENGTH, EXAMPLE_VALUE, EXAMPLE_STEP = 500, '12345', 5


class Plan(NamedTuple):
    """The number of lines of noise, and the worked example ('' = none)."""

    units: int
    example: str


class Variables(Family):
    """Variable tracking."""

    generated = 30
    question = 'Question:'
    due = 'they are: '
    letters = '[A-Z]+'
    part = '([A-Z]{5})'
    between = ' '

    def __init__(self, example: bool):
        """`example`: whether a worked example is before the text."""
        self._example = example

    def prepare(self, draws: Draws, count: Count, length: int) -> Plan:
        """The worked example, then the number of lines.

        Raises:
          UsageError: the example cannot fit, whatever the length.
        """
        example = self._worked(draws, count) if self._example else ''
        step = self.step(length)
        units = search(
            lambda n: self._size(draws, count, n),
            length - self.generated - count(example), step, step,
            lambda each: int((length / each) * 3),
        )  # fmt: skip
        return Plan(units, example)

    def sample(
        self, draws: Draws, count: Count, length: int, plan: Any, number: int, tries: int
    ) -> Sample:
        """See `sizes.Family`."""

        def draw(units: int) -> Sample:
            sample = self._draw(draws, units)
            if not plan.example:
                return sample
            return sample._replace(text=self._renamed(draws, plan.example) + '\n' + sample.text)

        return fitted(draw, count, length - self.generated, plan.units, self.step(length), tries)

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The name that is due, if it was seen; all of the text belong to one chain."""
        names = re.findall(r'VAR ([A-Z]{5}) =', seen)
        place = len(named) + len(names) - NAMES  # the last were seen
        return names[place] if 0 <= place < len(names) else None

    def step(self, length: int) -> int:
        """Lines of noise."""
        return 5 if length < SHORT else 10

    def _size(self, draws: Draws, count: Count, units: int, letters: int = 5) -> int:
        return count(self._draw(draws, units, letters).prompt)

    def _worked(self, draws: Draws, count: Count) -> str:
        """The worked example with its answer: names of three letters."""
        step, length = EXAMPLE_STEP, EXAMPLE_LENGTH
        try:
            units = search(
                lambda n: self._size(draws, count, n, 3),
                length, step, step, lambda each: int((length / each) * 3),
            )  # fmt: skip
            sample = fitted(lambda n: self._draw(draws, n, 3), count, length, units, step, FIRST)
        except Unfit as error:
            raise UsageError(
                f'the worked example of vt may have {length} tokens, and has '
                f'{self._size(draws, count, step, 3)} with this tokenizer; use one with longer tokens, '
                'or config.data.task.example = False.'
            ) from error
        return f'{sample.text}{sample.prefix} {self.written(sample.outputs)}\n'

    def _renamed(self, draws: Draws, example: str) -> str:
        """The example with other names and another value."""
        for name in example.split()[-NAMES:]:
            example = example.replace(name, self._name(draws, len(name)))
        return example.replace(EXAMPLE_VALUE, self._value(draws))

    def _name(self, draws: Draws, letters: int) -> str:
        return ''.join(draws.random.choices(string.ascii_uppercase, k=letters))

    def _value(self, draws: Draws) -> str:
        return str(draws.numbers.randint(10000, 99999))

    def _draw(self, draws: Draws, units: int, letters: int = 5) -> Sample:
        """A sample with this many lines of noise; `Unfit` if there are fewer than names."""
        names: list[str] = []
        while len(set(names)) < NAMES:
            names = [self._name(draws, letters) for _ in range(NAMES)]
        value = self._value(draws) if letters == 5 else EXAMPLE_VALUE
        chain = [f'VAR {names[0]} = {value}']
        chain += [f'VAR {new} = VAR {old} ' for old, new in zip(names, names[1:], strict=False)]
        if units < NAMES:
            raise Unfit
        lines = [NOISE] * units
        for later, place in enumerate(sorted(draws.random.sample(range(units), NAMES))):
            lines.insert(place + later, chain[later])
        fields = dict(context='\n'.join(lines), value=value, number=NAMES)
        return Sample(TEXT.format(**fields), PREFIX.format(**fields), names)
