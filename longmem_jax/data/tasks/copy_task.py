"""Copy over an extremely long gap: how many A's were at the beginning? (Sukhbaatar et al., 2021).

A document is a run of A's, up to `span` B's, a question mark, the same number of A's, and an end token.
Only the answer is scored, and it counts as right if all of it is right. The paper gives neither counts
nor lengths: runs of 1 to 4 and uniformly distributed gaps are our reading of its numbers.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary

FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    span=(1, 10**8),  # the longest gap, tokens
    max_count=(1, 1000),  # the longest run
)
WORDS = ('<begin>', 'A', 'B', '?', '<end>')


def greatest_distance(settings: Any) -> int:
    """The longest gap, tokens."""
    return int(settings['span'])


def vocabulary(settings: Any) -> Vocabulary:
    """Five words."""
    return Vocabulary(WORDS, '<begin>')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the question mark; see `registry.Task`."""
    return np.full(len(asked), np.flatnonzero(inputs == 3)[0])


def _count(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The number of A's if the document's beginning was seen; else the longest run."""
    question = questions(settings, inputs, asked)
    # The first input is the begin token.
    known = (inputs[: question[0]] == 1).sum()
    count = np.where(begin == 0, known, settings['max_count'])
    chances = np.zeros((len(asked), len(WORDS)))
    chances[np.arange(len(asked)), np.where(asked - question < count, 1, 4)] = 1.0
    return chances


RULES = {'count': _count}


class Copy(Drawn):
    """The documents of a split as a corpus; see `data.corpus.Corpus`."""

    vocabulary = staticmethod(vocabulary)

    def _draw(self, index: int) -> tuple[int, int]:
        """Number of A's and length of the gap of a document."""
        random = self._random(index)
        count = int(random.integers(1, self._settings['max_count'], endpoint=True))
        return count, int(random.integers(1, self._settings['span'], endpoint=True))

    def __getitem__(self, index: int) -> TokenizedDocument:
        count, gap = self._draw(index)
        run, end = [1] * count, [4]
        tokens = np.asarray([*run, *[2] * gap, 3, *run, *end], np.int32)
        scored = np.zeros(tokens.shape, np.uint8)
        scored[-count - 1 :] = 1
        scored[-1] = 2
        return TokenizedDocument(tokens=tokens, num_bytes=0, scored=scored)

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        sizes = (self._draw(index) for index in range(self._count))
        return np.asarray([2 * count + gap + 2 for count, gap in sizes], np.int64)
