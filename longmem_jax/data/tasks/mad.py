"""MAD's six synthetic tasks, each for one skill of a layer (Poli et al., 2024, Sec. 3.1).

- recall: pairs of a key and a value, in which keys come again; asked for is the value of a key that has
  been shown. *Noisy* recall is the same with `noise`: pairs of words that mean nothing.
- fuzzy: recall with keys and values of one to `key_length` and `value_length` words.
- compression: words, a mark, and the words again from blanks.
- memorization: keys, each followed by a mark, where its value is due. The values are the same in all
  documents, so parameters must learn them.
- copying: words to copy among blanks, a mark, and these words again from blanks.

Three faults of the released generators are not here. Copying drew its blanks from the global generator
of numpy, so a seed did not repeat it. Compression asked for the noise too. Fuzzy recall drew a place
for the key of the last question that could lie after the last pair, so 2.6 % of those keys were never
shown.

The paper decodes a compressed text from the vector of the mark by a feed-forward network. Here a
language model writes it after the mark: with segments of `length`, all of it must pass through the
state.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.problems import at_least, of_section

KINDS = ('recall', 'fuzzy', 'compression', 'memorization', 'copying')
FIELDS = dict(
    kind=KINDS,
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    num_words=(4, 10**6),  # of all kinds, noise and marks included
    length=(4, 10**8),  # tokens; those of compression are read, and as many are written
    num_noise=(0, 10**6),  # words that are noise
    noise=(0.0, 0.99),  # share of noise
    key_length=(1, 8),  # fuzzy: most words of a key, and of a value
    value_length=(1, 8),
    num_copied=(1, 10**6),  # copying: words to copy
    train_on_text=bool,  # recall, fuzzy: learn from every token, or from answers only
)
FACTS = 12_345  # seed of the values of memorization


class Words:
    """The ids of every kind of word: keys, then values, noise, and two marks.

    Attributes:
      keys, values: of recall, fuzzy recall and memorization; of the other two all words are `values`.
      noise: words that mean nothing.
      blank, mark: where there is no word; before an answer. Tasks that have none have them beyond
        `num_words`.
    """

    def __init__(self, settings: Any):
        kind, count = settings['kind'], settings['num_words']
        marks = dict(recall=0, fuzzy=1, compression=1, memorization=1, copying=2)[kind]
        plain = count - settings['num_noise'] - marks
        half = plain // 2 if kind in ('recall', 'fuzzy', 'memorization') else 0
        self.keys, self.values = np.arange(half), np.arange(half, plain)
        self.noise = np.arange(plain, count - marks)
        self.blank = count - 1 if kind == 'fuzzy' else count - 2 if kind == 'copying' else count
        self.mark = count + 1 if kind in ('recall', 'fuzzy') else count - 1
        self.plain = plain

    def of_values(self) -> np.ndarray:
        """The value of every key of memorization."""
        random = np.random.default_rng(FACTS)
        random.shuffle(keys := self.keys.copy())
        random.shuffle(values := self.values.copy())
        return values[: len(keys)][np.argsort(keys)]


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `FIELDS` lists what is allowed."""
    problems = of_section(settings, FIELDS)
    if problems:
        return problems
    kind, length, words = settings['kind'], settings['length'], Words(settings)
    if settings['noise'] and not settings['num_noise']:
        problems.append(f'noise = {settings["noise"]}: needs num_noise of at least 1, such as 16')
    if settings['noise'] and kind == 'copying':
        problems.append(f'noise = {settings["noise"]}: copying has blanks as noise; set it to 0.0')
    if kind == 'fuzzy':
        longest = settings['key_length'], settings['value_length']
        if len(words.keys) < longest[0] or len(words.values) < longest[1]:
            problems.append(
                f'num_words = {settings["num_words"]}: {max(len(words.keys), 0)} keys and '
                f'{len(words.values)} values, which must be different words of up to {longest}'
            )
        problems += at_least(settings, 3 * sum(longest), 'length')
    elif len(words.values) < 2 or (
        kind != 'compression' and kind != 'copying' and not len(words.keys)
    ):
        problems.append(
            f'num_words = {settings["num_words"]}: too few for {settings["num_noise"]} of noise and the '
            'marks; at least 4 more are needed'
        )
    if kind in ('recall', 'memorization') and length % 2:
        problems.append(f'length = {length}: must be even, since it is made of pairs')
    if kind == 'copying' and length < 2 * settings['num_copied'] + 2:
        problems.append(
            f'length = {length}: {settings["num_copied"]} words to copy need at least '
            f'{2 * settings["num_copied"] + 2} tokens'
        )
    return problems


def greatest_distance(settings: Any) -> int:
    """Tokens from a word to its last question, at most; a fact of memorization is not in the text."""
    kind, length = settings['kind'], int(settings['length'])
    return dict(compression=length, memorization=1).get(kind, length - 2)


def vocabulary(settings: Any) -> Vocabulary:
    """Keys `k0 ...`, values `v0 ...`, noise `n0 ...`, the blank and the mark."""
    words = Words(settings)
    names = [f'k{i}' for i in range(len(words.keys))] + [f'v{i}' for i in range(len(words.values))]
    names += [f'n{i}' for i in range(len(words.noise))]
    marks = sorted([(words.blank, '_'), (words.mark, '?')])
    return Vocabulary((*names, *(name for _, name in marks)), '_')


class Mad(Drawn):
    """The documents of a split as a corpus; see `data.corpus.Corpus`.

    Outside of training, keys of fuzzy recall have `key_length` words. An answer is a value, or all words
    after the mark; accuracy counts words.
    """

    vocabulary = staticmethod(vocabulary)

    def __init__(self, settings: Any, split: str, seed: int):
        """Draws nothing yet; `settings` is `config.data.task`."""
        super().__init__(settings, split, seed)
        self._words = Words(settings)

    def __getitem__(self, index: int) -> TokenizedDocument:
        random = self._random(index)
        kind, training = self._settings['kind'], self._split == 'train'
        if kind in ('recall', 'fuzzy'):
            text, asked = (
                self._recall(random) if kind == 'recall' else self._fuzzy(random, training)
            )
            inputs, tokens = text[:-1], text[1:]
            # The last word of every answer is followed by a word that is not of it.
            ends = asked & ~np.concatenate([asked[1:], [False]])
            text_too = training and self._settings['train_on_text']
            scored = ((asked | text_too) + 1 * ends)[1:]
        else:
            draw = dict(compression=self._compress, copying=self._copy, memorization=self._remember)
            inputs, tokens = draw[kind](random)
            asked = tokens >= 0
            ends = asked if kind == 'memorization' else np.flatnonzero(asked)[-1:]
            scored = asked.astype(np.uint8)
            scored[ends] = 2
            tokens = np.maximum(tokens, 0)
        return TokenizedDocument(
            tokens=tokens.astype(np.int32),
            num_bytes=0,
            inputs=inputs.astype(np.int32),
            scored=scored.astype(np.uint8),
        )

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        length = self._settings['length']
        one = dict(recall=length - 1, compression=2 * length - 1).get(
            self._settings['kind'], length
        )
        return np.full((self._count,), one, np.int64)

    def _noise(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Which of `count` things are noise, bool [count]; at least one is not."""
        noise = random.random(count) < self._settings['noise']
        noise[random.integers(count)] = False
        return noise

    def _recall(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A text, and which of its words are answers: both [length]."""
        words, count = self._words, self._settings['length'] // 2 - 1
        noise = self._noise(random, count)
        keys = random.choice(words.keys, count)
        values = random.choice(words.values, len(words.keys))  # of this document
        shown, first = np.unique(np.where(noise, -1, keys), return_index=True)
        last = random.choice(shown[shown >= 0])
        pairs = np.stack([keys, values[keys]], axis=1)
        if noise.any():
            pairs[noise] = random.choice(words.noise, (noise.sum(), 2))
        again = ~noise
        again[first] = False
        asked = np.zeros((count + 1, 2), bool)
        asked[:, 1] = [*again, True]
        return np.concatenate([pairs, [[last, values[last]]]]).reshape(-1), asked.reshape(-1)

    def _fuzzy(self, random: np.random.Generator, training: bool) -> tuple[np.ndarray, np.ndarray]:
        """A text, and which of its words are answers: both [length + 1], filled with blanks in front."""
        words, settings = self._words, self._settings
        longest = settings['key_length'], settings['value_length']

        def sizes() -> tuple[int, int]:
            key, value = (int(random.integers(1, most, endpoint=True)) for most in longest)
            return key if training else longest[0], value

        def draw(ids: np.ndarray, size: int) -> tuple[int, ...]:
            return tuple(random.choice(ids, size, replace=False).tolist())

        text: list[int] = []
        asked: list[bool] = []
        known: dict[tuple[int, ...], tuple[int, ...]] = {}

        def add(key: tuple[int, ...]) -> None:
            text.extend((*key, *values[key]))
            asked.extend([False] * len(key) + [key in known] * len(values[key]))
            known[key] = values[key]

        size = sizes()
        last = draw(words.keys, size[0])
        values = {last: draw(words.values, size[1])}
        room = settings['length'] - sum(size) - sum(longest)
        # Where the key of the last question is shown, and from where on there is surely another pair.
        place = int(random.integers(0, room - sum(longest), endpoint=True))
        while len(text) < room:
            size = sizes()
            if len(text) >= place and last not in known:
                add(last)
            elif random.random() < settings['noise']:
                text.extend(random.choice(words.noise, sum(size)).tolist())
                asked.extend([False] * sum(size))
            else:
                key = draw(words.keys, size[0])
                values.setdefault(key, draw(words.values, size[1]))
                add(key)
        add(last)
        blanks = settings['length'] + 1 - len(text)
        return np.asarray([words.blank] * blanks + text), np.asarray([False] * blanks + asked)

    def _compress(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, and targets with -1 where there is none: both [2 length - 1]."""
        words, count = self._words, self._settings['length'] - 1
        text = random.choice(words.values, count)
        noise = self._noise(random, count)
        if noise.any():
            text[noise] = random.choice(words.noise, noise.sum())
        inputs = np.concatenate([text, [words.mark], np.full(count, words.blank)])
        return inputs, np.concatenate([np.full(count + 1, -1), np.where(noise, -1, text)])

    def _copy(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, and targets with -1 where there is none: both [length]."""
        words, count = self._words, self._settings['num_copied']
        text = random.choice(words.values, count)
        before = random.integers(0, count, self._settings['length'] - 2 * count - 1)
        read = np.insert(text, before, words.blank)  # none after the last word, as released
        inputs = np.concatenate([read, [words.mark], np.full(count, words.blank)])
        return inputs, np.concatenate([np.full(len(read) + 1, -1), text])

    def _remember(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, and targets with -1 where there is none: both [length]."""
        words, count = self._words, self._settings['length'] // 2
        keys, noise = random.choice(words.keys, count), self._noise(random, count)
        inputs = np.stack([keys, np.full(count, words.mark)], axis=1)
        if noise.any():
            inputs[noise] = random.choice(words.noise, (noise.sum(), 2))
        values = np.where(noise, -1, words.of_values()[keys])
        return inputs.reshape(-1), np.stack([np.full(count, -1), values], axis=1).reshape(-1)
