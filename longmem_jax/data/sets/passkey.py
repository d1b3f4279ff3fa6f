"""Passkey retrieval in prose (Mohtashami and Jaggi, 2023): a key is given in a book and asked for later.

A document is a passage of a text of `config.data.path`, the key, another passage, and the question;
only the answer is scored. The distance is the number of characters of the passage between key and
question, so that it is the same for every vocabulary. The texts are those of the split. `data.tasks`
has the same task in tokens without meaning, and rules that look the key up.
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

GIVEN = '\n\nThe pass key is {0}. Remember it: {0} is the pass key.\n\n'
ASKED = '\n\nWhat is the pass key? The pass key is'
FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    answer_length=(1, 1000),  # digits of the key
    before=(0, 10**8),  # most characters of prose before the key
)


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `distances`, in characters, must be in rising order."""
    return of_series(settings, FIELDS, 'distances', 0, 'characters, such as (100, 400, 1600)')


class _Documents(Sequence[Any]):
    """The documents of a split; training draws distances, evaluation cycles through them.

    Training's are even in their logarithm, from the smallest to the largest.
    """

    def __init__(self, data: Any, split: str):
        """Reads the texts.

        Raises:
          UsageError: no texts, or none as long as the largest distance.
        """
        self._settings, self._split, self._seed = data.task.to_dict(), split, data.seed
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
        before = int(random.integers(0, settings['before'], endpoint=True))
        key = ''.join(map(str, random.integers(0, 10, settings['answer_length'])))
        first, second = self._prose(random, before), self._prose(random, distance)
        return (
            Piece(first + GIVEN.format(key), READ),
            Piece(second + ASKED, READ),
            Piece(f' {key}', ANSWER),
        )

    def _prose(self, random: np.random.Generator, length: int) -> str:
        """The given number of characters of any text."""
        text = self._texts[random.integers(len(self._texts))]
        start = int(random.integers(len(text) - length))
        return text[start : start + length]


SOURCE = source_of(_Documents, check, ngrams=False)
