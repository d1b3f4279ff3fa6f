"""Windows that overlap: every token is scored once, with so much context before it."""

import numpy as np

from longmem_jax.data.corpus import Corpus, TokenizedDocument


class Windows:
    """A corpus whose documents are windows of another's, each read by itself.

    A window is `length` tokens; those that the window before has scored are its context and are not
    scored again. The first window of a document scores all of its tokens. This is the sliding
    protocol that models without a memory are compared by (MemSizer: the last 256 of 512 tokens).

    Attributes:
      tokenizer: the corpus's.
    """

    def __init__(self, corpus: Corpus, length: int, context: int):
        """`context` tokens, at most, of a window of `length` are not scored; tokenises everything."""
        self.tokenizer, self._corpus = corpus.tokenizer, corpus
        self._length, self._context = length, context
        step = length - context
        self._places = [
            (document, start)
            for document, size in enumerate(corpus.lengths())
            for start in range(0, max(int(size) - context, 1), step)
            if size
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> TokenizedDocument:
        document, start = self._places[index]
        found = self._corpus[document]
        part = slice(start, start + self._length)
        tokens = found.tokens[part]
        inputs = found.inputs
        if inputs is None:
            first = [self.tokenizer.begin]
            inputs = np.concatenate([first, found.tokens[:-1]]).astype(np.int32)
        scored = np.ones((len(found.tokens),), np.uint8) if found.scored is None else found.scored
        scored = scored[part].copy()
        if start:
            scored[: self._context] = 0
        new = len(tokens) - (self._context if start else 0)
        share = new / len(found.tokens)
        return TokenizedDocument(tokens, found.num_bytes * share, inputs[part], scored)

    def lengths(self) -> np.ndarray:
        """Tokens of every window, int64 [windows]."""
        sizes = self._corpus.lengths()
        return np.asarray([min(self._length, sizes[d] - s) for d, s in self._places], np.int64)
