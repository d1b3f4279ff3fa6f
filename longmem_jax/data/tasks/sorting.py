"""Sorting by frequency: which of 20 tokens came most often? (Martins et al., 2022, Sec. 4.1).

A sequence is drawn from a mixture that drifts from one distribution to another, so early tokens matter
as much as late ones. After a separator follow the tokens by falling count; only these are scored. The
rules are those of the released generator: ties in order of first appearance, tokens that never occurred
last, in rising order.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary

FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    length=(1, 10**8),  # tokens to be counted
    num_tokens=(2, 1000),
)


def vocabulary(settings: Any) -> Vocabulary:
    """The tokens, the separator and the begin word: 22 for 20 tokens."""
    words = [f't{number}' for number in range(settings['num_tokens'])]
    return Vocabulary((*words, '<SEP>', '<begin>'), '<begin>')


def by_frequency(tokens: np.ndarray, num_tokens: int) -> np.ndarray:
    """All tokens, int [n] below `num_tokens`, by falling count, then by first appearance, then by
    number: int32 [num_tokens].
    """
    counts = np.bincount(tokens, minlength=num_tokens)
    first_index = np.full((num_tokens,), len(tokens))
    present, index = np.unique(tokens, return_index=True)
    first_index[present] = index
    return np.lexsort((np.arange(num_tokens), first_index, -counts)).astype(np.int32)


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the separator; see `registry.Task`."""
    return np.full(len(asked), np.flatnonzero(inputs == settings['num_tokens'])[0])


def _count(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The most frequent token of those seen that is not yet named; any unnamed one if none was seen."""
    num_tokens, words = settings['num_tokens'], vocabulary(settings).vocab_size
    chances = np.zeros((len(asked), words))
    separator = questions(settings, inputs, asked)[0]
    for first in np.unique(begin):
        seen = inputs[first:separator]
        seen = seen[seen < num_tokens]
        order = by_frequency(seen, num_tokens)
        for row in np.flatnonzero(begin == first):
            left = order[~np.isin(order, inputs[separator + 1 : asked[row] + 1])]
            left = left[:1] if len(seen) else left
            chances[row, left] = 1 / len(left)
    return chances


RULES = {'counts': _count}


class Sorting(Drawn):
    """The sequences of a split as a corpus; see `data.corpus.Corpus`."""

    vocabulary = staticmethod(vocabulary)

    def __getitem__(self, index: int) -> TokenizedDocument:
        random = self._random(index)
        num_tokens, length = self._settings['num_tokens'], self._settings['length']
        first, last = (
            weights / weights.sum() for weights in random.integers(1, 10, (2, num_tokens))
        )
        # Token j comes from the second distribution with probability j / length.
        late = random.random(length) < np.arange(1, length + 1) / length
        uniform = random.random(length)
        tokens = np.where(
            late,
            np.searchsorted(np.cumsum(last), uniform, side='right'),
            np.searchsorted(np.cumsum(first), uniform, side='right'),
        )
        tokens = np.minimum(tokens, num_tokens - 1).astype(np.int32)
        answer = by_frequency(tokens, num_tokens)
        separator = num_tokens
        scored = np.zeros((length + 1 + num_tokens,), np.uint8)
        scored[-num_tokens:] = 1
        scored[-1] = 2
        return TokenizedDocument(
            tokens=np.concatenate([tokens, [separator], answer]).astype(np.int32),
            num_bytes=0,
            scored=scored,
        )

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        length = self._settings['length'] + 1 + self._settings['num_tokens']
        return np.full((self._count,), length, np.int64)
