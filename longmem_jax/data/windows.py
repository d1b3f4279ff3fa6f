"""Overlapping windows: every token is scored once, with a given number of tokens before it."""

import numpy as np

from longmem_jax.data.corpus import AnyCorpus, TokenizedDocument


class Windows:
    """A corpus whose documents are windows over those of another; each window is read by itself.

    A window has `length` tokens; those already scored in the previous window are its context. The first
    window of a document scores all its tokens. This is the sliding-window protocol for models without a
    memory (MemSizer: the last 256 of 512 tokens).

    Attributes:
      tokenizer: that of the corpus.
      sources: int64 [windows, 2], the document of every window and the place of its first token in it.
    """

    def __init__(self, corpus: AnyCorpus, length: int, context: int):
        """Tokenizes everything once.

        `context` tokens of a window are not scored, except in the first of a document.
        """
        self.tokenizer, self._corpus = corpus.tokenizer, corpus
        self._length, self._context = length, context
        step = length - context
        windows = [
            (document, start)
            for document, size in enumerate(corpus.lengths())
            for start in range(0, max(int(size) - context, 1), step)
            if size
        ]
        self.sources = np.asarray(windows, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> TokenizedDocument:
        number, start = map(int, self.sources[index])
        document = self._corpus[number]
        window = slice(start, start + self._length)
        tokens, scored = document.tokens[window], document.scored
        inputs = document.read(self.tokenizer.begin)
        if scored is None:
            scored = np.ones((len(document.tokens),), np.uint8)
        scored = scored[window].copy()
        if start:
            scored[: self._context] = 0
        new = len(tokens) - (self._context if start else 0)
        share = new / len(document.tokens)
        return TokenizedDocument(tokens, document.num_bytes * share, inputs[window], scored)

    def lengths(self) -> np.ndarray:
        """Tokens of every window, int64 [windows]."""
        sizes = self._corpus.lengths()
        return np.minimum(self._length, sizes[self.sources[:, 0]] - self.sources[:, 1])
