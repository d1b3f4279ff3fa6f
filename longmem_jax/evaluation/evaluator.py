"""Evaluation: bits per byte and perplexity of a split, with the protocol they depend on."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from longmem_jax import stopping
from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.lanes import Batch, in_order
from longmem_jax.data.order import shared_out
from longmem_jax.data.windows import Windows
from longmem_jax.devices.sharding import (
    from_processes,
    lanes_sharding,
    memory_shardings,
    num_shards,
    own_lanes,
    replicated,
)
from longmem_jax.errors import number_of
from longmem_jax.evaluation.result import (
    Result,
    memory_lengths,
    scored_text,
    segment_text,
)
from longmem_jax.generation.reader import fresh_state
from longmem_jax.models.kinds import KINDS
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.segment import read_segments, select_lanes
from longmem_jax.training.step import score_segment

SEGMENTS_PER_STEP = 8
COUNTS = ('scored', 'tokens', 'num_bytes', 'answers')  # 0 where there is nothing to read


def passes(config: Any, split: str) -> dict[str, bool]:
    """The evaluations of a split: name to `reset` of `Evaluator.evaluate`.

    With the memory and with the memory reset, to measure what it contributes. Once where no memory
    is carried: in overlapping windows, each of which is read by itself, and in models of examples.
    """
    carried = not config.evaluate.context and not KINDS[config.model.kind].by_example
    return {split: False} | ({f'{split}, memory reset': True} if carried else {})


class Evaluator:
    """Evaluates parameters on a corpus, with the memory and with it reset by one compiled program."""

    def __init__(self, model: LanguageModel, mesh: Mesh, config: Any):
        """Compiles nothing yet."""
        self.model, self.mesh, self.config = model, mesh, config
        everywhere, fresh = replicated(mesh), functools.partial(fresh_state, model)
        one_lane = functools.partial(fresh, batch_size=1)
        memory = memory_shardings(mesh, jax.eval_shape(one_lane, unbox(abstract_parameters(model))))
        self._initial = jax.jit(fresh, static_argnums=1, out_shardings=memory)
        self._first_lanes = jax.jit(
            lambda memory, num_lanes: jax.tree.map(lambda leaf: leaf[:num_lanes], memory),
            static_argnums=1,
            out_shardings=memory,
        )
        self._program = jax.jit(
            functools.partial(_score, model),
            out_shardings=(memory, lanes_sharding(mesh), everywhere),
            donate_argnames='memory',
        )

    def _step(self, *given: Any, reset: bool) -> Any:
        # Memories ask for the mesh, to keep to the lanes and rows of their own device.
        with jax.set_mesh(self.mesh):
            return self._program(*given, reset=reset)

    def initial_state(self, params: Any, num_lanes: int) -> Any:
        """Memories at the start of a document; every leaf [num_lanes, ...]."""
        return self._initial(params, num_lanes)

    def step(
        self, params: Any, initial: Any, memory: Any, batch: Batch
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Scores one batch, on the devices, with memories [lanes, ...] at the start of documents
        (`initial`) and before the batch (donated). Returns the memories after it, and the sums over
        it, see `Result`.
        """
        memory, _, sums = self._step(params, initial, memory, _no_errors(batch), batch, reset=False)
        return memory, sums

    def lower(self, params: Any, initial: Any, memory: Any, batch: Batch) -> jax.stages.Lowered:
        """The program of `step`, with its arguments."""
        with jax.set_mesh(self.mesh):
            return self._program.lower(
                params, initial, memory, _no_errors(batch), batch, reset=False
            )

    def evaluate(
        self,
        params: Any,
        corpus: AnyCorpus,
        split: str,
        *,
        reset: bool = False,
        initial: Any = None,
        max_segments: int = 0,
        report: Callable[[int, int], None] | None = None,
    ) -> tuple[Result, Any]:
        """Scores every token of `corpus` once.

        Args:
          reset: reset the memory before every segment, to measure what it contributes. Overlapping
            windows (`config.evaluate.context`) are always read so.
          initial: memories at the start of every document, [lanes, ...]; None = the model's.
          max_segments: stop after this many segments per lane; 0 = read all. Fewer documents than
            lanes are read by as many lanes, each of which reads more, up to the same number in all.
          report: called with (segments read per lane, tokens scored) after every step.

        Returns:
          The result and the memories after the last segment of every lane.

        Raises:
          Stopped: a signal has stopped the run.
        """
        config = self.config.evaluate
        if config.context:  # every window is a document, so memories are reset before it
            corpus, reset = Windows(corpus, config.segment_length, config.context), True
        num_lanes, max_segments = shared_out(
            len(corpus), config.num_lanes, max_segments, num_shards(self.mesh, 'lanes')
        )
        lanes = own_lanes(self.mesh, num_lanes)
        if initial is None:
            initial = self.initial_state(params, num_lanes)
        elif num_lanes < config.num_lanes:
            initial = self._first_lanes(initial, num_lanes)
        memory = jax.tree.map(lambda leaf: leaf.copy(), initial)
        wrong = from_processes(self.mesh, np.zeros((len(lanes),), np.int32), 0)
        total = dict.fromkeys(COUNTS, 0.0)
        segments, complete = 0, True
        # A divisor, so that a batch ends with the last of them.
        per_step = max(n for n in range(1, SEGMENTS_PER_STEP + 1) if max_segments % n == 0)
        batches = in_order(corpus, num_lanes, config.segment_length, per_step, lanes=lanes)
        for batch, _ in batches:
            batch = from_processes(self.mesh, batch, 1)
            memory, wrong, sums = self._step(params, initial, memory, wrong, batch, reset=reset)
            total = {name: total.get(name, 0.0) + float(value) for name, value in sums.items()}
            segments += per_step
            if report is not None:
                report(segments, int(total['scored']))
            stopping.poll()
            if segments == max_segments:
                complete = next(batches, None) is None
                break
        used = min(config.num_lanes, len(corpus))
        protocol = (
            f'{segment_text(config)}, memory {memory_lengths(self.model.config)}'
            f'{" reset before every segment" if reset else ""}, {number_of(used, "lane")}, '
            f'{scored_text(total, split, None if complete else segments)}'
        )
        return Result(split, total, protocol, memory='reset' if reset else 'kept'), memory


def _no_errors(batch: Batch) -> jax.Array:
    """The wrong tokens of open answers before a split, int32 [lanes]."""
    return jnp.zeros((batch.start.shape[1],), jnp.int32)


def exact_answers(
    wrong: jax.Array, scored: jax.Array, errors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Counts answers without a wrong token, including those begun in earlier segments.

    Args:
      wrong: bool [lanes, length], scored tokens that are wrong.
      scored: uint8 [lanes, length]; 2 at the last token of an answer.
      errors: int32 [lanes], wrong tokens so far of answers begun in earlier segments.

    Returns:
      int32 scalar, and `errors` for the next segment.
    """
    ends = scored == 2
    count = jnp.cumsum(wrong.astype(jnp.int32), axis=1) + errors[:, None]
    at_ends = jax.lax.cummax(jnp.where(ends, count, 0), axis=1)
    before = jnp.pad(at_ends, [(0, 0), (1, 0)])[:, :-1]
    exact = (ends & (count == before)).sum(dtype=jnp.int32)
    return exact, count[:, -1] - at_ends[:, -1]


def _score(
    model: LanguageModel,
    params: Any,
    initial: Any,
    memory: Any,
    errors: jax.Array,
    batch: Batch,
    *,
    reset: jax.Array,
) -> tuple[Any, jax.Array, dict[str, jax.Array]]:
    """Reads a batch; documents start from `initial`, with `reset` (bool scalar) all segments do.

    Returns:
      The memories, the wrong tokens of answers that have not ended, and the sums over the batch.
    """

    def read(carry: Any, inputs: Batch, key: jax.Array) -> Any:
        memory, errors = carry
        errors = jnp.where(inputs.start, 0, errors)
        start = inputs.start | reset
        memory = select_lanes(start, initial, memory)
        inputs = inputs.replace(start=jnp.zeros_like(start))
        memory, (sums, wrong, _) = score_segment(model, params, memory, inputs, key, train=False)
        exact, errors = exact_answers(wrong, inputs.scored, errors)
        answers = (inputs.scored == 2).sum(dtype=jnp.int32)
        return (memory, errors), sums | {'answers': answers, 'exact': exact}

    (memory, errors), sums = read_segments(read, (memory, errors), batch, jax.random.key(0))
    return memory, errors, jax.tree.map(lambda values: values.sum(), sums)
