"""Sentences of novels, one after another, up to any number of tokens, in constant memory.

A passage begins at a random character of a random text and loses its first and its last sentence, which
are cut; at its end another passage begins.

Not as released: the benchmark finds sentences with NLTK's Punkt. Here a sentence ends at an empty
line, and at `.`, `!` or `?` before a blank and a capital, a digit, a quotation mark or a bracket, but
not after a title or an initial. A sentence that reads as a fact is left out. Short passages are longer.
"""

import functools
import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from longmem_jax.data.documents import Document, Source
from longmem_jax.data.sets.babilong.text import FACT
from longmem_jax.data.stdlib import StandardLibrary
from longmem_jax.data.text_files import TextFiles
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError

TITLES = 'Mr Mrs Ms Dr St Rev Hon Col Gen Capt Lieut Prof Messrs'.split()
NOT_AFTER = ''.join(rf'(?<!\b{title}\.)' for title in (*TITLES, '[A-Z]'))
END = re.compile(rf'[.!?]+{NOT_AFTER}["\'”’)\]_]*(?P<blank>\s+)(?=["\'“‘(\[_]*[A-Z0-9])|\n\s*\n\s*')
LEAST = 10  # tokens of a sentence
CHARACTERS, LEAST_CHARACTERS = 10, 4096  # of a passage: per token that is wanted, and at least
BLOCK = 4096  # tokens that are made at a time
BARREN = 1000  # passages without a sentence, after which there is none
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
KEPT_TEXTS = 4


class Docstrings:
    """The docstrings of the modules of Python's standard library: prose that every installation has."""

    def __init__(self, split: str):
        """Lists the modules; errors as in `StandardLibrary`."""
        self._library = StandardLibrary(split)

    def __len__(self) -> int:
        return len(self._library)

    def __getitem__(self, index: int) -> Document:
        document = self._library[index]
        found = DOCSTRING.findall(document.text.decode('utf-8', 'replace'))
        return Document(document.name, '\n\n'.join(found).encode())


def novels(path: str, split: str, fractions: Sequence[float], field: str) -> Source:
    """The texts of a split of a folder or file; those of `Docstrings` if there is no path."""
    if not path:
        return Docstrings(split)
    return TextFiles(path, split, 'file', tuple(fractions), field)


def sentences(text: str, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """The sentences of `text[start:stop]` but the last, each with its place in the text."""
    for end in END.finditer(text, start, stop):
        border = end.start('blank') if end['blank'] else end.start()
        yield start, text[start:border].rstrip()
        start = end.end()


class Place(NamedTuple):
    """Where a sentence stands: its passage, its character there, its number, and its first token."""

    passage: int
    character: int
    number: int
    token: int


Block = list[tuple[Place, np.ndarray]]  # sentences and their tokens


class Novels:
    """Draws passages from texts; may be shared by documents and threads."""

    def __init__(self, source: Source, tokenizer: Tokenizer, where: str):
        """Reads nothing yet; `where` names the texts in errors."""
        self._source, self._tokenizer, self.where = source, tokenizer, where
        self._text = functools.lru_cache(KEPT_TEXTS)(
            lambda index: self._source[index].text.decode('utf-8', 'replace')
        )

    def passage(self, key: str, wanted: int) -> tuple[str, int, int]:
        """A text, and where a passage for `wanted` tokens begins and ends; the key draws it."""
        draws, length = random.Random(key), max(CHARACTERS * wanted, LEAST_CHARACTERS)
        for _ in range(BARREN):
            text = self._text(draws.randrange(len(self._source)))
            if text:
                start = draws.randrange(len(text))
                return text, start, min(len(text), start + length)
        raise self.barren()

    def encode(self, sentence: str) -> np.ndarray:
        """Tokens of a sentence after a blank, int32 [n]."""
        return self._tokenizer.encode(f' {sentence}'.encode())

    def barren(self) -> UsageError:
        """The error of texts without sentences."""
        return UsageError(
            f'{self.where}: no sentences of at least {LEAST} tokens were found; use longer texts, in '
            'which sentences end with . ! or ? and begin with a capital.'
        )


class Background:
    """The sentences of one document, `size` tokens in all; the last one is cut.

    The first use reads all of them once, and keeps where every block of `BLOCK` tokens begins. After
    that any part can be made, a block at a time.
    """

    def __init__(self, novels: Novels, key: str, size: int):
        """`key` draws the passages. Reads nothing yet."""
        self._novels, self._key, self._size = novels, key, size
        self._whole: Block = []  # if it is a single block, which need not be made twice
        self._block = functools.lru_cache(2)(self._made)

    @functools.cached_property
    def _begins(self) -> tuple[list[Place], int]:
        """The first sentence that begins in every block, and the number of sentences."""
        begins, count = list[Place](), 0
        for place, tokens in self._from(Place(0, -1, 0, 0)):
            if place.token >= len(begins) * BLOCK:
                begins.append(place)
            if self._size <= BLOCK:
                self._whole.append((place, tokens))
            count += 1
        return begins, count

    @property
    def count(self) -> int:
        """The number of sentences."""
        return self._begins[1]

    def starts(self, numbers: Sequence[int]) -> list[int]:
        """The first tokens of sentences by number; `size` for `count`."""
        begins, count = self._begins
        found = []
        for number in numbers:
            if number == count:
                found.append(self._size)
                continue
            block = bisect_right(begins, number, key=lambda place: place.number) - 1
            found.append(next(p.token for p, _ in self._block(block) if p.number == number))
        return found

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens from `start` to `stop`, int32 [stop - start]."""
        begins, found = self._begins[0], []
        block = bisect_right(begins, start, key=lambda place: place.token) - 1
        while block < len(begins) and begins[block].token < stop:
            for place, tokens in self._block(block):
                if place.token < stop and place.token + len(tokens) > start:
                    found.append(tokens[max(start - place.token, 0) : stop - place.token])
            block += 1
        return np.concatenate(found) if found else np.zeros((0,), np.int32)

    def _made(self, block: int) -> Block:
        """The sentences that begin in a block."""
        begins = self._begins[0]
        if self._whole:
            return self._whole
        last = begins[block + 1].token if block + 1 < len(begins) else self._size
        made = []
        for place, tokens in self._from(begins[block]):
            if place.token >= last:
                break
            made.append((place, tokens))
        return made

    def _from(self, place: Place) -> Iterator[tuple[Place, np.ndarray]]:
        """Sentences from a place on, up to `size` tokens; character -1 = the beginning of a passage."""
        passage, character, number, token = place
        barren = 0
        while token < self._size:
            text, start, stop = self._novels.passage(f'{self._key} {passage}', self._size)
            cut, first = character < 0, start if character < 0 else character
            for at, sentence in sentences(text, first, stop):
                if cut or FACT.search(sentence):
                    cut = False
                    continue
                tokens = self._novels.encode(sentence)
                if len(tokens) < LEAST:
                    continue
                barren = 0
                tokens = tokens[: self._size - token]
                yield Place(passage, at, number, token), tokens
                number, token = number + 1, token + len(tokens)
                if token >= self._size:
                    return
            passage, character, barren = passage + 1, -1, barren + 1
            if barren > BARREN:
                raise self._novels.barren()
