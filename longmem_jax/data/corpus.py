"""The documents of a source as tokens."""

import collections
import dataclasses
import threading
import weakref
from typing import Protocol

import numpy as np

from longmem_jax.data.documents import Document, Source
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError

CACHED_BYTES = 1 << 26
DOCUMENT_BYTES = 450  # of a cached document without tokens: its objects, and its place in the cache


@dataclasses.dataclass(frozen=True)
class TokenizedDocument:
    """Tokens of one document.

    Attributes:
      tokens: int32 or uint16 [n], without a begin token.
      num_bytes: bytes of the source text.
      inputs: int32 [n], the input at every position, where `tokens` are the targets; None = a begin
        token, then `tokens` without the last.
      scored: uint8 [n]; 0 = not scored, 1 = scored, 2 = scored and the last token of an answer;
        None = all are scored and none ends an answer.
    """

    tokens: np.ndarray
    num_bytes: float
    inputs: np.ndarray | None = None
    scored: np.ndarray | None = None

    def read(self, begin: int) -> np.ndarray:
        """The input at every position, int [n]; `begin` is the begin token."""
        if self.inputs is not None:
            return self.inputs
        return np.concatenate([[begin], self.tokens[:-1]]).astype(np.int32)


def _size(document: TokenizedDocument) -> int:
    """Bytes that a cached document takes."""
    return document.tokens.nbytes + DOCUMENT_BYTES


class AnyCorpus(Protocol):
    """The tokenized documents of a split: texts, stored tokens, pairs, or those of a task."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of all documents."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> TokenizedDocument: ...

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""


class Corpus:
    """Tokenized documents by index; tokenized lazily, with an LRU cache of `CACHED_BYTES`.

    A document that is in use anywhere is given out again, however long it is: lanes that read the same
    one share its tokens.
    """

    def __init__(self, source: Source, tokenizer: Tokenizer):
        """Tokenizes nothing yet."""
        self.tokenizer = tokenizer
        self._source = source
        self._cache: collections.OrderedDict[int, TokenizedDocument] = collections.OrderedDict()
        self._cached_bytes = 0
        self._in_use: weakref.WeakValueDictionary[int, TokenizedDocument] = (
            weakref.WeakValueDictionary()
        )
        self._lengths: np.ndarray | None = None
        self._lock = threading.Lock()  # guards both

    def _tokenized(self, document: Document) -> TokenizedDocument:
        tokens = self.tokenizer.encode(document.text)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.tokenizer.vocab_size:
            raise UsageError(
                f'{document.name}: the tokenizer returned token {int(tokens.max())}, outside its '
                f'vocabulary of {self.tokenizer.vocab_size}; its file is damaged, use another.'
            )
        if self.tokenizer.vocab_size <= 1 << 16:
            tokens = tokens.astype(np.uint16)
        return TokenizedDocument(tokens, len(document.text))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> TokenizedDocument:
        with self._lock:
            if index in self._cache:
                self._cache.move_to_end(index)
                return self._cache[index]
            if (document := self._in_use.get(index)) is not None:
                return document
        document = self._tokenized(self._source[index])
        with self._lock:
            document = self._in_use.setdefault(index, document)  # perhaps another thread was faster
            if index not in self._cache and _size(document) <= CACHED_BYTES:
                self._cache[index] = document
                self._cached_bytes += _size(document)
                while self._cached_bytes > CACHED_BYTES:
                    self._cached_bytes -= _size(self._cache.popitem(last=False)[1])
        return document

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]; the first call tokenizes everything."""
        if self._lengths is None:
            self._lengths = np.asarray([len(self[i].tokens) for i in range(len(self))], np.int64)
        return self._lengths

    def sizes(self) -> np.ndarray:
        """Bytes of every document, int64 [documents]; reads all of them and tokenizes none."""
        sizes = [len(self._source[index].text) for index in range(len(self))]
        return np.asarray(sizes, np.int64)
