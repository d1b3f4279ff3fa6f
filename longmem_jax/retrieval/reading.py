"""One pass of a trained model over a corpus: its predictions, and the keys for retrieval.

The key of a token is the normalised input of the last feed-forward layer at the token's position; the
value is the token that follows (Khandelwal et al., 2020).
"""

from collections.abc import Iterator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.lanes import Batch, Cursor, in_order
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import FEED_FORWARD
from longmem_jax.models.inspect import capture
from longmem_jax.models.kinds import KINDS
from longmem_jax.segment import Segment, read_segments

SEGMENTS = 8  # per compiled call


@flax.struct.dataclass
class Part:
    """Some consecutive segments of all lanes; leading axes [segments, lanes, length].

    Attributes:
      keys: [..., d_model], float32.
      hidden: [..., d_model], float32: the inputs of the output layer.
      nll: float32, nats of the target by the model alone.
      targets: int32, the tokens that follow.
      tokens: int32, the tokens read.
      valid: bool, tokens, not padding.
      counted: bool, targets that are scored.
      documents: int32 [segments, lanes], ordinal of the document.
      start: bool [segments, lanes], whether it begins here.
      num_bytes: float32 [segments, lanes], source bytes of the targets.
    """

    keys: Any
    hidden: Any
    nll: Any
    targets: Any
    tokens: Any
    valid: Any
    counted: Any
    documents: Any
    start: Any
    num_bytes: Any


def look(
    model: Any, params: Any, memory: Any, inputs: Batch
) -> tuple[Any, tuple[jax.Array, jax.Array, jax.Array]]:
    """Reads one segment of every lane.

    Args:
      model, params: the language model.
      memory: memories before the segment.
      inputs: a batch without the axis of segments.

    Returns:
      The memories after it; keys and hidden vectors [lanes, length, d_model] and nll [lanes, length],
      float32.
    """

    def normalized(layer: Any, x: jax.Array, state: Any, segment: Segment) -> jax.Array:
        return layer.normalize(x)

    layers = tuple(entry.layer for entry in FEED_FORWARD.values())
    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    with capture(layers, normalized) as feed_forward_inputs:
        hidden, memory, _ = model.apply(
            {'params': params}, segment, memory, train=False, method='hidden'
        )
    nll = model.apply({'params': params}, hidden, inputs.targets, method=nll_of)
    keys = feed_forward_inputs[-1]  # of the last block
    first = KINDS[model.config.kind].first_token(model.config)
    keys = keys[:, first : first + hidden.shape[1]]
    return memory, tuple(array.astype(jnp.float32) for array in (keys, hidden, nll))


def nll_of(model: Any, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """Negative log-likelihood of `targets`, in nats and of their shape; for `model.apply`."""
    return model.stack.embedding.nll(hidden, targets)[0]


@flax.struct.dataclass
class Position:
    """The position of a pass over a corpus.

    Attributes:
      memory: memories of all lanes, every leaf [lanes, ...].
      cursor: position of every lane in the data.
      ordinals: int32 [lanes], ordinal of the current document of a lane; -1 before the first.
    """

    memory: Any
    cursor: Cursor
    ordinals: Any


class Reader:
    """Reads a split from its beginning, or from where an earlier pass stopped.

    Attributes:
      memory: memories after the last part yielded.
      cursor: position after it.
      ordinals: int32 [lanes], ordinals of the documents read last.
    """

    def __init__(self, experiment: Experiment, params: Any, split: str):
        """Opens the corpus; raises `UsageError` if there are several processes."""
        if jax.process_count() > 1:
            raise UsageError('Retrieval reads a corpus with one process; start one.')
        self._model, self._params = experiment.evaluation_model, params
        self._config, self._split = experiment.config.evaluate, split
        self._corpus = experiment.corpus(split)
        self._step = jax.jit(self._read, donate_argnums=1)
        lanes = self._config.num_lanes
        self.memory = jax.jit(lambda params: fresh_state(self._model, params, lanes))(params)
        self.ordinals = np.full((lanes,), -1, np.int32)
        self.cursor = Cursor(np.zeros((lanes,), np.int32), np.zeros((lanes,), np.int32))

    def position(self) -> Position:
        """A copy of the position after the last part yielded."""
        memory = jax.tree.map(jnp.copy, self.memory)
        return Position(memory, *jax.tree.map(jnp.asarray, (self.cursor, self.ordinals)))

    def go_to(self, position: Position) -> None:
        """Moves to a position of the same split and parameters; call it before `parts`."""
        self.memory = jax.tree.map(jnp.copy, position.memory)
        self.cursor = jax.tree.map(np.asarray, position.cursor)
        self.ordinals = np.asarray(position.ordinals)

    def _read(self, params: Any, memory: Any, batch: Batch) -> tuple[Any, tuple[jax.Array, ...]]:
        def read(memory: Any, inputs: Batch, key: jax.Array) -> Any:
            return look(self._model, params, memory, inputs)

        return read_segments(read, memory, batch, jax.random.key(0))

    def parts(self, max_segments: int = 0) -> Iterator[Part]:
        """Yields the split in parts, every scored token once.

        Args:
          max_segments: stop after this many segments per lane, rounded up to a part; 0 = read all.
        """
        lanes, length = self._config.num_lanes, self._config.segment_length
        read = 0
        for batch, cursor in in_order(self._corpus, lanes, length, SEGMENTS, cursor=self.cursor):
            self.memory, arrays = self._step(self._params, self.memory, batch)
            documents = np.cumsum(np.asarray(batch.start), axis=0) + self.ordinals[None]
            self.ordinals = documents[-1].astype(np.int32)
            self.cursor = cursor
            keys, hidden, nll = (np.asarray(array) for array in arrays)
            yield Part(
                keys=keys,
                hidden=hidden,
                nll=nll,
                targets=np.asarray(batch.targets),
                tokens=np.asarray(batch.tokens),
                valid=np.asarray(batch.valid),
                counted=np.asarray(batch.valid) & (np.asarray(batch.scored) > 0),
                documents=documents * lanes + np.arange(lanes)[None],
                start=np.asarray(batch.start),
                num_bytes=np.asarray(batch.num_bytes),
            )
            read += SEGMENTS
            if max_segments and read >= max_segments:
                return
