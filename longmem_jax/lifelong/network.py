"""What a lifelong learner trains: an encoder and a head, as pure functions over their parameters.

A learner never sees more of a model than this, so any encoder serves: a BERT of a folder, a small one,
or a bag of words in a test. Parameters are nested dictionaries.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from longmem_jax.lifelong.rows import Inputs, Rows


class Encoded(NamedTuple):
    """Texts after an encoder.

    Attributes:
      pooled: the vector of a text, float32 [n, width].
      tokens: those of its tokens, float32 [n, length, width].
    """

    pooled: jax.Array
    tokens: jax.Array


class Encoder(Protocol):
    """An encoder of whole texts."""

    @property
    def width(self) -> int:
        """Of its vectors."""

    def init(self, key: jax.Array) -> Any:
        """Its parameters at the start: pretrained ones, where there are any."""

    def encode(self, params: Any, inputs: Inputs, key: jax.Array | None) -> Encoded:
        """Reads texts; `key` is of dropout, None = no dropout."""

    def key_of(self, params: Any, inputs: Inputs) -> jax.Array:
        """The key of a text for an episodic memory, float32 [n, width]; without dropout."""


class Head(Protocol):
    """What is asked about a row, and how answers are trained and scored."""

    def init(self, key: jax.Array, width: int) -> Any:
        """Its parameters at the start."""

    def inputs(self, rows: Rows) -> Inputs:
        """The texts of rows: one per row, or as many as it has candidates, row by row."""

    def key_inputs(self, rows: Rows) -> Inputs:
        """The texts whose keys are the rows', one per row."""

    def scores(self, params: Any, encoded: Encoded, rows: Rows) -> jax.Array:
        """Scores of the answers, [rows, answers] or what `losses` and `right` read."""

    def losses(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """What is trained, nats, float32 [rows]."""

    def right(self, scores: jax.Array, rows: Rows) -> jax.Array:
        """How right the best answers are, from 0 to 1, float32 [rows]."""


class Network(NamedTuple):
    """An encoder with a head. Parameters: {'encoder': ..., 'head': ...}."""

    encoder: Encoder
    head: Head

    def init(self, key: jax.Array) -> dict[str, Any]:
        """The parameters at the start."""
        first, second = jax.random.split(key)
        return {
            'encoder': self.encoder.init(first),
            'head': self.head.init(second, self.encoder.width),
        }

    def scores(self, params: Any, rows: Rows, key: jax.Array | None = None) -> jax.Array:
        """Scores of the answers; `key` is of dropout, None = no dropout."""
        encoded = self.encoder.encode(params['encoder'], self.head.inputs(rows), key)
        return self.head.scores(params['head'], encoded, rows)

    def losses(self, params: Any, rows: Rows, key: jax.Array | None = None) -> jax.Array:
        """What is trained, nats, float32 [rows]."""
        return self.head.losses(self.scores(params, rows, key), rows)

    def loss(
        self, params: Any, rows: Rows, there: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """Mean over the rows that are there, bool [rows]; 0 if none is."""
        losses = jnp.where(there, self.losses(params, rows, key), 0)
        return losses.sum() / jnp.maximum(there.sum(), 1)

    def keys(self, params: Any, rows: Rows) -> jax.Array:
        """Keys for an episodic memory by the encoder's parameters `params`, float32 [rows, width]."""
        return self.encoder.key_of(params, self.head.key_inputs(rows))
