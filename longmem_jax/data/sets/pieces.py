"""Documents made of pieces of text, some of which are scored."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import Document
from longmem_jax.data.sources import DataSource
from longmem_jax.data.tokenizers import Tokenizer

READ, SCORED, ANSWER = 0, 1, 2


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
      text: encoded by itself, so that its tokens do not depend on the other pieces.
      role: READ, not scored; SCORED, as text; ANSWER, scored, and right only as a whole.
      ends: of an answer in parts, each right by itself: characters up to the end of each.
    """

    text: str
    role: int
    ends: tuple[int, ...] = ()


class PieceTexts:
    """The documents as plain texts, to learn a vocabulary from; a `data.documents.Source`."""

    def __init__(self, documents: Sequence[Sequence[Piece]]):
        """`documents`: the pieces of every document."""
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Document:
        text = ''.join(piece.text for piece in self._documents[index])
        return Document(f'document {index}', text.encode())


class PieceCorpus:
    """Tokenized documents; a corpus as `data.corpus.Corpus`.

    Bytes are those of the pieces that are scored as text: a document of answers has none.
    """

    def __init__(self, documents: Sequence[Sequence[Piece]], tokenizer: Tokenizer):
        """Tokenizes nothing yet."""
        self._documents, self.tokenizer = documents, tokenizer

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> TokenizedDocument:
        tokens, scored, num_bytes = [np.zeros((0,), np.int32)], [np.zeros((0,), np.uint8)], 0
        for piece in self._documents[index]:
            text = piece.text.encode()
            ids = self.tokenizer.encode(text)
            places = np.full((len(ids),), 1 if piece.role else 0, np.uint8)
            if piece.role == ANSWER:
                places[-1:] = 2
                for end in piece.ends[:-1]:
                    places[self._last(ids, piece.text[:end])] = 2
            tokens.append(ids)
            scored.append(places)
            num_bytes += len(text) if piece.role == SCORED else 0
        return TokenizedDocument(np.concatenate(tokens), num_bytes, scored=np.concatenate(scored))

    def _last(self, ids: np.ndarray, begin: str) -> int:
        """The last token of `ids` that those of the `begin` of their text share."""
        known = self.tokenizer.encode(begin.encode())
        least = min(len(known), len(ids))
        equal = np.asarray(known[:least]) == np.asarray(ids[:least])
        return max(int(np.append(equal, False).argmin()) - 1, 0)

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        return np.asarray([len(self[i].tokens) for i in range(len(self))], np.int64)


def source_of(
    documents: Callable[[Any, str], Sequence[Sequence[Piece]]],
    check: Callable[[Any], list[str]],
    scores: str = '',
    require: str = '',
    *,
    ngrams: bool = True,
    scored: Callable[[Any], bool] | None = None,
) -> DataSource:
    """A source whose documents are made of pieces.

    `documents(config.data, split)` gives those of every document of a split. The other arguments
    are as in `DataSource`.
    """
    return DataSource(
        lambda data, split: PieceTexts(documents(data, split)),
        lambda data, split, tokenizer: PieceCorpus(documents(data, split), tokenizer),
        check,
        sampled=False,
        scores=scores,
        scored=scored,
        require=require,
        ngrams=ngrams,
    )
