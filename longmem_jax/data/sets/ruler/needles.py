"""RULER's eight tasks by needles: sentences with keys and values, hidden in other text."""

import re
import uuid
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from longmem_jax.data.sets.ruler import words
from longmem_jax.data.sets.ruler.sizes import SHORT, Draws, Family, Sample, Unfit

NOISE = 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
NEEDLE = 'One of the special magic {kind} for {key} is: {value}.'
FOUND = r'special magic \w+ for (\S+) is: (\S+)\.'
TEXT = (
    'Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will '
    'quiz you about the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for '
    '{query} mentioned in the provided text?'
)
PREFIX = ' The special magic {kind} for {query} mentioned in the provided text are'
DEPTHS = np.round(np.linspace(0, 100, 40)).astype(int).tolist()  # percent of an essay
DIGITS = 7
LETTERS = {'numbers': r'\d', 'uuids': '[0-9a-f-]'}
SIZES = {'numbers': DIGITS, 'uuids': 36}


class Kind(NamedTuple):
    """A task: the haystack (noise, essay or needle), kinds of keys and values, and how many of each."""

    haystack: str
    key: str = 'words'
    value: str = 'numbers'
    keys: int = 1
    values: int = 1
    queries: int = 1


KINDS = {
    'niah_single_1': Kind('noise'),
    'niah_single_2': Kind('essay'),
    'niah_single_3': Kind('essay', value='uuids'),
    'niah_multikey_1': Kind('essay', keys=4),
    'niah_multikey_2': Kind('needle'),
    'niah_multikey_3': Kind('needle', key='uuids', value='uuids'),
    'niah_multivalue': Kind('essay', values=4),
    'niah_multiquery': Kind('essay', keys=4, queries=4),
}


class Needles(Family):
    """A task by needles."""

    generated = 128

    def __init__(self, name: str, essay: Callable[[], list[str]]):
        """`essay` gives the words of the essays; errors as in `words.listed`."""
        self._kind = KINDS[name]
        self._one = self._kind.queries * self._kind.values == 1
        self.question = 'What is the special' if self._one else 'What are all the special'
        self.due = 'text is' if self._one else 'text are'
        self.letters = f'{LETTERS[self._kind.value]}+'
        self.part = f'({LETTERS[self._kind.value]}{{{SIZES[self._kind.value]}}})'
        self._essay = essay() if self._kind.haystack == 'essay' else []
        if self._kind.key == 'words':
            words.listed()

    def step(self, length: int) -> int:
        """Lines of the haystack, or words of an essay."""
        return 500 if self._kind.haystack == 'essay' else 5 if length < SHORT else 25

    def parts(self, sample: Sample) -> list[str]:
        """Values of several keys in the order of the question, those of one key in that of the text."""
        by_place = sorted(sample.outputs, key=lambda value: sample.text.index(f'is: {value}.'))
        return by_place if self._kind.queries == 1 else sample.outputs

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The value of the key that is due, if it was seen."""
        asked = re.search(r'for (.+?) mentioned', question)
        keys = re.split(r', and |, ', asked[1]) if asked else []
        found: dict[str, list[str]] = {}
        for key, value in re.findall(FOUND, seen):
            found.setdefault(key, []).append(value)
        place = len(named)
        if self._kind.queries > 1:
            return found.get(keys[place], [None])[0] if place < len(keys) else None
        values = found.get(keys[0], []) if keys else []
        place += len(values) - self._kind.values  # the last were seen
        return values[place] if 0 <= place < len(values) else None

    def _random(self, draws: Draws, kind: str) -> str:
        """A key or a value."""
        if kind == 'numbers':
            return str(draws.random.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))
        if kind == 'words':
            return draws.random.choice(words.pairs())
        return str(uuid.UUID(int=draws.random.getrandbits(128), version=4))

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(kind=self._kind.value, key=key, value=value)

    def draw(self, draws: Draws, units: int, length: int, number: int) -> Sample:
        """See `sizes.Family`; a needle is a part."""
        kind, keys, values = self._kind, [], []
        for _ in range(kind.keys):
            keys.append(self._random(draws, kind.key))
            values.append([self._random(draws, kind.value) for _ in range(kind.values)])
        needles = [
            self._needle(key, value)
            for key, of_key in zip(keys, values, strict=True)
            for value in of_key
        ]
        draws.shuffled(needles)
        if kind.haystack == 'essay':
            context = self._in_essay(draws, units, needles)
        else:
            context = self._in_lines(draws, units, needles)
        asked = draws.random.sample(range(kind.keys), kind.queries)
        queries = [keys[i] for i in asked]
        query = ', '.join(queries[:-1]) + ', and ' + queries[-1] if queries[1:] else queries[0]
        text, prefix, name = TEXT, PREFIX, kind.value
        if self._one:
            name = name[:-1]
            for several, one in (('Some', 'A'), ('are all', 'is'), ('are', 'is')):
                text, prefix = text.replace(several, one), prefix.replace(several, one)
        fields = dict(kind=name, context=context, query=query)
        outputs = [value for i in asked for value in values[i]]
        return Sample(text.format(**fields), prefix.format(**fields), outputs)

    def _in_essay(self, draws: Draws, units: int, needles: list[str]) -> str:
        """The first words of the essays, over and over, with needles between sentences.

        A sentence ends after a full stop, a question mark or an exclamation mark.
        """
        repeated = self._essay * -(-units // len(self._essay))
        sentences = re.split(r'(?<=[.!?]) ', ' '.join(repeated[:units]).strip())
        depths = draws.random.sample(DEPTHS, len(needles))
        places = sorted(int(len(sentences) * (depth / 100)) for depth in depths)
        parts, begin = [], 0
        for place, needle in zip(places, needles, strict=True):
            parts += [' '.join(sentences[begin:place]), needle]
            begin = place
        return ' '.join([*parts, ' '.join(sentences[begin:])])

    def _in_lines(self, draws: Draws, units: int, needles: list[str]) -> str:
        """Lines of noise or of other needles, with needles between them."""
        lines = [NOISE] * units
        if self._kind.haystack == 'needle':
            kinds = self._kind.key, self._kind.value
            lines = [self._needle(*(self._random(draws, k) for k in kinds)) for _ in range(units)]
        if units < len(needles):
            raise Unfit
        places = sorted(draws.random.sample(range(units), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            lines.insert(place, needle)
        return '\n'.join(lines)
