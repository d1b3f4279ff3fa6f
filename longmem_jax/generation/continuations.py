"""Continues several texts of any lengths at a time, one per lane; see `contexts`."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.contexts import ContextReader, num_full
from longmem_jax.generation.reader import continue_stream
from longmem_jax.generation.stream import Stream, open_stream, read_token
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import select_lanes

CHUNK = 16


def continue_texts(
    reader: ContextReader,
    texts: Sequence[np.ndarray],
    length: int,
    *,
    vocab_size: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Reads texts and continues each of them; a caller that has enough stops asking.

    Args:
      reader: of the model.
      texts: int32 [n] each, from the begin token on, at most `reader.num_lanes` of them.
      length: most tokens to draw.
      vocab_size: that of the tokenizer; the model's may be larger.
      temperature, top_k, top_p, seed: as in `config.generate`; temperature 0 takes the likeliest.

    Yields:
      The next tokens of all texts, int32 [texts, <= 16].
    """
    if any(not len(text) for text in texts):
        raise ValueError('a text to continue has at least the begin token')
    model, params, lanes = reader.model, reader.params, reader.num_lanes
    full = [num_full(len(text), model.segment_length) for text in texts]
    states = reader.read([text[:end] for text, end in zip(texts, full, strict=True)])
    tokens, counts = np.zeros((lanes, model.segment_length), np.int32), np.zeros((lanes,), np.int32)
    for lane, (text, end) in enumerate(zip(texts, full, strict=True)):
        counts[lane] = len(text) - end
        tokens[lane, : counts[lane]] = text[end:]
    logits, stream = _open(model, params, states, tokens, counts)
    key, sampling = jax.random.key(seed), (float(temperature), int(top_k), float(top_p))
    for start in range(0, length, CHUNK):
        drawn, logits, stream = continue_stream(
            model,
            params,
            logits,
            stream,
            jax.random.fold_in(key, start),
            CHUNK,
            vocab_size,
            sampling,
        )
        yield np.asarray(drawn)[: len(texts), : length - start]


@functools.partial(jax.jit, static_argnums=0)
def _open(
    model: LanguageModel, params: Any, states: Any, tokens: jax.Array, counts: jax.Array
) -> tuple[jax.Array, Stream]:
    """Opens a segment and reads the first `counts` (int32 [lanes]) of `tokens` [lanes, length]."""
    lanes = tokens.shape[0]
    logits = jnp.zeros((lanes, model.config.vocab_size), jnp.float32)

    def body(i: jax.Array, carry: tuple[jax.Array, Stream]) -> tuple[jax.Array, Stream]:
        token = jax.lax.dynamic_index_in_dim(tokens, i, axis=1, keepdims=False)
        logits, stream = read_token(model, params, token, carry[1])
        return select_lanes(i < counts, (logits.astype(jnp.float32), stream), carry)

    stream = open_stream(model, params, states, lanes)
    return jax.lax.fori_loop(0, counts.max(), body, (logits, stream))
