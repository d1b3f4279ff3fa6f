"""Many texts at once, each read by itself up to its last segment border.

The tokens after the last border, those of the open segment, are kept as tokens. Scoring or writing a
continuation reads them again, with segment borders where they would be if the whole text were read at
once. So a text that many continuations share is read once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from longmem_jax import stopping
from longmem_jax.devices.sharding import from_processes, memory_shardings, own_lanes
from longmem_jax.generation import cache
from longmem_jax.generation.lanes import lane_by_lane
from longmem_jax.generation.reader import fresh_state
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Leaf, Segment, Tree, read_segments

SEGMENTS_PER_STEP = 8
Out = TypeVar('Out')


class Rows(flax.struct.PyTreeNode):
    """Segments of texts, one text per lane; leading axis `segments`.

    Attributes:
      tokens, targets: int32 [segments, lanes, length]: what is read, and what follows.
      valid: bool [segments, lanes, length]; False after the end of a text.
      scored: bool [segments, lanes, length]; positions whose targets are scored.
    """

    tokens: Leaf
    targets: Leaf
    valid: Leaf
    scored: Leaf


def num_full(num_tokens: int, length: int) -> int:
    """The tokens of a text before its last segment border; one at least stays after it."""
    return max(num_tokens - 1, 0) // length * length


def cut(
    inputs: Sequence[np.ndarray],
    num_lanes: int,
    length: int,
    targets: Sequence[np.ndarray] | None = None,
    first_scored: Sequence[int] | None = None,
) -> Rows:
    """Cuts texts, int32 [n] each, into segments of `length`.

    Unused lanes and the ends of texts are padding. `targets` are as long as the inputs, None =
    nothing is scored; `first_scored` has the first position of every text that is.
    """
    segments = max((-(-len(row) // length) for row in inputs), default=0)
    tokens = np.zeros((num_lanes, segments * length), np.int32)
    rows = Rows(tokens, np.zeros_like(tokens), tokens.astype(bool), tokens.astype(bool))
    for lane, row in enumerate(inputs):
        rows.tokens[lane, : len(row)] = row
        rows.valid[lane, : len(row)] = True
        if targets is not None and first_scored is not None:
            rows.targets[lane, : len(row)] = targets[lane]
            rows.scored[lane, first_scored[lane] : len(row)] = True
    return jax.tree.map(lambda leaf: leaf.reshape(num_lanes, segments, length).swapaxes(0, 1), rows)


def steps(rows: Rows) -> Iterator[Rows]:
    """Parts of `SEGMENTS_PER_STEP` segments, then of one: two programs for texts of any length."""
    count = len(rows.tokens)
    whole = count // SEGMENTS_PER_STEP * SEGMENTS_PER_STEP
    borders = [*range(0, whole, SEGMENTS_PER_STEP), *range(whole, count + 1)]
    for start, end in zip(borders, borders[1:], strict=False):
        yield jax.tree.map(lambda leaf, part=slice(start, end): leaf[part], rows)


class ContextReader:
    """Reads texts, one per lane, into memories.

    Attributes:
      model, params: the language model.
      mesh: devices.
      num_lanes: texts at a time.
      tokens_read: tokens of all texts read so far.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Any,
        mesh: Mesh,
        num_lanes: int,
        report: Callable[[str], None] = lambda line: None,
    ):
        """Compiles nothing yet; `report` is called with a line on the size of a decoder's cache.

        Raises:
          UsageError: lanes that the devices do not divide.
        """
        self.model, self.params, self.mesh, self.num_lanes = model, params, mesh, num_lanes
        self.tokens_read, self._longest, self._report = 0, 0, report
        own_lanes(mesh, num_lanes)

        def one_lane() -> Any:
            return fresh_state(model, unbox(initial_parameters(model, jax.random.key(0))), 1)

        #: shardings of the memories
        self.shardings = memory_shardings(mesh, jax.eval_shape(one_lane))
        self._start = jax.jit(fresh_state, static_argnums=(0, 2), out_shardings=self.shardings)
        self._read = jax.jit(
            _read, static_argnums=0, out_shardings=self.shardings, donate_argnums=2
        )
        self._take = jax.jit(_take, out_shardings=self.shardings)

    def fit(self, longest: int) -> None:
        """Makes the cache of a decoder as long as texts of `longest` tokens need; it never shrinks.

        Without this it is as long as `config.cache_tokens`, or the window. Memories from before do not
        fit then.
        """
        if longest <= self._longest or not cache.has_cache(self.model.config):
            return
        self.model, self._longest = cache.for_texts(self.model, longest), longest
        self._report(cache.in_words(self.model, self.num_lanes))

    def start(self) -> Any:
        """Memories at the start of a text; every leaf [num_lanes, ...]."""
        return self._start(self.model, self.params, self.num_lanes)

    def read(self, texts: Sequence[np.ndarray], states: Any = None) -> Any:
        """Reads texts.

        Args:
          texts: int32 [n] each, whole segments, at most `num_lanes` texts; see `num_full`.
          states: memories to continue from, every leaf [num_lanes, ...], donated; None = a start.

        Returns:
          The memories after them, every leaf [num_lanes, ...]; lanes without a text keep theirs.
        """
        length = self.model.segment_length
        partial = [len(text) for text in texts if len(text) % length]
        if partial:
            raise ValueError(f'texts of {partial} tokens are not whole segments of {length}')
        states = self.start() if states is None else states
        for rows in steps(cut(texts, self.num_lanes, length)):
            states = self.run(self._read, states, self.to_devices(rows))
            stopping.poll()
        self.tokens_read += sum(len(text) for text in texts)
        return states

    def run(self, program: Callable[..., Out], *args: Any) -> Out:
        """`program(model, params, *args)` with this mesh around it: parts of a model ask for it."""
        with jax.set_mesh(self.mesh):
            return program(self.model, self.params, *args)

    def take(self, states: Any, lanes: Sequence[int]) -> Any:
        """The memories of `lanes`, at most `num_lanes` of them, each as often as it is named."""
        index = np.zeros((self.num_lanes,), np.int32)
        index[: len(lanes)] = lanes
        return self._take(states, index)

    def to_devices(self, tree: Tree) -> Tree:
        """Arrays on the devices, from numpy arrays with lanes on axis 1."""
        return from_processes(self.mesh, tree, 1)


def _read(model: LanguageModel, params: Any, states: Any, rows: Rows) -> Any:
    """The memories after the segments of `rows`."""

    def read(state: Any, row: Rows) -> Any:
        segment = Segment(row.tokens, row.valid, jnp.zeros(row.tokens.shape[:1], bool))
        return model.apply({'params': params}, segment, state, train=False, method='hidden')[1]

    def step(state: Any, row: Rows, key: jax.Array) -> tuple[Any, None]:
        return lane_by_lane(read, model.segment_length, state, row), None

    return read_segments(step, states, rows, jax.random.key(0))[0]


def _take(states: Any, lanes: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[lanes], states)
