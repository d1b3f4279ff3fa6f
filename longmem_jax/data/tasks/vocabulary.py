"""A fixed list of words as a tokenizer, for tasks with generated text."""

from collections.abc import Sequence

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import checksum


class Vocabulary:
    """Words separated by blanks; every word that a task uses is in the list.

    Attributes:
      words: the word of every id.
      vocab_size: number of words.
      begin: id of the input before the first token of a document.
    """

    def __init__(self, words: Sequence[str], begin: str):
        """A vocabulary of `words`, all different, `begin` among them."""
        self.words, self.vocab_size = tuple(words), len(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        self.begin = self._ids[begin]

    def ids(self, text: str) -> list[int]:
        """Ids of the words of a text.

        Raises:
          UsageError: a word that is not in the list.
        """
        unknown = [word for word in text.split() if word not in self._ids]
        if unknown:
            raise UsageError(
                f'{unknown[0]!r} is not a word of this task; use one of its {self.vocab_size} words, '
                f'such as {", ".join(self.words[:8])}.'
            )
        return [self._ids[word] for word in text.split()]

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens, int32 [n], of words separated by blanks; errors as in `ids`."""
        return np.asarray(self.ids(text.decode('utf-8', 'replace')), np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """The words, each followed by a blank; nothing for `begin`."""
        tokens = np.asarray(tokens)
        words = (self.words[token] for token in tokens[tokens != self.begin])
        return ''.join(f'{word} ' for word in words).encode()

    def fingerprint(self) -> str:
        """Checksum of the list."""
        words = '\n'.join(self.words).encode()
        return f'task-{checksum(words)[:16]}'
