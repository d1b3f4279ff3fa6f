"""A closed list of words as a tokenizer, for tasks whose text is generated."""

from collections.abc import Sequence

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import checksum


class Vocabulary:
    """Words between blanks; every word that a task uses is in the list.

    Attributes:
      words: the word of every id.
      vocab_size: their number.
      begin: id of the word that stands before a document.
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
                f'{unknown[0]!r} is not a word of this task; there are {self.vocab_size}, such as '
                f'{", ".join(self.words[:8])}.'
            )
        return [self._ids[word] for word in text.split()]

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens, int32 [n], of words between blanks; errors as in `ids`."""
        return np.asarray(self.ids(text.decode('utf-8', 'replace')), np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """The words, each with a blank behind it; nothing for `begin`."""
        tokens = np.asarray(tokens)
        named = (self.words[token] for token in tokens[tokens != self.begin])
        return ''.join(f'{word} ' for word in named).encode()

    def fingerprint(self) -> str:
        """Checksum of the list."""
        listed = '\n'.join(self.words).encode()
        return f'task-{checksum(listed)[:16]}'
