"""RULER's documents: samples of the released generator for testing, more of the same for training.

The samples of the test split are, for a length, a seed and a tokenizer, those of the released generator,
character by character. Not so the five tasks with essays: where a sentence ends is decided by a rule of
ours there. Training draws each document by itself, so that permutations differ too.
"""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.documents import First, Source
from longmem_jax.data.sets.pieces import ANSWER, READ, Piece, PieceCorpus, PieceTexts
from longmem_jax.data.sets.ruler import needles
from longmem_jax.data.sets.ruler.counting import CommonWords, FrequentWords
from longmem_jax.data.sets.ruler.needles import Needles
from longmem_jax.data.sets.ruler.players import players
from longmem_jax.data.sets.ruler.reading import READERS, Reading
from longmem_jax.data.sets.ruler.sizes import (
    FIRST,
    LATER,
    Count,
    Draws,
    Family,
    Sample,
    Unfit,
    draws_of,
)
from longmem_jax.data.sets.ruler.variables import Variables
from longmem_jax.data.sources import DataSource, Prompts
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.problems import of_series
from longmem_jax.untrusted import json_file

NAMES = (*needles.KINDS, 'vt', 'cwe', 'fwe', *READERS)
FIELDS = dict(
    name=NAMES,
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    example=(False, True),  # whether vt and cwe have a worked example, as released
)
LEARNT_FROM = 1 << 19  # tokens that a vocabulary is learned from, by
LONG_TOKEN = 8  # bytes of each: more than any tokenizer has, so that a sample fits for all
LONGEST = 1 << 22  # tokens up to which a length that fits is looked for
LARGEST_FILE = 1 << 30  # bytes


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `lengths`, in tokens with those to be written, in rising order."""
    words = 'tokens of prompt and answer, such as (512, 4096)'
    return of_series(settings, FIELDS, 'lengths', 1, words)


def _content(data: Any, what: str) -> Any:
    """The JSON of `config.data.path`, or its text if it is none."""
    if not data.path:
        raise UsageError(f"config.data.path = '': the task {data.task.name} needs {what}.")
    path = Path(data.path).expanduser()
    content = json_file.read_bytes(path, f'config.data.path = {path}', largest=LARGEST_FILE)
    if path.suffix != '.json':
        return {'text': content.decode('utf-8', 'replace')}
    return json_file.parse(content, str(path), replace=True)


def _essay(data: Any) -> list[str]:
    content = _content(data, "essays: a text, or the JSON of the released generator with a 'text'")
    text = content.get('text') if isinstance(content, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"config.data.path = {data.path}: has no 'text' with words.")
    return re.sub(r'\s+', ' ', text).split(' ')


def _more_words(data: Any) -> list[str]:
    content = _content(data, 'english_words.json of the released generator at this length')
    return [str(word) for word in (content.values() if isinstance(content, dict) else content)]


def family_of(data: Any) -> Family:
    """The task of `config.data`.

    Raises:
      UsageError: a file or a package that it needs is missing.
    """
    task = data.task
    if task.name == 'vt':
        return Variables(task.example)
    if task.name == 'fwe':
        return FrequentWords()
    if task.name == 'cwe':
        return CommonWords(data.seed, task.example, lambda: _more_words(data))
    if task.name in READERS:
        return Reading(task.name, _content(data, 'the JSON file of its questions'), data.path)
    return Needles(task.name, lambda: _essay(data))


class Stream:
    """The samples of a file one after another, by number; the generators' states are kept."""

    def __init__(self, family: Family, count: Count, length: int, draws: Draws, first: int):
        """Finds how many units fit; raises `Unfit` if number `first` does not."""
        self._family, self._count, self._length, self._draws = family, count, length, draws
        self._plan = family.prepare(draws, count, length)
        self._states = [(draws.random.getstate(), draws.numbers.get_state())]
        self.another(draws, first, FIRST)
        self._lock = threading.Lock()  # guards the generators and their states

    def another(self, draws: Draws, number: int, tries: int = LATER) -> Sample:
        """A sample with other random numbers; raises `Unfit`."""
        return self._family.sample(draws, self._count, self._length, self._plan, number, tries)

    def __getitem__(self, number: int) -> Sample:
        """Raises `Unfit`, or `IndexError` for a negative number."""
        if number < 0:
            raise IndexError(number)
        with self._lock:
            first = min(number, len(self._states) - 1)
            state, numbers = self._states[first]
            self._draws.random.setstate(state)
            self._draws.numbers.set_state(numbers)
            for each in range(first, number + 1):
                sample = self.another(self._draws, each)
                if each + 1 == len(self._states):
                    now = self._draws.random.getstate(), self._draws.numbers.get_state()
                    self._states.append(now)
            return sample


class Samples(Sequence[Sample]):
    """The samples of a split: test cycles through the lengths; training draws lengths and samples."""

    def __init__(self, data: Any, split: str, count: Count):
        """Draws the first sample of every length.

        Args:
          count: tokens of a text.

        Raises:
          UsageError: a length into which no sample fits, or too few questions for the documents.
        """
        self.family, self._count, self._split, self._seed = family_of(data), count, split, data.seed
        self._lengths, task = tuple(data.task.lengths), data.task
        self._size = task.documents if split == 'train' else task.eval_documents
        self._numbers = self._questions(task)
        self._streams = {length: self._fitting(length) for length in self._lengths}

    def _questions(self, task: Any) -> range:
        """The numbers of the samples, or of the questions, of the split."""
        size = -(-task.eval_documents // len(self._lengths))
        if not isinstance(self.family, Reading):
            return range(size)
        number = len(self.family.questions)
        parts = {
            'test': range(size),
            'validation': range(size, 2 * size),
            'train': range(2 * size, number),
        }
        if number <= 2 * size:
            raise UsageError(
                f'config.data.task.eval_documents = {task.eval_documents}: {2 * size} questions for '
                f'test and validation leave none of {number} for training; use fewer.'
            )
        return parts[self._split]

    def _stream(self, length: int) -> Stream:
        """The file of a length; raises `Unfit`."""
        draws = draws_of(self._seed)
        return Stream(self.family, self._count, length, draws, self._numbers[0])

    def _fitting(self, length: int) -> Stream:
        try:
            return self._stream(length)
        except Unfit as error:
            raise UsageError(
                f'config.data.task.lengths: no sample fits in {length:,} tokens, of which '
                f'{self.family.generated} are for the answer; with this tokenizer '
                f'{self._shortest(length)}.'
            ) from error

    def _shortest(self, length: int) -> str:
        """The shortest length that fits, in words."""
        above = length
        while above <= LONGEST and not self._fits(above := above * 5 // 4 + 1):
            length = above
        if above > LONGEST:
            return f'none up to {LONGEST:,} does'
        while above - length > 1:
            middle = (length + above) // 2
            length, above = (length, middle) if self._fits(middle) else (middle, above)
        return f'the shortest length is {above:,}'

    def _fits(self, length: int) -> bool:
        try:
            return bool(self._stream(length))
        except Unfit:
            return False

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            return self._sample(index)
        except Unfit as error:
            raise UsageError(
                f'config.data.task.lengths = {self._lengths}: sample {index} of {self._split} does not '
                'fit; use larger ones.'
            ) from error

    def _sample(self, index: int) -> Sample:
        number, which = divmod(index, len(self._lengths))
        if self._split == 'test':
            return self._streams[self._lengths[which]][number]
        drawn = random.Random(f'{self._seed} {self._split} {index}')
        if self._split == 'train':
            which = drawn.randrange(len(self._lengths))
        draws = Draws(
            drawn, np.random.RandomState(drawn.getrandbits(32)), order=drawn.getrandbits(32)
        )
        number = self._numbers[drawn.randrange(len(self._numbers))]
        return self._streams[self._lengths[which]].another(draws, number)


class Documents(Sequence[tuple[Piece, ...]]):
    """Samples with their answers, in pieces; the answer alone is scored, part by part as RULER does."""

    def __init__(self, samples: Samples):
        """Writes nothing yet."""
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Piece, ...]:  # type: ignore[override]  # no slices
        sample, family = self._samples[index], self._samples.family
        asked, parts = sample.text.rindex(family.question), family.parts(sample)
        answers = [f' {family.written(parts[:count])}' for count in range(1, len(parts) + 1)]
        return (
            Piece(sample.text[:asked], READ),
            Piece(sample.text[asked:] + sample.prefix, READ),
            Piece(answers[-1], ANSWER, tuple(map(len, answers))),
        )


def _texts(data: Any, split: str) -> Source:
    """Documents to learn a vocabulary from."""
    samples = Samples(data, split, lambda text: len(text.encode()) // LONG_TOKEN)
    return First(PieceTexts(Documents(samples)), max(LEARNT_FROM // data.task.lengths[-1], 1))


def samples_of(data: Any, split: str, tokenizer: Tokenizer) -> Samples:
    """The samples of a split for a tokenizer; errors as in `Samples`."""
    return Samples(data, split, lambda text: len(tokenizer.encode(text.encode())))


def _prompts(data: Any, tokenizer: Tokenizer) -> Iterator[Prompts]:
    """The test split, a length after another, with the fields of the released files."""
    for length in data.task.lengths:
        one = data.copy_and_resolve_references()
        one.task.lengths = (length,)
        samples = samples_of(one, 'test', tokenizer)
        lines = (
            dict(index=i, input=each.text, answer_prefix=each.prefix, outputs=each.outputs)
            for i, each in enumerate(samples)
        )
        match = 'part' if isinstance(samples.family, Reading) else 'all'
        yield Prompts(
            f'ruler_{data.task.name}_{length}', lines, samples.family.generated,
            f'longmem_jax.data.sets.ruler.score:string_match_{match}',
        )  # fmt: skip


SOURCE = DataSource(
    _texts,
    lambda data, split, tokens: PieceCorpus(Documents(samples_of(data, split, tokens)), tokens),
    check,
    sampled=False,
    players=lambda data, tokenizer: players(family_of(data), tokenizer),
    prompts=_prompts,
)
