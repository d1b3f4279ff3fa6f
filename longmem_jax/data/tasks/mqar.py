"""Multi-query associative recall (MQAR; Arora et al., 2023, "Zoology").

A document lists pairs of a key and a value, then asks for every key once, among filler. Most questions
come soon after the list: the probability of a place falls with a power of its distance from the list.
The value is the target at the position of the question and is not shown, so one answer does not help
the next. Keys and values of a document are all different. A document is as long as a model reads it in
any number of segments, so pairs in one segment are asked for in later ones.
"""

import ast
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import SPLITS
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.problems import of_section

# Between questions: any word, as released; any word but the document's keys; or one word for nothing.
FILLS = ('random', 'others', 'blank')
FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    num_words=(4, 10**6),  # the first half are keys, the second half values; word 0 is the blank
    power=(0.0, 1.0),  # of the distance, plus one; 1 = questions are spread evenly
    passes=(1, 100),  # times that the list of pairs is given
    fill=FILLS,
)


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `sizes` are pairs of numbers: ((length, key-value pairs), ...)."""
    problems = of_section({name: settings[name] for name in settings if name != 'sizes'}, FIELDS)
    given = settings.get('sizes')
    try:
        sizes = as_sizes(given)
    except (TypeError, ValueError, SyntaxError):
        sizes = ()
    if not sizes:
        message = 'must be (length, pairs), each in a tuple, such as ((64, 4), (128, 8))'
        return [*problems, f'sizes = {given}: {message}']
    if problems:
        return problems
    most = (settings['num_words'] - 1) // 2
    for length, pairs in sizes:
        needed = 2 * pairs * (settings['passes'] + 1)
        if pairs < 1 or length % 2 or length < needed:
            problems.append(
                f'sizes = {given}: {pairs} pairs in {length} tokens; there must be at least one pair, '
                f'and an even number of tokens, at least {needed}'
            )
        elif pairs > most:
            problems.append(
                f'sizes = {given}: {pairs} pairs need as many keys; num_words = '
                f'{settings["num_words"]} has {most}'
            )
    return problems


def as_sizes(given: Any) -> tuple[tuple[int, int], ...]:
    """`sizes` as numbers; also of text such as '((64, 4),)', which a flag gives."""
    sizes = ast.literal_eval(given) if isinstance(given, str) else given
    return tuple((int(length), int(pairs)) for length, pairs in sizes)


def greatest_distance(settings: Any) -> int:
    """Tokens from the first pair to the last place of a question."""
    return max(length for length, _ in as_sizes(settings['sizes'])) - 2


def vocabulary(settings: Any) -> Vocabulary:
    """The blank, keys and values."""
    half = settings['num_words'] // 2
    keys = [f'k{number}' for number in range(1, half)]
    values = [f'v{number}' for number in range(half, settings['num_words'])]
    return Vocabulary(('_', *keys, *values), '_')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the key, where its answer is due; see `registry.Task`."""
    return asked


def _look_up(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The value that first follows the key in what was seen; any value otherwise."""
    words, half = settings['num_words'], settings['num_words'] // 2
    chances = np.zeros((len(asked), words))
    chances[:, half:] = 1 / (words - half)
    for row, (place, first) in enumerate(zip(asked, begin, strict=True)):
        seen = inputs[first:place]
        told = np.flatnonzero((seen[:-1] == inputs[place]) & (seen[1:] >= half))
        if len(told):
            chances[row] = 0.0
            chances[row, seen[told[0] + 1]] = 1.0
    return chances


RULES = {'look up': _look_up}


class Mqar:
    """The documents of a split as a corpus; see `data.corpus.Corpus`.

    Training draws a size uniformly from `sizes`; evaluation cycles through them. Every answer is one
    token, so accuracy and exact match are the same: the share of all questions answered.
    """

    def __init__(self, settings: Any, split: str, seed: int):
        """Draws nothing yet; `settings` is `config.data.task`."""
        self._settings, self._seed, self._split = settings, seed, split
        self._count = settings['documents' if split == 'train' else 'eval_documents']
        self._sizes = as_sizes(settings['sizes'])
        self.tokenizer = vocabulary(settings)

    def __len__(self) -> int:
        return self._count

    def _draw(self, index: int) -> tuple[np.random.Generator, int, int]:
        """Generator of a document, its length, and its number of pairs."""
        random = np.random.default_rng([self._seed, SPLITS.index(self._split), index])
        drawn = int(random.integers(len(self._sizes)))
        length, pairs = self._sizes[drawn if self._split == 'train' else index % len(self._sizes)]
        return random, length, pairs

    def __getitem__(self, index: int) -> TokenizedDocument:
        settings, (random, length, pairs) = self._settings, self._draw(index)
        words = settings['num_words']
        keys = random.choice(np.arange(1, words // 2), pairs, replace=False)
        values = random.choice(np.arange(words // 2, words), pairs, replace=False)
        listed = np.tile(np.stack([keys, values], axis=1).reshape(-1), settings['passes'])
        places = (length - len(listed)) // 2
        asked = len(listed) + 2 * by_power(random, places, settings['power'], pairs)
        inputs = _filler(random, settings['fill'], keys, words, length)
        inputs[: len(listed)] = listed
        inputs[asked] = keys
        tokens, scored = np.zeros((length,), np.int32), np.zeros((length,), np.uint8)
        tokens[asked], scored[asked] = values, 2
        return TokenizedDocument(tokens=tokens, num_bytes=0, inputs=inputs, scored=scored)

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        return np.asarray([self._draw(index)[1] for index in range(self._count)], np.int64)


def by_power(random: np.random.Generator, places: int, power: float, count: int) -> np.ndarray:
    """`count` different numbers below `places`; that of number i is ~ (i + 1) ** (power - 1)."""
    weights = np.arange(1, places + 1) ** (power - 1.0)
    return random.choice(places, count, replace=False, p=weights / weights.sum())


def _filler(
    random: np.random.Generator, fill: str, keys: np.ndarray, words: int, length: int
) -> np.ndarray:
    """The filler between questions, int32 [length]."""
    if fill == 'blank':
        return np.zeros((length,), np.int32)
    if fill == 'random':
        return random.integers(0, words, length).astype(np.int32)
    return random.choice(np.setdiff1d(np.arange(1, words), keys), length).astype(np.int32)
