"""Interpolated Kneser-Ney: the next token from the last few, by counts of a training text.

Kneser and Ney (1995), as interpolated by Chen and Goodman (1998, Sec. 2.7), with one discount per order:

    p(w | h) = max(c(h w) - D, 0) / c(h) + D t(h) / c(h) * p(w | h without its oldest token)

c(h) sums c(h w) over w, and t(h) is the number of different w after h. The longest contexts use counts;
for shorter ones c(h w) is the number of different tokens before h w. Below a single token lies the
uniform distribution. After an unseen context p is that of the shorter one.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np


@dataclasses.dataclass(frozen=True)
class _Table:
    """One order of the recursion.

    Attributes:
      counts: float64 [grams], c(h w) of every n-gram.
      totals, kinds: float64 [contexts], c(h) and t(h) of every context.
      discount: D, in (0, 1).
    """

    counts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float

    def chances(self, gram: np.ndarray, context: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """p(w | h), float64 [n]; -1 is an unseen n-gram or context."""
        count = np.where(gram >= 0, self.counts[gram], 0.0)
        total = np.where(context >= 0, self.totals[context], 0.0)
        kinds = np.where(context >= 0, self.kinds[context], 0.0)
        kept = np.maximum(count - self.discount, 0.0) + self.discount * kinds * shorter
        return np.where(total > 0, kept / np.maximum(total, 1.0), shorter)


def _table(counts: np.ndarray, context: np.ndarray, num_contexts: int) -> _Table:
    """The order in which n-gram i continues `context[i]` and has `counts[i]`, 0 = not at all."""
    once, twice = ((counts == times).sum() for times in (1, 2))
    return _Table(
        counts.astype(np.float64),
        np.bincount(context, weights=counts, minlength=num_contexts),
        np.bincount(context, weights=counts > 0, minlength=num_contexts),
        # Their estimate n1 / (n1 + 2 n2), drawn to one half where there is little to count.
        float((once + 1) / (once + 2 * twice + 2)),
    )


def stream(
    documents: Iterable[tuple[int, np.ndarray]], begin: int, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Documents one after another, each after `order` - 1 tokens of context.

    A document is its input before the first token, and its tokens, int [n]; before that input
    stands `begin`. Returns int64 [all], and bool [all]: whether it is a token of a document.
    """
    context = np.full((order - 1,), begin, np.int64)
    parts, real = [context[:0]], [np.zeros((0,), bool)]
    for first, tokens in documents:
        context[-1:] = first
        parts += [context.copy(), tokens]
        real += [np.zeros((order - 1,), bool), np.ones((len(tokens),), bool)]
    return np.concatenate(parts).astype(np.int64), np.concatenate(real)


class NGrams:
    """The models of orders 1 to `order` of one text.

    An n-gram is numbered by the number of its first n - 1 tokens and by its last token, so the tables
    grow with the text and not with the vocabulary.

    Attributes:
      order: of the longest n-grams.
    """

    def __init__(self, tokens: np.ndarray, real: np.ndarray, vocab_size: int, order: int):
        """Counts a text, `tokens` and `real` as from `stream`, with n-grams up to `order`."""
        self.order, self._vocab_size = order, vocab_size
        self._keys: list[np.ndarray] = []
        self._counted: list[_Table] = []  # by order, for the longest contexts
        self._varied: list[_Table] = []  # for contexts below these
        shorter, contexts = np.zeros(len(tokens), np.int64), 1
        of_last: tuple[np.ndarray, int] | None = None
        for _ in range(order):
            keys, first, gram = np.unique(
                _behind(shorter) * vocab_size + tokens, return_index=True, return_inverse=True
            )
            times = np.bincount(gram[real], minlength=len(keys))
            if of_last is not None:
                # An n-gram without its first token ends at the same place.
                variety = np.bincount(shorter[first][times > 0], minlength=contexts)
                self._varied.append(_table(variety, *of_last))
            context = keys // vocab_size
            self._keys.append(keys)
            self._counted.append(_table(times, context, contexts))
            of_last = (context, contexts)
            shorter, contexts = gram, len(keys)

    def chances(self, tokens: np.ndarray) -> np.ndarray:
        """The probability of every token, int64 [n] from `stream`, by every order.

        Returns float64 [order, n]. The first `order` - 1 tokens of a document are context only.
        """
        found, context = [], np.zeros(len(tokens), np.int64)
        varied = np.full(len(tokens), 1 / self._vocab_size)
        for level, keys in enumerate(self._keys):
            context = _behind(context)
            wanted = context * self._vocab_size + tokens
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            gram = np.where((keys[place] == wanted) & (context >= 0), place, -1)
            found.append(self._counted[level].chances(gram, context, varied))
            if level < len(self._varied):
                varied = self._varied[level].chances(gram, context, varied)
            context = gram
        return np.stack(found)


def _behind(grams: np.ndarray) -> np.ndarray:
    """The n-gram that ends one token earlier; a text begins with equal tokens of context."""
    return np.concatenate([grams[:1], grams[:-1]])
