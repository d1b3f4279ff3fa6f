"""The corpus of a task: every document is drawn from the seed, the split and its number."""

from collections.abc import Callable
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import SPLITS
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.data.tokenizers import Tokenizer


class Drawn:
    """The documents of a split as a corpus; see `data.corpus.Corpus`. A task adds `__getitem__`.

    Attributes:
      vocabulary: that of the task, by its settings.
      tokenizer: its words, or what was given.
    """

    vocabulary: Callable[[Any], Vocabulary]

    def __init__(self, settings: Any, split: str, seed: int, tokenizer: Tokenizer | None = None):
        """Draws nothing yet; `settings` is `config.data.task`; `tokenizer` in place of words."""
        self._settings, self._seed, self._split = settings, seed, split
        self._count = settings['documents' if split == 'train' else 'eval_documents']
        self.tokenizer: Any = tokenizer or type(self).vocabulary(settings)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> TokenizedDocument:
        raise NotImplementedError

    def _random(self, index: int) -> np.random.Generator:
        """The random numbers of a document; raises `IndexError` after the last one."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return np.random.default_rng([self._seed, SPLITS.index(self._split), index])

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]; draws all of them."""
        return np.asarray([len(self[i].tokens) for i in range(self._count)], np.int64)
