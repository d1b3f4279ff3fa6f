"""Sorting by frequency: which of 20 tokens came most often? (Martins et al., 2022, Sec. 4.1).

A sequence is drawn from a mixture that drifts from one distribution to another, so early tokens
matter as much as late ones; behind a separator stand the tokens by falling count. Only those are
scored. Rules are those of the released generator: ties in order of first appearance, tokens that
never came last and rising.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import SPLITS
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.faults import of_section

FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    length=(1, 10**8),  # tokens to be counted
    num_tokens=(2, 1000),
)


def check(settings: Any) -> list[str]:
    """Faults of `config.data.task`; `FIELDS` says what is allowed."""
    return of_section(settings, FIELDS)


def vocabulary(settings: Any) -> Vocabulary:
    """The tokens, the separator and the begin word: 22 for 20 tokens."""
    words = [f't{number}' for number in range(settings['num_tokens'])]
    return Vocabulary((*words, '<SEP>', '<begin>'), '<begin>')


def by_frequency(tokens: np.ndarray, num_tokens: int) -> np.ndarray:
    """All tokens by falling count, then by first appearance; those that never came last, rising."""
    counts = np.bincount(tokens, minlength=num_tokens)
    appeared = np.full((num_tokens,), len(tokens))
    found, place = np.unique(tokens, return_index=True)
    appeared[found] = place
    return np.lexsort((np.arange(num_tokens), appeared, -counts)).astype(np.int32)


class Sorting:
    """The sequences of a split as a corpus; see `data.corpus.Corpus`.

    Attributes:
      tokenizer: the words.
    """

    def __init__(self, settings: Any, split: str, seed: int):
        """Draws nothing yet; `settings` is `config.data.task`."""
        self._settings, self._seed, self._split = settings, seed, split
        self._count = settings['documents' if split == 'train' else 'eval_documents']
        self.tokenizer = vocabulary(settings)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> TokenizedDocument:
        random = np.random.default_rng([self._seed, SPLITS.index(self._split), index])
        number, length = self._settings['num_tokens'], self._settings['length']
        first, last = (weights / weights.sum() for weights in random.integers(1, 10, (2, number)))
        # Token j comes from the second distribution with probability j / length.
        late = random.random(length) < np.arange(1, length + 1) / length
        drawn = random.random(length)
        tokens = np.where(
            late,
            np.searchsorted(np.cumsum(last), drawn, side='right'),
            np.searchsorted(np.cumsum(first), drawn, side='right'),
        )
        tokens = np.minimum(tokens, number - 1).astype(np.int32)
        answer = by_frequency(tokens, number)
        scored = np.zeros((length + 1 + number,), np.uint8)
        scored[-number:] = 1
        scored[-1] = 2
        return TokenizedDocument(
            tokens=np.concatenate([tokens, [number], answer]).astype(np.int32),
            num_bytes=0,
            scored=scored,
        )

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        whole = self._settings['length'] + 1 + self._settings['num_tokens']
        return np.full((self._count,), whole, np.int64)
