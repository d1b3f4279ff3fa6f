"""Multi-query associative recall (MQAR; Arora et al., 2023, "Zoology").

A document lists pairs of a key and a value, then asks for every key once, among filler. Most questions
come soon after the list: the probability of a place falls with a power of its distance from the list.
The value is the target at the position of the question and is not shown, so one answer does not help
the next. Keys and values of a document are all different. A document is as long as a model reads it in
any number of segments, so pairs in one segment are asked for in later ones.

With `distances`, which the paper does not have, filler stands between the list and the first question.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.recall import between
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
    # More words, of the filler of `distances`; 0 = blanks, also if not given.
    num_fillers=(0, 10_000),
)


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`.

    `sizes` are pairs of numbers: ((length, key-value pairs), ...). `distances` are tokens between the
    list and the first question, which are not counted in the length, in rising order; (0,) if not given.
    """
    others = {name: settings[name] for name in settings if name not in ('sizes', 'distances')}
    problems = of_section({'num_fillers': 0} | others, FIELDS)
    distances = settings.get('distances', (0,))
    try:
        rising = as_distances(settings)
    except (TypeError, ValueError):
        rising = ()
    if not rising or min(rising) < 0 or list(rising) != sorted(set(rising)):
        problems.append(
            f'distances = {distances}: must be rising numbers in a tuple, such as (0, 256)'
        )
    given = settings.get('sizes')
    try:
        sizes = as_sizes(given)
    except (TypeError, ValueError):
        sizes = ()
    if not sizes:
        message = 'must be (length, pairs), each in a tuple, such as ((64, 4), (128, 8))'
        return [*problems, f'sizes = {given}: {message}']
    if problems:
        return problems
    most = settings['num_words'] // 2 - 1
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
    """`sizes` as numbers."""
    return tuple((int(length), int(pairs)) for length, pairs in given)


def as_distances(settings: Any) -> tuple[int, ...]:
    """`distances` as numbers."""
    return tuple(int(distance) for distance in settings.get('distances', (0,)))


def greatest_distance(settings: Any) -> int:
    """Tokens from the first pair to the last place of a question."""
    longest = max(length for length, _ in as_sizes(settings['sizes']))
    return longest + as_distances(settings)[-1] - 2


def vocabulary(settings: Any) -> Vocabulary:
    """The blank, keys, values and fillers."""
    half = settings['num_words'] // 2
    keys = [f'k{number}' for number in range(1, half)]
    values = [f'v{number}' for number in range(half, settings['num_words'])]
    fillers = [f'f{number}' for number in range(settings.get('num_fillers', 0))]
    return Vocabulary(('_', *keys, *values, *fillers), '_')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the key, where its answer is due; see `registry.Task`."""
    return asked


def _look_up(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The value that first follows the key in what was seen; any value otherwise."""
    half = settings['num_words'] // 2
    chances = _any_of_all(settings, asked)
    for row, (place, first) in enumerate(zip(asked, begin, strict=True)):
        seen = inputs[first:place]
        told = np.flatnonzero((seen[:-1] == inputs[place]) & (seen[1:] >= half))
        if len(told):
            chances[row] = 0.0
            chances[row, seen[told[0] + 1]] = 1.0
    return chances


def _any_value(
    settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray
) -> np.ndarray:
    """Any value that was seen; any value of all if none was."""
    words, half = settings['num_words'], settings['num_words'] // 2
    chances = _any_of_all(settings, asked)
    for row, (place, first) in enumerate(zip(asked, begin, strict=True)):
        seen = inputs[first:place]
        values = np.unique(seen[(seen >= half) & (seen < words)])
        if len(values):
            chances[row] = 0.0
            chances[row, values] = 1 / len(values)
    return chances


def _any_of_all(settings: Any, asked: np.ndarray) -> np.ndarray:
    """Equal chances of all values, float [asked, words]."""
    words, half = settings['num_words'], settings['num_words'] // 2
    chances = np.zeros((len(asked), vocabulary(settings).vocab_size))
    chances[:, half:words] = 1 / (words - half)
    return chances


RULES = {'look up': _look_up, 'any value': _any_value}


class Mqar(Drawn):
    """The documents of a split as a corpus; see `data.corpus.Corpus`.

    Training draws a size uniformly from `sizes`, and a distance between the smallest and the largest so
    that every doubling is as frequent; evaluation cycles through both. Every answer is one token, so
    accuracy and exact match are the same: the share of all questions answered.
    """

    vocabulary = staticmethod(vocabulary)

    def __init__(self, settings: Any, split: str, seed: int):
        """Draws nothing yet; `settings` is `config.data.task`."""
        super().__init__(settings, split, seed)
        self._sizes, self._distances = as_sizes(settings['sizes']), as_distances(settings)

    def _draw(self, index: int) -> tuple[np.random.Generator, int, int, int]:
        """Generator of a document, its length without the distance, its pairs, and the distance."""
        random = self._random(index)
        drawn, distances = int(random.integers(len(self._sizes))), self._distances
        if self._split != 'train':
            cycle, drawn = divmod(index, len(self._sizes))
            return random, *self._sizes[drawn], distances[cycle % len(distances)]
        distance = between(random, distances[0], distances[-1]) if distances[-1] else 0
        return random, *self._sizes[drawn], distance

    def __getitem__(self, index: int) -> TokenizedDocument:
        settings, (random, length, pairs, distance) = self._settings, self._draw(index)
        words = settings['num_words']
        keys = random.choice(np.arange(1, words // 2), pairs, replace=False)
        values = random.choice(np.arange(words // 2, words), pairs, replace=False)
        places = length // 2 - pairs * settings['passes']
        asked = by_power(random, places, settings['power'], pairs)
        fill = _filler(random, settings['fill'], keys, words, length)
        fillers = settings.get('num_fillers', 0)
        gap = words + random.integers(0, fillers, distance) if fillers else np.zeros(distance)
        return lay_out(keys, values, asked, fill, settings['passes'], gap)

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        drawn = [self._draw(index) for index in range(self._count)]
        return np.asarray([length + distance for _, length, _, distance in drawn], np.int64)


def lay_out(
    keys: np.ndarray,
    values: np.ndarray,
    asked: np.ndarray,
    fill: np.ndarray,
    passes: int,
    gap: np.ndarray | tuple[()] = (),
) -> TokenizedDocument:
    """A document of what was drawn.

    Args:
      keys, values: int [pairs], in the order of the list.
      asked: of every key, where its question is, in pairs of tokens after the list, int [pairs].
      fill: int32 [length], the words where neither list nor question is.
      passes: times that the list is given.
      gap: filler between list and questions.
    """
    listed = np.tile(np.stack([keys, values], axis=1).reshape(-1), passes)
    inputs = fill.copy()
    inputs[: len(listed)] = listed
    inputs = np.insert(inputs, len(listed), gap)
    places = len(listed) + 2 * asked + len(gap)
    inputs[places] = keys
    tokens, scored = np.zeros(inputs.shape, np.int32), np.zeros(inputs.shape, np.uint8)
    tokens[places], scored[places] = values, 2
    return TokenizedDocument(tokens=tokens, num_bytes=0, inputs=inputs, scored=scored)


def by_power(random: np.random.Generator, places: int, power: float, count: int) -> np.ndarray:
    """`count` different numbers below `places`; that of number i is ~ (i + 1) ** (power - 1)."""
    return random.choice(places, count, replace=False, p=chances_by_power(places, power))


def chances_by_power(places: int, power: float) -> np.ndarray:
    """The chances of the places, float64 [places]."""
    weights = np.arange(1, places + 1) ** (power - 1.0)
    return weights / weights.sum()


def _filler(
    random: np.random.Generator, fill: str, keys: np.ndarray, words: int, length: int
) -> np.ndarray:
    """The filler between questions, int32 [length]."""
    if fill == 'blank':
        return np.zeros((length,), np.int32)
    if fill == 'random':
        return random.integers(0, words, length).astype(np.int32)
    return random.choice(np.setdiff1d(np.arange(1, words), keys), length).astype(np.int32)
