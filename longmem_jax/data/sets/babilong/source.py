"""BABILong's documents: facts among sentences of novels, then a question and its answer.

A document has the tokens of its length less `prompt`, which the benchmark keeps for its instructions;
then come the question and the answer, of which the answer with its full stop is scored. Every fact has
a place between two sentences that is drawn with replacement; their order is kept. A question is left
out if there is more than one fact for eight tokens, as in the benchmark, or if its facts do not fit.
Length 0 has facts only.

Not as released: every document draws its story and its sentences by itself, so that each can be made
alone; the novels are those of the split.
"""

import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import Document
from longmem_jax.data.sets.babilong.novels import Background, Novels, novels
from longmem_jax.data.sets.babilong.players import ANSWER, QUESTION, players, said
from longmem_jax.data.sets.babilong.stories import STORIES, Sample, story
from longmem_jax.data.sets.babilong.streamed import Part, Streamed, part
from longmem_jax.data.sets.babilong.text import asked, written
from longmem_jax.data.sources import DataSource, Prompts
from longmem_jax.data.tokenizers import Bytes, Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.problems import of_series

FIELDS = dict(
    name=tuple(STORIES),
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    prompt=(0, 10**6),  # tokens of a length that are kept for instructions; 300 in the benchmark
)
TOKENS_PER_FACT = 8
FACTS = 50  # tokens of a document of length 0, about
STORIES_TRIED, LEAST_SHARE = 200, 0.02  # of their questions, this share must fit in a length
GENERATED = 24  # tokens of a written answer, at most
LEARNT_FROM, LEARNT_BYTES = 300, 1 << 14  # documents, and bytes of each, for a vocabulary


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `lengths`, in tokens, must be in rising order."""
    words = 'tokens of a document, such as (1024, 4096)'
    if problems := of_series(settings, FIELDS, 'lengths', 0, words):
        return problems
    lengths = settings['lengths']
    if 0 < (least := min(filter(None, lengths), default=0)) <= settings['prompt']:
        problems.append(
            f'lengths = {lengths}: {settings["prompt"]} tokens of each are for the prompt '
            f'(config.data.task.prompt), and {least} leave none for the facts'
        )
    return problems


class _Context:
    """Facts among sentences: a part of a document, read as `streamed.Part` says."""

    def __init__(self, novels: Novels, key: str, facts: list[np.ndarray], size: int):
        """`size` tokens of sentences, drawn by a key."""
        self._facts, self._key = facts, key
        self._background = Background(novels, key, size)
        self.length = size + sum(map(len, facts))

    @functools.cached_property
    def _all(self) -> Streamed:
        draws, background = random.Random(f'{self._key} gaps'), self._background
        gaps = sorted(draws.randint(0, background.count) for _ in self._facts)
        parts, begin = list[Part](), 0
        for fact, start in zip(self._facts, background.starts(gaps), strict=True):
            parts += [self._sentences(begin, start), part(fact)]
            begin = start
        return Streamed([*parts, self._sentences(begin, self.length)], np.int32)

    def _sentences(self, begin: int, end: int) -> Part:
        end = min(end, self.length - sum(map(len, self._facts)))
        return Part(end - begin, lambda a, b: self._background.read(begin + a, begin + b))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens, int32 [stop - start]."""
        return self._all[start:stop]


def _least_tokens(sample: Sample) -> int:
    """Tokens that a document must have for the facts of a question, which is counted too."""
    return TOKENS_PER_FACT * (len(sample.facts) + 1)


class Documents:
    """The documents of a split, as `data.corpus.AnyCorpus`; none is held whole.

    Test and validation cycle through the lengths. Training draws them, about as many tokens of each, so
    that most documents are short: from these looking up is learned first.
    """

    def __init__(self, data: Any, split: str, tokenizer: Tokenizer, bytes_per_token: int = 1):
        """Draws some questions.

        Args:
          bytes_per_token: lengths are multiplied by this, for the tokenizer `Bytes`.

        Raises:
          UsageError: no texts, or a length in which hardly any question fits.
        """
        self.tokenizer, self._split, self._seed = tokenizer, split, data.seed
        self._task, task = data.task.name, data.task
        self._bytes_per_token = bytes_per_token
        self._prompt = task.prompt * bytes_per_token
        self._lengths = tuple(length * bytes_per_token for length in task.lengths)
        self._weights = [1 / (length + FACTS) for length in self._lengths]
        # Facts and questions are few, and are met again in every document.
        self._encode = functools.cache(lambda text: self.tokenizer.encode(text.encode()))
        self._size = task.documents if split == 'train' else task.eval_documents
        where = f"config.data.path = '{data.path}', {split}"
        source = novels(data.path, split, data.fractions, data.text_field)
        self._novels = Novels(source, tokenizer, where)
        if any(self._lengths):
            self._require(min(filter(None, self._lengths)))

    def __len__(self) -> int:
        return self._size

    def _key(self, index: int) -> str:
        return f'{self._seed} {self._split} {index}'

    def _require(self, length: int) -> None:
        """Raises `UsageError` if hardly any question of the task fits in a length."""
        draws, room, needs = random.Random(0), length - self._prompt, []
        for _ in range(STORIES_TRIED):
            sample = draws.choice(story(self._task, draws))
            tokens = sum(map(len, self._facts(sample, draws)))
            needs.append(max(tokens, _least_tokens(sample)))
        if np.mean(np.asarray(needs) <= room) < LEAST_SHARE:
            # In the tokens of the config, also while there is no vocabulary to count them with.
            unit, half = self._bytes_per_token, int(np.median(needs)) + self._prompt
            one_fits = f'with this tokenizer half of them do in {half:,}'
            if unit > 1:
                one_fits = (
                    f'if a token has {unit} bytes, as is assumed until the vocabulary is learned, half '
                    f'of them do in about {-(-half // unit):,}'
                )
            raise UsageError(
                f'config.data.task.lengths: hardly any question of {self._task} fits in '
                f'{length // unit:,} tokens, of which {self._prompt // unit} are for the prompt; '
                f'{one_fits}.'
            )

    def _facts(self, sample: Sample, draws: random.Random) -> list[np.ndarray]:
        """Tokens of facts as sentences."""
        return [self._encode(f' {written(fact, draws)}') for fact in sample.facts]

    def _drawn(self, draws: random.Random, length: int) -> tuple[Sample, list[np.ndarray]]:
        """A question whose facts fit, and their tokens."""
        room = length - self._prompt
        while True:
            sample = draws.choice(story(self._task, draws))
            if length and _least_tokens(sample) > room:
                continue
            facts = self._facts(sample, draws)
            if not length or sum(map(len, facts)) <= room:
                return sample, facts

    def sample(self, index: int) -> tuple[Sample, list[np.ndarray], int]:
        """The question of a document, the tokens of its facts, and its length; errors as for lists."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        draws = random.Random(self._key(index))
        length = self._lengths[index % len(self._lengths)]
        if self._split == 'train':
            (length,) = draws.choices(self._lengths, self._weights)
        return *self._drawn(draws, length), length

    def __getitem__(self, index: int) -> TokenizedDocument:
        sample, facts, length = self.sample(index)
        size = max(length - self._prompt - sum(map(len, facts)), 0)
        context = _Context(self._novels, self._key(index), facts, size)
        question, answer = self._end(sample)
        scored = np.concatenate([np.zeros(len(question)), np.ones(len(answer))]).astype(np.uint8)
        scored[-1] = 2
        blank = Part(context.length, lambda start, stop: np.zeros((stop - start,), np.uint8))
        first = Part(context.length, context.read)
        tokens = Streamed([first, part(question), part(answer)], np.int32)
        marks = Streamed([blank, part(scored)], np.uint8)
        return TokenizedDocument(tokens, 0, scored=marks)  # type: ignore[arg-type]  # read alike

    def _end(self, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the question and of the answer."""
        question = [QUESTION, f' {asked(sample.question)}{ANSWER}']
        return np.concatenate([*map(self._encode, question)]), self._encode(said(sample.answer))

    def prompt(self, index: int) -> Streamed:
        """The tokens of a document up to its answer."""
        tokens: Any = self[index].tokens
        size = len(tokens) - len(self._end(self.sample(index)[0])[1])
        return Streamed([Part(size, lambda start, stop: tokens[start:stop])], np.int32)

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]; makes no sentences."""
        return np.fromiter(self._all_lengths(), np.int64)

    def _all_lengths(self) -> Iterator[int]:
        for index in range(len(self)):
            sample, facts, length = self.sample(index)
            context = length - self._prompt if length else sum(map(len, facts))
            yield context + sum(map(len, self._end(sample)))


class _Texts:
    """The beginnings of documents as text, to learn a vocabulary from."""

    def __init__(self, data: Any, split: str):
        """Errors as in `Documents`; a token is taken for four bytes."""
        self._documents = Documents(data, split, Bytes(), bytes_per_token=4)

    def __len__(self) -> int:
        return min(len(self._documents), LEARNT_FROM)

    def __getitem__(self, index: int) -> Document:
        tokens = self._documents[index].tokens
        ends = np.concatenate(
            [tokens[:LEARNT_BYTES], tokens[max(len(tokens) - 200, LEARNT_BYTES) :]]
        )
        return Document(f'document {index}', ends.astype(np.uint8).tobytes())


def _prompts(data: Any, tokenizer: Tokenizer) -> Iterator[Prompts]:
    """The test split, a length after another."""
    for length in data.task.lengths:
        one = data.copy_and_resolve_references()
        one.task.lengths = (length,)
        yield Prompts(
            f'babilong_{data.task.name}_{length}',
            _lines(Documents(one, 'test', tokenizer)),
            GENERATED,
            'longmem_jax.data.sets.babilong.text:label_match',
        )


def _lines(documents: Documents) -> Iterator[dict[str, Any]]:
    for index in range(len(documents)):
        sample = documents.sample(index)[0]
        text = documents.tokenizer.decode(documents.prompt(index)[:])
        yield dict(
            index=index,
            input=text.decode('utf-8', 'replace'),
            answer_prefix='',
            outputs=[sample.answer, asked(sample.question)],
        )


SOURCE = DataSource(
    _Texts,
    Documents,
    check,
    sampled=False,
    scores='longmem_jax.commands.babilong:score',
    players=lambda data, tokenizer: players(data.task.name, tokenizer),
    prompts=_prompts,
)
