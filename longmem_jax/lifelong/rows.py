"""Rows of a stream: what a lifelong learner reads, all of them in arrays on the devices.

A row is an example: tokens, and what is asked about them. Learners and episodic memories hold numbers of
rows, never their tokens. Which task a row is from is not in here: no learner can see it.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.segment import NOTHING, Leaf


class Rows(flax.struct.PyTreeNode):
    """Examples; every leaf has the rows as its first axis.

    Attributes:
      tokens: int32 or uint16 [rows, length]; padding is `NOTHING` cast to the dtype.
      types: uint8 [rows, length], 1 for the tokens of a second text.
      answer: a pytree of arrays [rows, ...], which the head knows: a class, spans, candidates.
    """

    tokens: Leaf
    types: Leaf
    answer: Any

    def __len__(self) -> int:
        return self.tokens.shape[0]


class Inputs(flax.struct.PyTreeNode):
    """Texts as an encoder reads them.

    Attributes:
      tokens: int32 [n, length].
      valid: bool [n, length].
      types: int32 [n, length].
    """

    tokens: jax.Array
    valid: jax.Array
    types: jax.Array


def take(rows: Rows, numbers: jax.Array) -> Rows:
    """The rows of some numbers, int32 [...]; every leaf becomes [..., ...]."""
    return jax.tree.map(lambda leaf: leaf[numbers], rows)


def one(row: Rows) -> Rows:
    """A single row, leaves [...], as rows [1, ...]."""
    return jax.tree.map(lambda leaf: leaf[None], row)


def inputs(tokens: jax.Array, types: jax.Array) -> Inputs:
    """Texts of stored tokens, [n, length] each."""
    valid = tokens != jnp.asarray(NOTHING).astype(tokens.dtype)
    return Inputs(jnp.where(valid, tokens, 0).astype(jnp.int32), valid, types.astype(jnp.int32))
