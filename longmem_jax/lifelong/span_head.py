"""Extractive question answering: where in the context does the answer begin and end?

A row is [CLS] CONTEXT [SEP] QUESTION [SEP] with type 1 for the question; its answers are first and last
tokens, int [rows, answers, 2], -1 = none. As in BERT (Devlin et al., 2019, sec. 4.2), every token of the
context gets a score as the first and as the last one; the answer is the span with the highest sum whose
end is not before its start.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.lifelong.network import Encoded
from longmem_jax.lifelong.rows import Inputs, Rows, inputs

LOWEST = -1e30  # of tokens that are not of the context; -inf would have no gradient


class SpanHead(NamedTuple):
    """A `network.Head`.

    Attributes:
      max_question: tokens of a question at most; those after them are not in its key.
      std: standard deviation of the weights at the start.
    """

    max_question: int
    std: float = 0.02

    def init(self, key: jax.Array, width: int) -> Any:
        """Weights [width, 2], for starts and for ends, and biases."""
        kernel = self.std * jax.random.normal(key, (width, 2), jnp.float32)
        return {'kernel': kernel, 'bias': jnp.zeros((2,), jnp.float32)}

    def inputs(self, rows: Rows) -> Inputs:
        """Context and question, one text per row."""
        return inputs(rows.tokens, rows.types)

    def key_inputs(self, rows: Rows) -> Inputs:
        """[CLS] QUESTION [SEP], [rows, max_question + 2]: the key is that of a question by itself."""
        first = jnp.argmax(rows.types == 1, axis=1)
        length = rows.tokens.shape[1]
        place = first[:, None] + jnp.arange(self.max_question + 1)[None]
        texts = inputs(rows.tokens, rows.types)
        there = (place < length) & jnp.take_along_axis(
            texts.valid, jnp.minimum(place, length - 1), axis=1
        )
        question = jnp.take_along_axis(texts.tokens, jnp.minimum(place, length - 1), axis=1)
        tokens = jnp.concatenate([texts.tokens[:, :1], jnp.where(there, question, 0)], axis=1)
        valid = jnp.concatenate([texts.valid[:, :1], there], axis=1)
        return Inputs(tokens, valid, jnp.zeros_like(tokens))

    def scores(self, params: Any, encoded: Encoded, rows: Rows) -> jax.Array:
        """Log-probabilities of being the start and the end, float32 [rows, length, 2]."""
        scores = encoded.tokens @ params['kernel'] + params['bias']
        scores = jnp.where(of_context(rows)[..., None], scores, LOWEST)
        return jax.nn.log_softmax(scores, axis=1)

    def losses(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """Mean of the negative log-probabilities of the first answer's ends; 0 without an answer."""
        answer = rows.answer[:, 0].astype(jnp.int32)
        there = answer[:, 0] >= 0
        place = jnp.maximum(answer, 0)[:, None, :]
        found = jnp.take_along_axis(scores, place, axis=1)[:, 0]
        return jnp.where(there, -found.mean(axis=-1), 0)

    def right(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """Best F1 over the answers of the tokens of the best span, see `f1`; 0 without an answer."""
        start, end = best_span(scores)
        return f1(start, end, rows.answer)


def of_context(rows: Rows) -> jax.Array:
    """Which tokens an answer may have, bool [rows, length]: those of the context, without its marks."""
    texts = inputs(rows.tokens, rows.types)
    first = texts.valid & (texts.types == 0)
    place = jnp.arange(rows.tokens.shape[1])[None]
    # The last one of the first text is its [SEP].
    return first & (place > 0) & (place < first.sum(axis=1, keepdims=True) - 1)


def best_span(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First and last token of the span with the highest sum of scores, int32 [rows] each.

    Scores of starts and ends are [rows, length, 2]. Of spans with equal sums, the one that ends
    first.
    """
    starts, ends = scores[..., 0], scores[..., 1]
    # The best start up to each end.
    best = jax.lax.cummax(starts, axis=1)
    end = jnp.argmax(best + ends, axis=1).astype(jnp.int32)
    before = jnp.arange(starts.shape[1])[None] <= end[:, None]
    start = jnp.argmax(jnp.where(before, starts, -jnp.inf), axis=1).astype(jnp.int32)
    return start, end


def f1(start: jax.Array, end: jax.Array, answers: jax.Array) -> jax.Array:
    """F1 of the tokens that a span has in common with the answer that it fits best, float32 [rows].
    Tokens are compared by their places, so that an equal word elsewhere is wrong. `answers` are
    first and last tokens, int [rows, answers, 2], -1 = none.
    """
    first, last = answers[..., 0].astype(jnp.int32), answers[..., 1].astype(jnp.int32)
    common = jnp.minimum(end[:, None], last) - jnp.maximum(start[:, None], first) + 1
    lengths = (end - start + 1)[:, None] + last - first + 1
    shares = jnp.where(first >= 0, 2 * jnp.maximum(common, 0) / jnp.maximum(lengths, 1), 0)
    return shares.max(axis=1).astype(jnp.float32)
