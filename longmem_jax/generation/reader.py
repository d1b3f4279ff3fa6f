"""Generation of any length in constant memory, after reading the whole of a prompt of any length."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax import stopping
from longmem_jax.generation.beam_search import beam_search
from longmem_jax.generation.lanes import lane_by_lane
from longmem_jax.generation.sampling import sample
from longmem_jax.generation.stream import Stream, close_stream, read_open_segment, read_token
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _read_segment(model: LanguageModel, params: Any, state: Any, tokens: jax.Array) -> Any:
    """The memories after a full segment, int32 [batch, segment_length]."""

    def read(state: Any, tokens: jax.Array) -> Any:
        segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape[:1], bool))
        return model.apply({'params': params}, segment, state, train=False, method='hidden')[1]

    return lane_by_lane(read, tokens.shape[1], state, tokens)


@functools.partial(jax.jit, static_argnums=(0, 6, 8, 9), donate_argnums=3)
def continue_stream(
    model: LanguageModel,
    params: Any,
    logits: jax.Array,
    stream: Stream,
    keys: jax.Array,
    first: int,
    length: int,
    count: int,
    vocab_size: int,
    sampling: tuple[float, int, float],
) -> tuple[jax.Array, jax.Array, Stream]:
    """Draws and reads the next tokens, all below `vocab_size`.

    Args:
      logits: float32 [batch, vocab] of the next token.
      stream: the texts so far; donated.
      keys: random keys [batch]. What is drawn for a text depends on its own, and on `first`.
      first: tokens that were drawn before with these keys.
      length: room for tokens; a program is compiled for each, and takes any `count`.
      count: how many are drawn, at most `length`.
      vocab_size: that of the tokenizer.

    Returns:
      The tokens, int32 [batch, length] with zeros after the first `count`, the last logits, and the
      stream.
    """

    def body(i: jax.Array, carry: tuple[jax.Array, Stream, jax.Array]) -> Any:
        logits, stream, tokens = carry
        # A model may have more ids than its tokenizer: they mean nothing.
        drawn_by = jax.vmap(jax.random.fold_in, (0, None))(keys, first + i)
        token = sample(logits[:, :vocab_size], drawn_by, *sampling)
        logits, stream = read_token(model, params, token, stream)
        return logits.astype(jnp.float32), stream, tokens.at[:, i].set(token)

    tokens = jnp.zeros((logits.shape[0], length), jnp.int32)
    logits, stream, tokens = jax.lax.fori_loop(0, count, body, (logits, stream, tokens))
    return tokens, logits, stream


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6, 7, 8))
def _search(
    model: LanguageModel,
    params: Any,
    stream: Stream,
    last: jax.Array,
    vocab_size: int,
    ends: tuple[int, ...],
    beams: int,
    length: int,
    length_penalty: float,
) -> jax.Array:
    """The best continuation of one lane, int32 [length + 1]; `last` (scalar) is its last token."""

    def step(tokens: jax.Array, stream: Stream, position: jax.Array) -> tuple[jax.Array, Stream]:
        del position  # the stream counts
        logits, stream = read_token(model, params, tokens, stream)
        return logits[:, :vocab_size], stream

    tokens, _ = beam_search(
        step,
        stream,
        1,
        begin=last,
        end=ends,
        beams=beams,
        max_length=length + 1,
        length_penalty=length_penalty,
    )
    return tokens[0, 0]


@functools.partial(jax.jit, static_argnums=0)
def _close(model: LanguageModel, params: Any, stream: Stream) -> Any:
    return close_stream(model, params, stream)


def keys_of(seed: int, lanes: int) -> jax.Array:
    """A random key for each lane, [lanes]; a lane has the same one however many there are."""
    numbers = jnp.arange(lanes, dtype=jnp.int32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)


def fresh_state(model: LanguageModel, params: Any, batch_size: int) -> Any:
    """Memories at the start of a document; every leaf [batch_size, ...]."""
    return model.apply({'params': params}, batch_size, method='initial_state')


@functools.partial(jax.jit, static_argnums=(0, 2))
def _fresh(model: LanguageModel, params: Any, lanes: int) -> Any:
    """`fresh_state` in one program; none of it is a parameter, so that it may be donated."""
    return jax.tree.map(jnp.copy, fresh_state(model, params, lanes))


class Reader:
    """Reads and continues one text per lane; memory and time per token do not grow with it.

    Attributes:
      model, params: the language model.
      pending: int32 [batch, n], tokens of the open segment.
      logits: [batch, vocab] of the next token; None before the first token.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Any,
        state: Any = None,
        pending: np.ndarray | None = None,
        *,
        lanes: int = 1,
    ):
        """Starts from a copy of memories and the tokens read since, or from the start of `lanes`."""
        self.model, self.params = model, params
        # There is one copy of the memories: that of the stream, as soon as there is a stream.
        made = state is None
        self._state = _fresh(model, params, lanes) if made else jax.tree.map(jnp.copy, state)
        lanes = lanes if pending is None else pending.shape[0]
        self.pending = np.zeros((lanes, 0), np.int32)
        self.logits: jax.Array | None = None
        self._stream: Stream | None = None
        if pending is not None and pending.shape[1]:
            self.read(pending)

    @property
    def state(self) -> Any:
        """Memories at the last segment border; overwritten when more is read or written."""
        return self._state if self._stream is None else self._stream.state

    def read(self, tokens: np.ndarray) -> None:
        """Reads all tokens, int32 [batch, n]; full segments are written straight to the memories."""
        tokens = np.concatenate([self.pending, tokens], axis=1)
        length = self.model.segment_length
        # The last token stays in the open segment: it gives the logits.
        full = max(tokens.shape[1] - 1, 0) // length * length
        self._state, self._stream = self.state, None
        for start in range(0, full, length):
            segment = jnp.asarray(tokens[:, start : start + length], jnp.int32)
            self._state = _read_segment(self.model, self.params, self._state, segment)
            stopping.poll()
        self.pending = tokens[:, full:]
        self.logits, self._stream = self._open(self._state, self.pending)
        self._state = None

    def read_in_parts(self, tokens: np.ndarray, segments: int = 64) -> Iterator[int]:
        """Reads all tokens as `read` does; yields how many are read, every few segments."""
        step, start = segments * self.model.segment_length, 0
        # Parts end after the first token of a segment, the least that can stay open.
        ends = range(step + 1 - self.pending.shape[1], tokens.shape[1], step)
        for end in (*ends, tokens.shape[1]):
            self.read(tokens[:, start:end])
            yield end
            start = end

    def write(
        self,
        length: int,
        *,
        vocab_size: int,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
        chunk: int = 16,
    ) -> Iterator[np.ndarray]:
        """Continues the text by `length` tokens; yields them in chunks, int32 [batch, <= chunk].

        All are below `vocab_size`, that of the tokenizer: the model's may be larger. The tokens
        drawn depend on the seed, not on `length` and `chunk`.
        """
        keys = keys_of(seed, self.pending.shape[0])
        sampling = (float(temperature), int(top_k), float(top_p))
        for start in range(0, length, chunk):
            size = min(chunk, length - start)
            tokens, self.logits, self._stream = continue_stream(
                self.model,
                self.params,
                self.logits,
                self._stream,
                keys,
                start,
                chunk,
                size,
                vocab_size,
                sampling,
            )
            tokens = np.asarray(tokens)[:, :size]
            self._advance(tokens)
            yield tokens
            stopping.poll()

    def search(
        self,
        length: int,
        *,
        vocab_size: int,
        ends: tuple[int, ...],
        beams: int,
        length_penalty: float,
    ) -> np.ndarray:
        """Continues the text of a single lane by the most likely tokens, int32 [1, n], found by
        beam search. Tokens of `ends` end it; they are not among those returned, nor read.
        Hypotheses are ranked by log-probability / length ** `length_penalty`.
        """
        state = jax.tree.map(jnp.copy, self.state)
        _, stream = self._open(state, self.pending[:, :-1])  # the search reads the last token
        best = np.asarray(
            _search(
                self.model,
                self.params,
                stream,
                jnp.asarray(self.pending[0, -1]),
                vocab_size,
                ends,
                beams,
                length,
                float(length_penalty),
            )
        )
        best = best[None, : int(np.argmax(np.isin(best, ends)))]  # the search always ends
        if best.size:
            self.read(best)
        return best

    def close(self) -> Any:
        """The memories with the tokens of the open segment written to them."""
        if self._stream is None:
            return self.state
        return _close(self.model, self.params, self._stream)

    def _open(self, state: Any, tokens: np.ndarray) -> tuple[jax.Array, Stream]:
        """Logits and stream after `tokens`, int32 [batch, n], of a segment; `state` is donated."""
        counts = np.full(tokens.shape[:1], tokens.shape[1], np.int32)
        return read_open_segment(self.model, self.params, state, tokens, counts)

    def _advance(self, tokens: np.ndarray) -> None:
        """Keeps `pending` in line with the stream, so that it can be saved with `state`."""
        self.pending = np.concatenate([self.pending, tokens], axis=1)
        length = self.model.segment_length
        if self.pending.shape[1] > length:
            full = (self.pending.shape[1] - 1) // length * length
            self.pending = self.pending[:, full:]
