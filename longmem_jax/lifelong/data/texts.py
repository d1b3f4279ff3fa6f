"""Texts as rows of tokens, marked as an encoder was pretrained: [CLS] FIRST [SEP] SECOND [SEP]."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longmem_jax.data.documents import Document
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.classes import marks_of
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING


class Texts:
    """Texts to learn a vocabulary from; a `data.documents.Source`."""

    def __init__(self, texts: Sequence[str]):
        """`texts`: of the rows that are trained on."""
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Document:
        return Document(f'text {index}', self._texts[index].encode('utf-8', 'replace'))


class Marked:
    """Puts token ids between the marks of an encoder, the ids `begin` of [CLS] and `border` of
    [SEP].
    """

    def __init__(self, tokenizer: Tokenizer):
        """Finds the marks; raises `UsageError` if the tokenizer has none."""
        self._tokenizer: Any = tokenizer  # the marks are in those of JSON files alone
        self.begin, self.border = marks_of(tokenizer)
        # The smallest that holds all tokens and what is none.
        small = tokenizer.vocab_size <= np.iinfo(np.uint16).max
        self.dtype = np.dtype(np.uint16 if small else np.int32)

    def ids(self, text: str) -> np.ndarray:
        """Tokens of a text, int32 [n]; what it spells like a mark is left out."""
        ids = self._tokenizer.encode(text.encode('utf-8', 'replace'))
        return ids[self._plain(ids)]

    def all_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same of many texts, in less time."""
        clean = [text.encode('utf-8', 'replace').decode() for text in texts]
        return [ids[self._plain(ids)] for ids in self._tokenizer.encode_all(clean)]

    def ids_with_places(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The same with the characters of each token, int32 [n, 2]."""
        ids, places = self._tokenizer.encode_with_places(text)
        plain = self._plain(ids)
        return ids[plain], places[plain]

    def _plain(self, ids: np.ndarray) -> np.ndarray:
        return (ids != self.begin) & (ids != self.border)

    def join(self, first: np.ndarray, second: np.ndarray | None = None) -> list[np.ndarray]:
        """The parts of a row: [CLS] FIRST [SEP], and SECOND [SEP] if there is one."""
        parts = [np.concatenate([[self.begin], first, [self.border]])]
        if second is not None:
            parts.append(np.concatenate([second, [self.border]]))
        return parts

    def rows(self, parts: Sequence[list[np.ndarray]], length: int, answer: Any) -> Rows:
        """Rows of `join`ed texts, of at most `length` tokens each, then `NOTHING`.

        `answer` as in `Rows`.
        """
        tokens = np.full((len(parts), length), np.asarray(NOTHING).astype(self.dtype), self.dtype)
        types = np.zeros((len(parts), length), np.uint8)
        for row, texts in enumerate(parts):
            joined = np.concatenate(texts)
            tokens[row, : len(joined)] = joined
            types[row, len(texts[0]) : len(joined)] = 1
        return Rows(tokens, types, answer)


def choose(count: int, rows: int, where: str, seed: int) -> np.ndarray:
    """Numbers of the rows to train on (0 = all), drawn without replacement from `count`.

    `where` are the rows, for messages.

    Raises:
      UsageError: there are not as many, or none.
    """
    if count < max(rows, 1):
        raise UsageError(
            f'{where}: has {count:,} usable rows, and rows = {rows:,} needs {max(rows, 1):,} or more.'
        )
    return np.random.default_rng(seed).permutation(count)[: rows or None]
