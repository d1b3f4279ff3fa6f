"""The programs of one entry that all its promises share, each traced and compiled once.

Tracing, lowering and compiling are nearly all of the time of the suite, so a promise is a call of one of
these programs with other tokens, paddings, starts or states, never another program. Models are traced
under strict promotion of dtypes and ranks.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.stream import Stream, open_stream, read_token
from longmem_jax.in_place import readable_state
from longmem_jax.segment import Aux, Segment, Tree, read_segments
from longmem_jax.testing import toys
from longmem_jax.testing.toys import LENGTH, SEGMENTS, VOCAB

# The least number of rows that eight devices in a mesh of 2 x 2 x 2 can share.
ROWS = 4
EVERY = np.ones((SEGMENTS,), bool)
KEPT = 3  # entries whose programs are kept
# Two programs that add up in other orders may differ by this, and by so many times. Muon lifts the
# smallest singular values, which are rounding where a block has few tokens, some hundred times.
ROUNDING = 2e-5
LIFTED = {'titans:muon': 5}


class Reading(NamedTuple):
    """What a program says of several segments, as numpy arrays.

    Attributes:
      loss: scalar, `loss_of` all segments.
      logits: float32 [segments, rows, length, vocabulary].
      states: after every segment, leaves [segments, rows, ...].
      aux: of every segment, leaves [segments, ...].
      gradient: of the loss, like the parameters.
    """

    loss: Any
    logits: Any
    states: Any
    aux: Aux
    gradient: Any


def segments_of(number: int = SEGMENTS) -> Segment:
    """Full segments of random tokens as numpy arrays; documents start in the first."""
    return jax.device_get(toys.random_segments(number, ROWS))


def rounding(entry: Any) -> float:
    """The largest difference of logits and states between two programs of an entry."""
    return ROUNDING * LIFTED.get(entry.name, 1)


def at(tree: Tree, number: int) -> Tree:
    """The part of a pytree that belongs to segment `number`."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def of_row(tree: Tree, row: int) -> Tree:
    """The part of a pytree of leaves [rows, ...] that belongs to `row`."""
    return jax.tree.map(lambda leaf: leaf[row], tree)


def loss_of(logits: jax.Array, valid: jax.Array) -> jax.Array:
    """The loss of one or more segments: a sum over their tokens, so that parts of it add up."""
    return jnp.where(valid[..., None], jnp.square(jax.nn.log_softmax(logits)), 0.0).sum()


def zeros(function: Any) -> Any:
    """Zeros like the result of a function, which is not computed; most texts begin with a start."""
    shapes = jax.eval_shape(function)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def forward(model: Any, *, train: bool = False) -> Any:
    """Reads segments in a scan that recomputes them in the backward pass.

    Returns:
      (parameters, state, segments, used) to (loss, (logits, states, aux)).
    """

    def loss(params: Any, state: Any, segments: Segment, used: Any) -> Any:
        def read(state: Any, segment: Segment, key: jax.Array) -> Any:
            rngs = {'dropout': key, 'memory': key} if train else None
            with jax.numpy_rank_promotion('raise'), jax.numpy_dtype_promotion('strict'):
                logits, state, aux = model.apply(
                    {'params': params}, segment, state, train=train, rngs=rngs
                )
            return state, (logits, readable_state(state), aux)

        _, found = read_segments(read, state, segments, jax.random.key(0), used=used)
        return loss_of(found[0], segments.valid), found

    return loss


def reading(model: Any) -> Any:
    """The same with gradients: ((loss, (logits, states, aux)), gradient)."""
    return jax.value_and_grad(forward(model), has_aux=True)


class Entry:
    """An entry's toy, with parameters that have moved from their initial values, and its programs.

    One layer: what several do together is the model's, and tested with it and with the goldens.

    Attributes:
      name: of the entry, or 'NAME:VARIANT'.
      model, params: the toy, float32.
      declared: names of the auxiliary losses that the entry declares.
    """

    def __init__(self, name: str):
        self.name = name
        self.model, params = toys.moved(name)
        self.params = jax.device_get(params)
        self.declared = toys.names_of_losses(self.model.config)
        self.begin = zeros(lambda: fresh_state(self.model, self.params, ROWS))

    @functools.cached_property
    def traced(self) -> Any:
        """The program of `read`, traced."""
        program = jax.jit(reading(self.model))
        return program.trace(self.params, self.begin, segments_of(), EVERY)

    @functools.cached_property
    def _program(self) -> Any:
        return self.traced.lower().compile()

    @functools.cached_property
    def training(self) -> Any:
        """The toy with dropout."""
        return toys.with_config(self.name, layers=1, dropout=0.1, attention_dropout=0.1)

    @functools.cached_property
    def _trained(self) -> Any:
        return jax.jit(forward(self.training, train=True))

    @functools.cached_property
    def traced_training(self) -> Any:
        """The program of `read_training`, traced."""
        return self._trained.trace(self.params, self.begin, segments_of(), EVERY)

    def read_training(self, segments: Segment) -> Reading:
        """`read` with the dropout and the draws of training, without the gradient."""
        loss, found = jax.device_get(self._trained(self.params, self.begin, segments, EVERY))
        logits, states, aux = found
        return Reading(loss, logits, states, aux, None)

    def read(
        self,
        segments: Segment | None = None,
        *,
        params: Any = None,
        state: Any = None,
        used: np.ndarray = EVERY,
    ) -> Reading:
        """Reads `SEGMENTS` segments of `ROWS` rows.

        Args:
          segments: None = those of `segments_of`.
          params: None = the toy's.
          state: before the first segment; None = for segments that begin with a start in all rows.
          used: bool [segments], False = skipped.
        """
        if segments is None and params is None and state is None and used is EVERY:
            return self.plain
        segments = segments_of() if segments is None else segments
        params = self.params if params is None else params
        state = self.begin if state is None else state
        (loss, found), gradient = jax.device_get(self._program(params, state, segments, used))
        logits, states, aux = found
        return Reading(loss, logits, states, aux, gradient)

    @functools.cached_property
    def plain(self) -> Reading:
        """What is said of the segments of `segments_of`."""
        return self.read(segments_of())

    @functools.cached_property
    def fresh(self) -> Any:
        """The initial state, leaves [rows, ...]: as a start without a token leaves it."""
        segments = segments_of()
        nothing = segments.replace(valid=np.zeros_like(segments.valid))
        return at(self.read(nothing).states, 0)

    @functools.cached_property
    def stream(self) -> Stream:
        """A stream before its first token, which must be a start."""
        return zeros(lambda: open_stream(self.model, self.params, self.begin, ROWS))

    @functools.cached_property
    def traced_token(self) -> Any:
        """The program of `read_token`, traced."""
        nothing = np.zeros((ROWS,), np.int32)

        def read(params: Any, tokens: jax.Array, stream: Stream, start: jax.Array) -> Any:
            # As on accelerators, so that a memory must open and close the segments of many lanes.
            return read_token(self.model, params, tokens, stream, start, in_turn=False)

        return jax.jit(read).trace(self.params, nothing, self.stream, nothing.astype(bool))

    @functools.cached_property
    def _token(self) -> Any:
        return self.traced_token.lower().compile()

    def read_token(
        self, tokens: np.ndarray, stream: Stream, start: np.ndarray | None = None
    ) -> tuple[np.ndarray, Stream]:
        """`generation.stream.read_token` of all rows; `start` None = in no row."""
        start = np.zeros((ROWS,), bool) if start is None else start
        logits, stream = self._token(self.params, tokens, stream, start)
        return np.asarray(logits), stream

    def read_tokens(self, segments: Segment, tokens: int = LENGTH) -> tuple[np.ndarray, list[Any]]:
        """Reads the first `tokens` of every segment token by token, and closes it there.

        Args:
          segments: `start` is bool [segments, rows, length], True at the first token of all rows.
          tokens: of every segment.

        Returns:
          logits [segments, rows, tokens, vocabulary], and the memories at the start of each segment.
        """
        stream, logits, states = self.stream, [], []
        for number, position in np.ndindex(len(segments.tokens), tokens):
            one = np.asarray(segments.tokens[number, :, position])
            start = np.asarray(segments.start[number, :, position])
            found, stream = self.read_token(one, stream, start)
            logits.append(found)
            if not position:
                # A segment that begins late is full early.
                late = np.full((ROWS,), LENGTH - tokens, np.int32)
                stream = stream.replace(begin=late) if tokens < LENGTH else stream
                states.append(jax.device_get(readable_state(stream.state)))
        joined = np.stack(logits).reshape(len(segments.tokens), tokens, ROWS, VOCAB)
        return joined.swapaxes(1, 2), states


entry = functools.lru_cache(maxsize=KEPT)(Entry)
