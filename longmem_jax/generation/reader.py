"""Generation of any length in constant memory, from prompts of any length, read whole first."""

import codecs
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.stream import (
    Stream,
    close_stream,
    open_stream,
    read_token,
)
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment


def filter_logits(logits: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """Sets logits outside the `top_k` largest, or outside the nucleus `top_p`, to -inf.

    Args:
      logits: [batch, vocab].
      top_k: 0 = all.
      top_p: 1.0 = all; the smallest set of likeliest tokens with at least this probability
        (Holtzman et al., 2020); the likeliest token always stays.
    """
    if top_k:
        least = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p < 1.0:
        falling = -jnp.sort(-logits, axis=-1)
        before = jnp.cumsum(jax.nn.softmax(falling, axis=-1), axis=-1)
        inside = before - jax.nn.softmax(falling, axis=-1) < top_p
        least = jnp.min(jnp.where(inside, falling, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


def sample(
    logits: jax.Array, key: jax.Array, temperature: float, top_k: int, top_p: float
) -> jax.Array:
    """Draws tokens, int32 [batch], from logits [batch, vocab]; temperature 0 takes the likeliest."""
    if temperature == 0.0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = filter_logits(logits / temperature, top_k, top_p)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _read_segment(model, params, state, tokens):
    segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape[:1], bool))
    return model.apply({'params': params}, segment, state, train=False, method='hidden')[1]


@functools.partial(jax.jit, static_argnums=0)
def _open(model, params, state, tokens, count):
    """Opens a segment and reads the first `count` (scalar) of `tokens` [batch, segment_length]."""
    batch_size = tokens.shape[0]
    stream = open_stream(model, params, state, batch_size)
    logits = jnp.zeros((batch_size, model.config.vocab_size), jnp.float32)

    def body(i, carry):
        token = jax.lax.dynamic_index_in_dim(tokens, i, axis=1, keepdims=False)
        logits, stream = read_token(model, params, token, carry[1])
        return logits.astype(jnp.float32), stream

    return jax.lax.fori_loop(0, count, body, (logits, stream))


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7, 8), donate_argnums=3)
def _continue(model, params, logits, stream, key, length, temperature, top_k, top_p):
    """Draws and reads `length` tokens; returns them [batch, length], the last logits, the stream."""

    def body(carry, key):
        logits, stream = carry
        token = sample(logits, key, temperature, top_k, top_p)
        logits, stream = read_token(model, params, token, stream)
        return (logits.astype(jnp.float32), stream), token

    (logits, stream), tokens = jax.lax.scan(body, (logits, stream), jax.random.split(key, length))
    return tokens.T, logits, stream


@functools.partial(jax.jit, static_argnums=0)
def _close(model, params, stream):
    return close_stream(model, params, stream)


def fresh_state(model: LanguageModel, params: Any, batch_size: int) -> Any:
    """Memories of documents that have not begun."""
    return model.apply({'params': params}, batch_size, method='initial_state')


class Reader:
    """Reads and continues one text per lane; memory and time per token do not grow with it.

    Attributes:
      model, params: the language model.
      state: memories at the last segment border.
      pending: int32 [batch, n], tokens of the open segment.
      logits: [batch, vocab] of the next token; None before the first token.
    """

    def __init__(self, model: LanguageModel, params: Any, state: Any, pending: np.ndarray):
        """Starts from memories and the tokens read since; see `fresh_state`."""
        self.model, self.params, self.state = model, params, state
        self.pending = np.zeros((pending.shape[0], 0), np.int32)
        self.logits: jax.Array | None = None
        self._stream: Stream | None = None
        if pending.shape[1]:
            self.read(pending)

    def read(self, tokens: np.ndarray) -> None:
        """Reads tokens, int32 [batch, n], the whole of them: full segments straight into memory."""
        tokens = np.concatenate([self.pending, tokens], axis=1)
        length = self.model.segment_length
        # The last token stays in the open segment: it gives the logits.
        borders = max(tokens.shape[1] - 1, 0) // length * length
        for start in range(0, borders, length):
            part = jnp.asarray(tokens[:, start : start + length], jnp.int32)
            # The buffer of the memories is given to the new ones, so it must be ours alone.
            state = self.state if start else jax.tree.map(jnp.copy, self.state)
            self.state = _read_segment(self.model, self.params, state, part)
        self.pending = tokens[:, borders:]
        count = self.pending.shape[1]
        padded = np.zeros((tokens.shape[0], length), np.int32)
        padded[:, :count] = self.pending
        self.logits, self._stream = _open(
            self.model, self.params, self.state, jnp.asarray(padded), count
        )

    def write(
        self,
        length: int,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
        chunk: int = 16,
    ) -> Iterator[np.ndarray]:
        """Continues the text by `length` tokens; yields int32 [batch, <= chunk] as they come.

        The tokens drawn depend on the seed and on `chunk`, not on `length`.
        """
        key = jax.random.key(seed)
        for start in range(0, length, chunk):
            size = min(chunk, length - start)
            tokens, self.logits, self._stream = _continue(
                self.model,
                self.params,
                self.logits,
                self._stream,
                jax.random.fold_in(key, start),
                size,
                float(temperature),
                int(top_k),
                float(top_p),
            )
            tokens = np.asarray(tokens)
            self._advance(tokens)
            yield tokens

    def close(self) -> Any:
        """The memories with the tokens of the open segment written to them."""
        if self._stream is None:
            return self.state
        return _close(self.model, self.params, self._stream)

    def _advance(self, tokens):
        """Keeps `state` and `pending` in step with the stream, for saving."""
        self.pending = np.concatenate([self.pending, tokens], axis=1)
        length = self.model.segment_length
        if self.pending.shape[1] > length:
            borders = (self.pending.shape[1] - 1) // length * length
            self.pending = self.pending[:, borders:]
            self.state = jax.tree.map(jnp.copy, self._stream.state)


class TextStream:
    """Turns tokens into text as they come: a character cut in two waits for its rest."""

    CONTEXT = 16  # earlier tokens decoded with new ones: spaces depend on what stands before

    def __init__(self, tokenizer: Any):
        """Text of `tokenizer`'s tokens."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')
        self._last = np.zeros((0,), np.int32)

    def text(self, tokens: np.ndarray, *, final: bool = False) -> str:
        """The text of int32 [n] tokens, as far as it is whole; `final` gives out the rest."""
        before = self._tokenizer.decode(self._last)
        joined = np.concatenate([self._last, tokens])
        after = self._tokenizer.decode(joined)
        self._last = joined[-self.CONTEXT :]
        return self._decoder.decode(after[len(before) :], final)


def sample_text(model: LanguageModel, params: Any, tokenizer: Any, settings: Any) -> str:
    """A text from nothing, `settings.sample_length` tokens long; `settings` is `config.generate`."""
    reader = Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
    reader.read(np.asarray([[tokenizer.begin]], np.int32))
    stream = TextStream(tokenizer)
    parts = reader.write(
        settings.sample_length,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
    )
    return ''.join(stream.text(part[0]) for part in parts)
