"""The loss of every token of a given text, all of which is read through the memory."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.contexts import Rows, cut, steps
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment, read_segments
from longmem_jax.training.metrics import LN2


@dataclasses.dataclass(frozen=True)
class TokenLosses:
    """What a model makes of a text.

    Attributes:
      tokens: int32 [n].
      nats: float32 [n], negative log-likelihood of each token after all before it; nan for a first
        token before which there was nothing.
      num_bytes: source bytes of the tokens that have a loss.
    """

    tokens: np.ndarray
    nats: np.ndarray
    num_bytes: int

    @property
    def scored(self) -> int:
        """Tokens that have a loss."""
        return int(np.isfinite(self.nats).sum())

    @property
    def total(self) -> float:
        """Their sum, nats."""
        return float(np.nansum(self.nats, dtype=np.float64))

    @property
    def loss(self) -> float:
        """Nats per token; nan without tokens."""
        return self.total / self.scored if self.scored else math.nan

    @property
    def bits_per_byte(self) -> float:
        """Bits per source byte; nan where there are none."""
        return self.total / LN2 / self.num_bytes if self.num_bytes else math.nan


def token_losses(
    model: LanguageModel, params: Any, state: Any, before: np.ndarray, tokens: np.ndarray
) -> Iterator[np.ndarray]:
    """Reads a text and gives the loss of its tokens, part by part.

    Args:
      state: memories at the last segment border of one lane, every leaf [1, ...].
      before: int32 [m], tokens read since then: the begin token at the start of a text.
      tokens: int32 [n], the text.

    Yields:
      Nats of the next tokens, float32; n in all. Without `before` the first is nan.
    """
    if not len(before) and len(tokens):
        yield np.asarray([math.nan], np.float32)
        before, tokens = tokens[:1], tokens[1:]
    whole = np.concatenate([before, tokens]).astype(np.int32)
    read, first = 0, len(before) - 1
    for rows in steps(cut([whole[:-1]], 1, model.segment_length, [whole[1:]], [first])):
        state, nats = _read(model, params, state, rows)
        valid = np.asarray(rows.valid)
        nats = np.asarray(nats, np.float32)[valid]
        yield nats[max(first - read, 0) :]
        read += valid.sum()


@functools.partial(jax.jit, static_argnums=0)
def _read(model: LanguageModel, params: Any, state: Any, rows: Rows) -> tuple[Any, jax.Array]:
    """The memories after segments, and the losses, [segments, 1, length]."""

    def read(state: Any, row: Rows, key: jax.Array) -> tuple[Any, jax.Array]:
        segment = Segment(row.tokens, row.valid, jnp.zeros(row.tokens.shape[:1], bool))
        scores, state, _ = model.apply(
            {'params': params}, segment, row.targets, state, train=False, method='nll'
        )
        return state, scores.nll

    return read_segments(read, state, rows, jax.random.key(0))
