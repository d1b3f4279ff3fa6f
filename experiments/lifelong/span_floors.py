"""Answers to questions by rules without a network: floors of the F1 of spans.

- the whole context;
- its first tokens;
- the tokens that are nearest to those of the question: of all spans of one length the one with most
  different tokens of the question among the five before it and the five after it, less those within it.

The length is the one that scores best on the rows of the stream.
"""

import numpy as np

from longmem_jax.lifelong import span_head
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING

LENGTHS = range(1, 11)  # tokens of a span
AROUND = 5  # tokens on each side that are looked at
TRAINED = 2000  # rows of the stream at most that a length is chosen by
Spans = tuple[np.ndarray, np.ndarray]  # first and last tokens, int [rows] each


def whole(rows: Rows) -> Spans:
    """The whole context."""
    there = np.asarray(span_head.of_context(rows))
    return there.argmax(1), there.shape[1] - 1 - there[:, ::-1].argmax(1)


def at_first(rows: Rows, length: int) -> Spans:
    """The first tokens of the context."""
    start, end = whole(rows)
    return start, np.minimum(start + length - 1, end)


def nearest(rows: Rows, length: int) -> Spans:
    """The span with most tokens of the question around it; of equal ones the first."""
    tokens, types = np.asarray(rows.tokens), np.asarray(rows.types)
    there, (first, last) = np.asarray(span_head.of_context(rows)), whole(rows)
    nothing, starts = np.array(NOTHING).astype(tokens.dtype), []
    for row in range(len(tokens)):
        asked = {*tokens[row, (types[row] == 1) & (tokens[row] != nothing)].tolist()}
        context = tokens[row, there[row]].tolist()
        best = (-len(asked) - 1, 0)
        for start in range(max(len(context) - length, 0) + 1):
            end = start + length
            near = {*context[max(start - AROUND, 0) : start], *context[end : end + AROUND]}
            score = len(near & asked) - len(asked & {*context[start:end]})
            best = max(best, (score, -start))
        starts.append(-best[1])
    start = first + np.asarray(starts)
    return start, np.minimum(start + length - 1, last)


def score(rows: Rows, spans: Spans) -> float:
    """Mean F1."""
    return float(np.mean(span_head.f1(*(np.asarray(each) for each in spans), rows.answer)))


def shares(rows: Rows, tests: tuple[Rows, ...]) -> dict[str, list[float]]:
    """Mean F1 of each rule on each test set.

    Args:
      rows: of the stream.
      tests: of its tasks.
    """
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), TRAINED)).astype(int)
    known = Rows(rows.tokens[chosen], rows.types[chosen], rows.answer[chosen])
    found = {'the whole context': [score(test, whole(test)) for test in tests]}
    for name, rule in (('the first', at_first), ("nearest the question's", nearest)):
        length = max(LENGTHS, key=lambda each, rule=rule: score(known, rule(known, each)))
        found[f'{name} {length} tokens'] = [score(test, rule(test, length)) for test in tests]
    return found
