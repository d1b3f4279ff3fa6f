"""One pass of a trained model over a corpus: its predictions, and the vectors for retrieval.

A key is a vector of the last block at a token's position, by default the normalised input of its
feed-forward layer; the value is the token that follows (Khandelwal et al., 2020). A model without a
memory reads overlapping windows, so that every key has a context.
"""

from collections.abc import Callable, Iterator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.lanes import Batch, Cursor, in_order
from longmem_jax.data.order import shared_out
from longmem_jax.data.windows import Windows
from longmem_jax.devices.sharding import (
    from_processes,
    lanes_sharding,
    memory_shardings,
    own_lanes,
    require_one_process,
)
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.scores import Scores
from longmem_jax.memory.registry import FEED_FORWARD
from longmem_jax.models.inspect import capture
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.stack import around_of, extra_of
from longmem_jax.segment import Segment, read_segments

SEGMENTS = 8  # per compiled call


class Part(flax.struct.PyTreeNode):
    """Some consecutive segments of all lanes; leading axes [segments, lanes, length].

    Attributes:
      keys: [..., d_model], keys and queries of the datastore.
      hidden: [..., d_model], float32: the inputs of the output layer.
      nll: float32, nats of the target by the model alone. These three are None unless asked for.
      targets: int32, the tokens that follow.
      tokens: int32, the tokens read.
      valid: bool, tokens, not padding.
      counted: bool, targets that are scored.
      documents: int32 [segments, lanes], number of the document in the corpus.
      start: bool [segments, lanes], the memories are reset here.
      begins: bool [segments, lanes], a document begins here.
      num_bytes: float32 [segments, lanes], source bytes of the scored targets.
      context: tokens of a segment that were read before, where segments are overlapping windows.
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
    begins: Any
    num_bytes: Any
    context: int = flax.struct.field(pytree_node=False, default=0)


def in_text_order(part: Part) -> Part:
    """The part with one document after another in every lane.

    Neighbouring windows are in different lanes; all of them become the segments of a single lane.
    Segments that continue in their lane stay as they are. The order of the counted tokens is the same.
    """
    if not part.context:
        return part
    segments, lanes = part.start.shape
    return jax.tree.map(lambda leaf: leaf.reshape(segments * lanes, 1, *leaf.shape[2:]), part)


def look(
    model: LanguageModel, params: Any, memory: Any, inputs: Batch, key: str = 'feed_forward'
) -> tuple[Any, tuple[jax.Array, jax.Array, jax.Array]]:
    """Reads one segment of every lane; `key` is one of `config.retrieval.KEYS`.

    Returns the memories after it; keys and hidden vectors [lanes, length, d_model] and nll [lanes,
    length], float32.
    """

    def of_feed_forward(layer: Any, x: jax.Array, state: Any, segment: Segment) -> jax.Array:
        return layer.normalize(x) if key == 'feed_forward' else x

    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    if key.startswith('feed_forward'):
        layers: Any = tuple(entry.layer.module for entry in FEED_FORWARD.values())
        take: Callable[..., jax.Array] = of_feed_forward
    else:
        layers, take = Norm, lambda norm, x: x
    with capture(layers, take) as captured:
        hidden, memory, _ = model.apply(
            {'params': params}, segment, memory, train=False, method='hidden'
        )
    nll = model.apply({'params': params}, hidden, inputs.targets, method=of_targets).nll
    keys = hidden
    if key.startswith('feed_forward') or (key == 'hidden_raw' and model.config.final_norm):
        first = 0
        if key.startswith('feed_forward'):  # the final norm follows when extra tokens are out
            first, _ = extra_of(model.config, around_of(model.config)[-1][0])
        # The last feed-forward layer is that of the last block, the last norm is the final one.
        keys = captured[-1][:, first : first + hidden.shape[1]]
    return memory, tuple(array.astype(jnp.float32) for array in (keys, hidden, nll))


def of_targets(model: LanguageModel, hidden: jax.Array, targets: jax.Array) -> Scores:
    """`Embedding.nll`; for `model.apply`."""
    return model.stack.embedding.nll(hidden, targets)


class Reader:
    """Reads a split from its beginning, or from where an earlier pass stopped.

    Lanes are laid over the devices as in training. With a context every segment is a window over one
    document: its first `context` tokens are read again and not counted, except in the first window.
    Every window is read by itself, without memories.

    Attributes:
      memory: memories after the last part yielded.
      cursor: position after it.
      ordinals: int32 [lanes], place of the current document in the lane's own sequence of documents,
        or of the current window; -1 before the first.
      num_documents: of the split.
    """

    def __init__(
        self,
        experiment: Experiment,
        params: Any,
        split: str,
        *,
        context: int | None = None,
        wanted: tuple[str, ...] = ('keys', 'nll'),
        dtype: str = 'float32',
    ):
        """Opens the corpus.

        Args:
          context: tokens of a window that are read again; 0 = no windows; None =
            `config.evaluate.context`.
          wanted: what to compute and bring to the host, of 'keys', 'hidden' and 'nll'.
          dtype: of the keys on the host.

        Raises:
          UsageError: there are several processes.
        """
        require_one_process('Retrieval')
        self._model, self._params = experiment.evaluation_model, params
        self._config, self._mesh = experiment.config.evaluate, experiment.mesh
        self._key, self._wanted, self._dtype = experiment.config.retrieval.key, wanted, dtype
        self._context = self._config.context if context is None else context
        self._corpus = experiment.corpus(split)
        self.num_documents = len(self._corpus)
        if self._context:
            self._corpus = Windows(self._corpus, self._config.segment_length, self._context)
        lanes = self._config.num_lanes
        own_lanes(self._mesh, lanes)  # refuses lanes that do not divide over the devices

        def fresh(params: Any) -> Any:
            return fresh_state(self._model, params, lanes)

        by_lanes = memory_shardings(self._mesh, jax.eval_shape(fresh, params))
        self._step = jax.jit(
            self._read,
            donate_argnums=1,
            out_shardings=(by_lanes, lanes_sharding(self._mesh, 1)),
        )
        self.memory = jax.jit(fresh, out_shardings=by_lanes)(params)
        self.ordinals = np.full((lanes,), -1, np.int32)
        self.cursor = Cursor(np.zeros((lanes,), np.int32), np.zeros((lanes,), np.int32))

    def require_place(self, cursor: Cursor, ordinals: np.ndarray, where: str) -> None:
        """Raises `UsageError`, naming `where`, if the split has no such position."""
        count = len(self._corpus)
        places = zip(
            cursor.document.tolist(), cursor.offset.tolist(), ordinals.tolist(), strict=True
        )
        for lane, (document, offset, ordinal) in enumerate(places):
            index = lane + document * len(ordinals)
            inside = 0 <= index < count + len(ordinals) and -1 <= ordinal <= document
            if inside and offset:
                inside = index < count and 0 < offset < len(self._corpus[index].tokens)
            if not inside:
                raise UsageError(
                    f'{where}: lane {lane} is at token {offset} of its document {document}, which the '
                    'text does not have.'
                )

    def _read(self, params: Any, memory: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        def read(memory: Any, inputs: Batch, key: jax.Array) -> Any:
            memory, (keys, hidden, nll) = look(self._model, params, memory, inputs, self._key)
            found = {'keys': keys.astype(self._dtype), 'hidden': hidden, 'nll': nll}
            return memory, {name: found[name] for name in self._wanted}

        return read_segments(read, memory, batch, jax.random.key(0))

    def _documents(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Number of the document of every segment, and whether it begins there.

        Int32 and bool, [segments, lanes]. `start`, bool [segments, lanes]: where the lanes' next
        documents (or windows) begin.
        """
        lanes = np.arange(start.shape[1])
        ordinals, numbers = self.ordinals.copy(), np.empty(start.shape, np.int32)
        for segment, begun in enumerate(start):
            for lane in np.flatnonzero(begun):
                ordinals[lane] += 1
                # Lanes skip empty documents; windows are never empty.
                while not self._context and not len(
                    self._corpus[int(ordinals[lane] * len(lanes) + lane)].tokens
                ):
                    ordinals[lane] += 1
            numbers[segment] = ordinals * len(lanes) + lanes
        self.ordinals = ordinals
        if not self._context:
            return numbers, start
        corpus: Any = self._corpus  # `Windows`
        sources = corpus.sources[np.clip(numbers, 0, len(self._corpus) - 1)]
        return sources[..., 0].astype(np.int32), start & (sources[..., 1] == 0)

    def parts(self, max_segments: int = 0) -> Iterator[Part]:
        """Yields the split in parts, every scored token once.

        Args:
          max_segments: stop after this many segments per lane, rounded up to a part; 0 = read all.
            Fewer documents than lanes share them out, as in `Evaluator.evaluate`.
        """
        lanes, length = self._config.num_lanes, self._config.segment_length
        max_segments = shared_out(len(self._corpus), lanes, max_segments)[1]
        read = 0
        for batch, cursor in in_order(self._corpus, lanes, length, SEGMENTS, cursor=self.cursor):
            on_devices = from_processes(self._mesh, batch, 1)
            self.memory, arrays = self._step(self._params, self.memory, on_devices)
            self.cursor = cursor
            documents, begins = self._documents(np.asarray(batch.start))
            yield Part(
                **dict.fromkeys(('keys', 'hidden', 'nll'))
                | {name: np.asarray(array) for name, array in arrays.items()},
                targets=np.asarray(batch.targets),
                tokens=np.asarray(batch.tokens),
                valid=np.asarray(batch.valid),
                counted=np.asarray(batch.valid) & (np.asarray(batch.scored) > 0),
                documents=documents,
                start=np.asarray(batch.start),
                begins=begins,
                num_bytes=np.asarray(batch.num_bytes),
                context=self._context,
            )
            read += SEGMENTS
            if max_segments and read >= max_segments:
                return
