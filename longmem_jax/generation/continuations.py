"""Continues several texts of any lengths at a time, one per lane; see `contexts`."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax import stopping
from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.generation.contexts import ContextReader
from longmem_jax.generation.reader import continue_stream, keys_of
from longmem_jax.generation.stream import read_open_segment

CHUNK = 16


def continue_texts(
    reader: ContextReader,
    states: Any,
    pending: Sequence[np.ndarray],
    length: int,
    *,
    vocab_size: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    keys: jax.Array | None = None,
) -> Iterator[np.ndarray]:
    """Continues texts; a caller that has enough stops asking.

    Args:
      states: memories at the last segment border of every text, every leaf [lanes, ...].
      pending: of every text the tokens since, int32 [n], n at most a segment; see
        `contexts.num_full`. Without tokens a text is not continued; what is drawn has no meaning.
      vocab_size: that of the tokenizer; the model's may be larger.
      temperature, top_k, top_p: as in `config.generate`; temperature 0 takes the most likely.
      keys: random keys [lanes], see `continue_stream`; None = always the same.

    Yields:
      The next tokens of all texts, int32 [texts, <= 16].
    """
    lanes = reader.num_lanes
    longest = max(map(len, pending), default=0)
    tokens, counts = np.zeros((lanes, longest), np.int32), np.zeros((lanes,), np.int32)
    for lane, text in enumerate(pending):
        counts[lane] = len(text)
        tokens[lane, : len(text)] = text
    states = jax.tree.map(jnp.copy, states)  # the caller's may be read again
    logits, stream = reader.run(read_open_segment, states, tokens, counts)
    keys = keys_of(0, lanes) if keys is None else keys
    sampling = (float(temperature), int(top_k), float(top_p))
    for start in range(0, length, CHUNK):
        drawn, logits, stream = reader.run(
            continue_stream,
            logits,
            stream,
            keys,
            start,
            CHUNK,
            CHUNK,
            vocab_size,
            sampling,
        )
        yield np.asarray(drawn)[: len(pending), : length - start]
        stopping.poll()


def complete_texts(
    reader: ContextReader,
    states: Any,
    pending: Sequence[np.ndarray],
    length: int,
    tokenizer: Tokenizer,
    conventions: Conventions,
    until: Sequence[str],
    **sampling: Any,
) -> list[str]:
    """Continues texts up to their ends: a token that ends a text, or a stop text.

    Args:
      reader, states, pending, length: as in `continue_texts`.
      until: stop texts.
      **sampling: temperature, top_k, top_p and keys of `continue_texts`.

    Returns:
      What was written before its end; '' for texts without pending tokens.
    """
    tokens = [np.zeros((0,), np.int32)] * len(pending)
    texts, ended = [''] * len(pending), [not len(text) for text in pending]
    chunks = continue_texts(
        reader, states, pending, length, vocab_size=tokenizer.vocab_size, **sampling
    )
    for chunk in chunks:
        for lane, new in enumerate(chunk):
            if not ended[lane]:
                tokens[lane] = np.concatenate([tokens[lane], new])
                texts[lane], ended[lane] = _before_end(tokenizer, conventions, tokens[lane], until)
        if all(ended):
            break
    return texts


def _before_end(
    tokenizer: Tokenizer, conventions: Conventions, tokens: np.ndarray, until: Sequence[str]
) -> tuple[str, bool]:
    """The text of tokens before the first that ends a text, or stop text; and whether there was one."""
    tokens, ended = conventions.up_to_end(tokens)
    text = tokenizer.decode(tokens).decode('utf-8', 'replace')
    stops = [place for stop in until if (place := text.find(stop)) >= 0]
    return text[: min(stops)] if stops else text, bool(stops) or ended
