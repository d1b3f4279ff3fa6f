"""What needs no model: xz on both copies, and n-grams with a cache of what was read."""

import collections
import lzma
from collections.abc import Sequence

import numpy as np

from longmem_jax.data.corpus import AnyCorpus, TokenizedDocument
from longmem_jax.evaluation.ngrams import NGrams, stream

ORDER = 5  # of the n-grams
ENOUGH = 4_000_000  # tokens of training text that are counted
CONTEXT = 4  # tokens that must be the same before the cache is asked
TRUST = 8.0  # how much more one sight in the document counts than the n-grams


def xz(texts: Sequence[bytes]) -> tuple[float, float]:
    """Bits per byte of xz for the first copies and for the second ones."""
    filters = [{'id': lzma.FILTER_LZMA2, 'preset': 9}]  # raw: without the header of a file

    def compressed(text: bytes) -> int:
        return len(lzma.compress(text, lzma.FORMAT_RAW, filters=filters))

    once, twice = sum(map(compressed, texts)), sum(compressed(text + text) for text in texts)
    size = sum(map(len, texts))
    return 8 * once / size, 8 * (twice - once) / size


def trained_ngrams(train: AnyCorpus) -> NGrams:
    """N-grams of the training texts, up to `ENOUGH` tokens."""
    begin, counted, documents = train.tokenizer.begin, 0, []
    for index in range(len(train)):
        documents.append((begin, np.asarray(train[index].tokens, np.int64)))
        counted += len(documents[-1][1])
        if counted > ENOUGH:
            break
    tokens, real = stream(documents, begin, ORDER)
    return NGrams(tokens, real, train.tokenizer.vocab_size, ORDER)


def cached_ngrams(
    ngrams: NGrams, documents: Sequence[TokenizedDocument], begin: int
) -> tuple[float, float]:
    """Bits per byte of both copies; each document is a text followed by itself.

    The chance of a token is that of the n-grams, mixed with what followed the same `CONTEXT` tokens
    before in this document; the more often that was seen, the more it counts.
    """
    bits, size = np.zeros(2), 0.0
    for document in documents:
        tokens = np.asarray(document.tokens, np.int64)
        before, real = stream([(begin, tokens)], begin, ORDER)
        chances = ngrams.chances(before)[-1][real]
        seen: dict[tuple[int, ...], collections.Counter[int]] = {}
        half = len(tokens) // 2
        for place, chance in enumerate(chances):
            context = tuple(tokens[max(place - CONTEXT, 0) : place])
            counts = seen.setdefault(context, collections.Counter())
            total = TRUST * counts.total()
            mixed = (chance + TRUST * counts[tokens[place]]) / (1 + total)
            bits[int(place >= half)] -= np.log2(mixed)
            counts[int(tokens[place])] += 1
        size += document.num_bytes
    return float(bits[0] / size), float(bits[1] / size)
