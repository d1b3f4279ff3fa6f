"""Heads of one vector per text: the class of a text, and the best of its candidates."""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from longmem_jax.lifelong.network import Encoded
from longmem_jax.lifelong.rows import Inputs, Rows, inputs
from longmem_jax.segment import Leaf

# Uniform in +-1/sqrt(inputs).
_KERNEL = jax.nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')


def dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Parameters of a linear layer: kernel [inputs, outputs] and bias [outputs]."""
    return dict(kernel=_KERNEL(key, (inputs, outputs)), bias=jnp.zeros((outputs,)))


def linear(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """`x W + b` over the last axis."""
    return x @ params['kernel'] + params['bias']


class Classes(NamedTuple):
    """Classification of texts; all classes are known beforehand.

    `Rows.answer` is the class, int32 [rows], from 0; scores are logits [rows, count].

    Attributes:
      number: classes of all tasks together: 33 for the five text sets.
    """

    number: int

    def init(self, key: jax.Array, width: int) -> Any:
        """Its parameters at the start."""
        return dense(key, width, self.number)

    def inputs(self, rows: Rows) -> Inputs:
        """The texts of rows, one per row."""
        return inputs(rows.tokens, rows.types)

    def key_inputs(self, rows: Rows) -> Inputs:
        """The same."""
        return self.inputs(rows)

    def scores(self, params: Any, encoded: Encoded, rows: Rows) -> jax.Array:
        """Logits of the classes, float32 [rows, number]."""
        del rows
        return linear(params, encoded.pooled)

    def losses(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """Cross-entropy, float32 [rows]."""
        return optax.softmax_cross_entropy_with_integer_labels(scores, rows.answer)

    def right(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """1 where the class with the largest logit is the row's, float32 [rows]."""
        return (jnp.argmax(scores, axis=-1) == rows.answer).astype(jnp.float32)


class Choice(flax.struct.PyTreeNode):
    """The answer of a row with candidates; only `losses` and `right` look at `gold`.

    Attributes:
      candidates: relations to choose from, int32 [rows, n]; below 0 = none. In an order that does not
        tell which is right, see `choose_from`.
      gold: the right one, int32 [rows].
    """

    candidates: Leaf
    gold: Leaf


def choose_from(gold: np.ndarray, others: np.ndarray) -> Choice:
    """The candidates of rows, in the order of their numbers.

    `gold` int [rows] and `others` int [rows, n], below 0 = none.
    """
    return Choice(
        candidates=np.sort(np.concatenate([gold[:, None], others], 1), axis=1).astype(np.int32),
        gold=np.asarray(gold, np.int32),
    )


class Candidates(NamedTuple):
    """Relation extraction by candidates: a text is read with each, and each gets a logit.

    `Rows.answer` is a `Choice`; scores are logits [rows, n], -inf where there is no candidate.

    Attributes:
      relations: stored tokens of the texts of all relations, [relations, length].
      over_inputs: how candidates are weighed where rows have more or fewer of them. False: every row
        counts the same. True: every candidate does, as in the release of OML-ER; then the loss of a
        row depends on the rows read with it.
    """

    relations: Leaf
    over_inputs: bool = False

    def init(self, key: jax.Array, width: int) -> Any:
        """Its parameters at the start."""
        return dense(key, width, 1)

    def inputs(self, rows: Rows) -> Inputs:
        """Text and candidate, one after the other, [rows * n, length + length of relations]."""
        chosen = jnp.maximum(rows.answer.candidates, 0).reshape(-1)
        each = rows.answer.candidates.shape[1]
        first = inputs(*(jnp.repeat(leaf, each, axis=0) for leaf in (rows.tokens, rows.types)))
        tokens = jnp.asarray(self.relations)[chosen]
        second = inputs(tokens, jnp.ones_like(tokens))
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), first, second)
        # Encoders count positions: no gap between the two.
        order = jnp.argsort(~both.valid, axis=1, stable=True)
        return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, order, axis=1), both)

    def key_inputs(self, rows: Rows) -> Inputs:
        """The texts without candidates, one per row."""
        return inputs(rows.tokens, rows.types)

    def scores(self, params: Any, encoded: Encoded, rows: Rows) -> jax.Array:
        """Logits of the candidates, float32 [rows, n]."""
        candidates = rows.answer.candidates
        logits = linear(params, encoded.pooled).reshape(candidates.shape)
        return jnp.where(candidates < 0, -jnp.inf, logits)

    def losses(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """Binary cross-entropy, the mean over the candidates of a row, float32 [rows]."""
        answer = rows.answer
        there = answer.candidates >= 0
        right = (answer.candidates == answer.gold[:, None]).astype(jnp.float32)
        each = optax.sigmoid_binary_cross_entropy(jnp.where(there, scores, 0), right)
        counts = there.sum(axis=1)
        counts = counts.mean() if self.over_inputs else counts
        return jnp.where(there, each, 0).sum(axis=1) / jnp.maximum(counts, 1)

    def right(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """1 where the candidate with the largest logit is the right one, float32 [rows]."""
        best = jnp.argmax(scores, axis=1)[:, None]
        found = jnp.take_along_axis(rows.answer.candidates, best, axis=1)[:, 0]
        return (found == rows.answer.gold).astype(jnp.float32)
