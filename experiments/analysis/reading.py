"""A text as full segments of one lane, for analyses that read it from its beginning."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.segment import Segment


def full_segments(tokenizer: Any, text: bytes, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a text; its last tokens, too few for a segment, are left out.

    Args:
      tokenizer: of the model.
      text: not empty.
      length: tokens per segment.

    Returns:
      int32 [segments, length] each: the begin token and what follows it, and the tokens after those.

    Raises:
      UsageError: the text is shorter than a segment.
    """
    tokens = np.asarray(tokenizer.encode(text), np.int32)
    count = len(tokens) // length
    if not count:
        raise UsageError(
            f'--text=: has {len(tokens)} tokens; give at least one segment, {length} tokens '
            '(--config.evaluate.segment_length), as a text or @FILE.'
        )
    targets = tokens[: count * length]
    inputs = np.concatenate([[tokenizer.begin], targets[:-1]]).astype(np.int32)
    return inputs.reshape(count, length), targets.reshape(count, length)


def one_lane(tokens: jax.Array | np.ndarray) -> Segment:
    """A full segment of one lane that continues its document; `tokens` is int32 [length]."""
    tokens = jnp.asarray(tokens)[None]
    return Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros((1,), bool))
