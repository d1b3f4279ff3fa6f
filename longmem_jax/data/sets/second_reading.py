"""The second reading: a document is a piece of text followed by itself, and its second copy is scored.

What a model saves on the second copy is what its memory kept of the first one. The texts are those of
`config.data.path`, or the source code of Python's standard library if there is none.

In training both copies are scored, so that a model learns the text too, and a share of the documents is
written in a cipher: other tokens stand for the tokens, in another way in each document. Nothing but the
first copy helps to predict these, so only their second copy is scored, and a model learns to copy from
them sooner.
"""

import functools
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import Source
from longmem_jax.data.sources import DataSource
from longmem_jax.data.stdlib import StandardLibrary
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.text_files import TextFiles
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.problems import of_series

FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    copies=(1, 2),  # in evaluation; 1 = the text alone, all scored: what a reset memory would score
    cipher=(0.0, 1.0),  # share of the training documents that are in a cipher
)
KEPT_TEXTS = 256  # that are not read from files again


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `lengths` of a copy, in bytes, must be in rising order."""
    return of_series(settings, FIELDS, 'lengths', 1, 'bytes of a copy, such as (64, 256)')


def texts(data: Any, split: str) -> Source:
    """The texts that pieces are taken from."""
    if not data.path:
        return StandardLibrary(split)
    return TextFiles(data.path, split, data.documents, tuple(data.fractions), data.text_field)


class SecondReading(Drawn):
    """The documents of a split; a corpus as `data.corpus.Corpus`.

    Training draws lengths from the smallest to the largest, every doubling with as many bytes in all, so
    that much is short, from which copying is learned first; evaluation cycles through them. Bytes are
    those of the scored copies.
    """

    def __init__(self, data: Any, split: str, tokenizer: Tokenizer):
        """Reads no text yet.

        Raises:
          UsageError: there are no texts.
        """
        super().__init__(data.task.to_dict(), split, data.seed, tokenizer)
        self._lengths = tuple(self._settings['lengths'])
        self._texts = texts(data, split)
        self._text = functools.lru_cache(KEPT_TEXTS)(lambda index: self._texts[index].text)

    def __getitem__(self, index: int) -> TokenizedDocument:
        random = self._random(index)
        settings, train = self._settings, self._split == 'train'
        length = self._lengths[index % len(self._lengths)]
        if train:
            least, most = self._lengths[0], self._lengths[-1]
            length = round(1 / random.uniform(1 / most, 1 / least))
        piece = self._piece(random, length)
        tokens = self.tokenizer.encode(piece).astype(np.int32)
        in_cipher = train and random.random() < settings['cipher']
        if in_cipher:
            tokens = self._cipher(random)[tokens]
        copies = 2 if train else settings['copies']
        scored = np.ones((copies * len(tokens),), np.uint8)
        both = train and not in_cipher
        if not both:
            scored[: -len(tokens)] = 0
        num_bytes = len(piece) * (copies if both else 1)
        return TokenizedDocument(np.tile(tokens, copies), num_bytes, scored=scored)

    def _piece(self, random: np.random.Generator, length: int) -> bytes:
        """About `length` bytes from a random line of a text, and of texts after it if it is short."""
        first = int(random.integers(len(self._texts)))
        text = self._text(first)
        start = int(random.integers(max(len(text) - length, 0) + 1))
        start = text.rfind(b'\n', 0, start) + 1
        piece = text[start : start + length]
        for step in range(1, len(self._texts)):
            if len(piece) >= length:
                break
            following = self._text((first + step) % len(self._texts))
            piece += following[: length - len(piece)]
        if len(piece) < length:
            raise UsageError(
                f'config.data.task.lengths: no piece of {length:,} bytes is in the {self._split} split; '
                'use shorter ones, or longer texts.'
            )
        return piece.decode('utf-8', 'ignore').encode()  # without a broken character at its ends

    def _cipher(self, random: np.random.Generator) -> np.ndarray:
        """The token that stands for every token but the begin token, int32 [vocabulary]."""
        size, begin = self.tokenizer.vocab_size, self.tokenizer.begin
        tokens = np.delete(np.arange(size, dtype=np.int32), begin)
        cipher = np.arange(size, dtype=np.int32)
        cipher[tokens] = random.permutation(tokens)
        return cipher


SOURCE = DataSource(texts, SecondReading, check, sampled=False)
