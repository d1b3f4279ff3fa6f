"""Passkey retrieval in prose (Mohtashami and Jaggi, 2023): a key is given in a book and asked for later.

A document is a passage of a text of `config.data.path`, the key, another passage, and the question;
only the answer is scored. The distance is the number of characters of the passage between key and
question, so that it is the same for every vocabulary. Of several keys each follows a passage, and has a
name; after the last passage all are asked for, in any order. The texts are those of the split.
`data.tasks` has the same task in tokens without meaning, and rules that look the key up.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longmem_jax.data.documents import SPLITS
from longmem_jax.data.sets.pieces import ANSWER, READ, Piece, source_of
from longmem_jax.data.tasks.recall import between
from longmem_jax.data.text_files import TextFiles
from longmem_jax.errors import UsageError
from longmem_jax.problems import of_series

GIVEN = '\n\nThe pass key{1} is {0}. Remember it: {0} is the pass key{1}.\n\n'
ASKED = '\n\nWhat is the pass key{0}? The pass key{0} is'
NAMES = (
    'Alice', 'Bruno', 'Clara', 'David', 'Esther', 'Felix', 'Greta', 'Hugo', 'Irene', 'Jonas', 'Karin',
    'Louis', 'Marta', 'Nils', 'Olga', 'Peter',
)  # fmt: skip
FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    answer_length=(1, 1000),  # digits of a key
    before=(0, 10**8),  # most characters of prose before a key
    num_keys=(1, len(NAMES)),
)
OF_EARLIER_RUNS = dict(num_keys=1)  # they have no such field


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `distances`, in characters, must be in rising order."""
    whole = OF_EARLIER_RUNS | dict(settings)
    return of_series(whole, FIELDS, 'distances', 0, 'characters, such as (100, 400, 1600)')


def digits(random: np.random.Generator, number: int) -> str:
    """Random digits."""
    return ''.join(map(str, random.integers(0, 10, number)))


class _Documents(Sequence[Any]):
    """The documents of a split; training draws distances, evaluation cycles through them.

    Training's are even in their logarithm, from the smallest to the largest.
    """

    def __init__(self, data: Any, split: str):
        """Reads the texts.

        Raises:
          UsageError: no texts, or none as long as the largest distance.
        """
        self._settings = OF_EARLIER_RUNS | data.task.to_dict()
        self._split, self._seed = split, data.seed
        files = TextFiles(data.path, split, data.documents, tuple(data.fractions), data.text_field)
        texts = (files[i].text.decode('utf-8', 'replace') for i in range(len(files)))
        needed = max(self._settings['distances'][-1], self._settings['before'])
        self._texts = [text for text in texts if len(text) > needed]
        if not self._texts:
            raise UsageError(
                f'config.data.task.distances: no text of the {split} split of {data.path} has more than '
                f'{needed:,} characters; use smaller distances, or longer texts.'
            )

    def __len__(self) -> int:
        return self._settings['documents' if self._split == 'train' else 'eval_documents']

    def __getitem__(self, index: int) -> tuple[Piece, ...]:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        settings, distances = self._settings, self._settings['distances']
        random = np.random.default_rng([self._seed, SPLITS.index(self._split), index])
        distance = distances[index % len(distances)]
        if self._split == 'train':
            distance = between(random, distances[0], distances[-1])
        number, length = settings['num_keys'], settings['answer_length']
        drawn = [
            (int(random.integers(0, settings['before'], endpoint=True)), digits(random, length))
            for _ in range(number)
        ]
        proses = [self._prose(random, before) for before, _ in drawn]
        prose = self._prose(random, distance)
        names = [''] if number == 1 else [f' of {name}' for name in random.permutation(NAMES)]
        keys = [(name, key) for name, (_, key) in zip(names, drawn, strict=False)]
        given = [
            Piece(prose + GIVEN.format(key, name), READ)
            for prose, (name, key) in zip(proses, keys, strict=True)
        ]
        asked = []
        for i in random.permutation(number) if number > 1 else (0,):
            name, key = keys[i]
            asked += [Piece(prose + ASKED.format(name), READ), Piece(f' {key}', ANSWER)]
            prose = ''
        return (*given, *asked)

    def _prose(self, random: np.random.Generator, length: int) -> str:
        """The given number of characters of any text."""
        text = self._texts[random.integers(len(self._texts))]
        start = int(random.integers(len(text) - length))
        return text[start : start + length]


SOURCE = source_of(_Documents, check, ngrams=False)
