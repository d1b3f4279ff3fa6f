"""Reading documents token by token, with the same numbers as whole segments give.

Memories are written at segment borders, so a stream holds the memories as they were at the start of
the open segment, and the caches of the tokens since.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import select_lanes


@flax.struct.dataclass
class Stream:
    """Documents being read; every leaf [batch, ...].

    Attributes:
      state: memories at the start of the open segment.
      cache: what the open segment reads and will write.
      index: int32 [batch], tokens of the open segment read so far.
    """

    state: Any
    cache: Any
    index: jax.Array


def open_stream(model: LanguageModel, params: Any, state: Any, batch_size: int) -> Stream:
    """Begins a segment behind the memories `state` (every leaf [batch_size, ...])."""
    cache = model.apply({'params': params}, state, batch_size, method='open_segment')
    return Stream(state, cache, jnp.zeros((batch_size,), jnp.int32))


def close_stream(model: LanguageModel, params: Any, stream: Stream) -> Any:
    """Writes the tokens of the open segment to the memories and returns these."""
    return model.apply(
        {'params': params}, stream.state, stream.cache, stream.index, method='close_segment'
    )


def read_token(
    model: LanguageModel, params: Any, tokens: jax.Array, stream: Stream
) -> tuple[jax.Array, Stream]:
    """Reads the next token of every lane; a lane whose segment is full writes it first.

    Args:
      model, params: a language model and its parameters.
      tokens: int32 [batch].
      stream: what was read so far.

    Returns:
      logits [batch, vocab_size] of the token after, and the stream.
    """
    full = stream.index == model.segment_length

    def turn(stream):
        written = close_stream(model, params, stream)
        return select_lanes(full, open_stream(model, params, written, tokens.shape[0]), stream)

    stream = jax.lax.cond(full.any(), turn, lambda stream: stream, stream)
    logits, cache = model.apply(
        {'params': params}, tokens[:, None], stream.cache, stream.index, method='extend'
    )
    return logits[:, 0], Stream(stream.state, cache, stream.index + 1)
