"""A source seen through a tokenizer."""

import dataclasses

import grain
import numpy as np

from longmem_jax.data.documents import Document, Source
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class TokenizedDocument:
    """Tokens of one document.

    Attributes:
      tokens: int32 [n], without a begin token.
      num_bytes: bytes of the source text.
    """

    tokens: np.ndarray
    num_bytes: int


class Corpus:
    """Tokenised documents by index; each is tokenised when it is asked for.

    Attributes:
      tokenizer: what tokenised it.
    """

    def __init__(self, source: Source, tokenizer: Tokenizer):
        """Tokenises nothing yet."""
        self.tokenizer = tokenizer
        self._documents = grain.MapDataset.source(source).map(self._tokenize)

    def _tokenize(self, document: Document) -> TokenizedDocument:
        tokens = self.tokenizer.encode(document.text)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.tokenizer.vocab_size:
            raise UsageError(
                f'{document.name}: the tokenizer gave {int(tokens.max())}, beyond its vocabulary of '
                f'{self.tokenizer.vocab_size}.'
            )
        return TokenizedDocument(tokens, len(document.text))

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> TokenizedDocument:
        return self._documents[index]
