"""A source seen through a tokenizer."""

import collections
import dataclasses
import threading

import grain
import numpy as np

from longmem_jax.data.documents import Document, Source
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError

KEPT_TOKENS = 1 << 24  # 64 MiB


@dataclasses.dataclass(frozen=True)
class TokenizedDocument:
    """Tokens of one document.

    Attributes:
      tokens: int32 [n], without a begin token.
      num_bytes: bytes of the source text.
      inputs: int32 [n], what is read before each of `tokens` is to be said; None = a begin token
        and the tokens before it.
      scored: uint8 [n]; 0 = not scored, 1 = scored, 2 = scored and the last token of an answer;
        None = all are scored and nothing is an answer.
    """

    tokens: np.ndarray
    num_bytes: int
    inputs: np.ndarray | None = None
    scored: np.ndarray | None = None


class Corpus:
    """Tokenised documents by index; each is tokenised when it is asked for, the last ones are kept.

    Attributes:
      tokenizer: what tokenised it.
    """

    def __init__(self, source: Source, tokenizer: Tokenizer):
        """Tokenises nothing yet."""
        self.tokenizer = tokenizer
        self._documents = grain.MapDataset.source(source).map(self._tokenize)
        self._kept: collections.OrderedDict[int, TokenizedDocument] = collections.OrderedDict()
        self._kept_tokens = 0
        self._lengths: np.ndarray | None = None
        self._lock = threading.Lock()  # of the three above

    def _tokenize(self, document: Document) -> TokenizedDocument:
        tokens = self.tokenizer.encode(document.text)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.tokenizer.vocab_size:
            raise UsageError(
                f'{document.name}: the tokenizer gave {int(tokens.max())}, beyond its vocabulary '
                f'of {self.tokenizer.vocab_size}.'
            )
        return TokenizedDocument(tokens, len(document.text))

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> TokenizedDocument:
        with self._lock:
            if index in self._kept:
                self._kept.move_to_end(index)
                return self._kept[index]
        document = self._documents[index]
        with self._lock:
            if index not in self._kept and len(document.tokens) <= KEPT_TOKENS:
                self._kept[index] = document
                self._kept_tokens += len(document.tokens)
                while self._kept_tokens > KEPT_TOKENS:
                    self._kept_tokens -= len(self._kept.popitem(last=False)[1].tokens)
        return document

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]; tokenises all of it the first time."""
        if self._lengths is None:
            self._lengths = np.asarray([len(self[i].tokens) for i in range(len(self))], np.int64)
        return self._lengths
