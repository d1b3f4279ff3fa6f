"""Evaluation: bits per byte and perplexity of a split, with the protocol that the number depends on."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from longmem_jax.data.lanes import Batch, batches
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import read_segments, select_lanes
from longmem_jax.sharding import from_processes, lanes_sharding, own_lanes, replicated
from longmem_jax.train_step import LN2, score_segment

SEGMENTS_PER_STEP = 8


@dataclasses.dataclass(frozen=True)
class Result:
    """Sums over the tokens that were scored, and how they were scored.

    Attributes:
      split: 'train', 'validation' or 'test'.
      nll: nats.
      tokens, num_bytes: scored tokens and the source bytes they stand for.
      protocol: segment and memory lengths, lanes, and whether all of the split was read.
    """

    split: str
    nll: float
    tokens: int
    num_bytes: float
    protocol: str

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / max(self.tokens, 1)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the source text, whatever the tokenizer."""
        return self.nll / LN2 / max(self.num_bytes, 1.0)

    @property
    def perplexity(self) -> float:
        """Perplexity per token (infinite beyond the range of floats)."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def scalars(self) -> dict[str, float]:
        """What is worth writing down."""
        return {
            'loss': self.loss,
            'bits_per_byte': self.bits_per_byte,
            'perplexity': self.perplexity,
            'tokens': float(self.tokens),
            'num_bytes': self.num_bytes,
        }


def memory_lengths(model: Any) -> str:
    """The lengths of memory that a model has, by layer type: 'transformer_xl 512'."""
    named = []
    for name in dict.fromkeys(model.attention):
        length = model[name].to_dict().get('memory_length')
        named.append(name if length is None else f'{name} {length}')
    return ', '.join(named)


class Evaluator:
    """Evaluates parameters on a corpus; compiles once per kind of evaluation.

    Attributes:
      model: language model for evaluation (its memory may be longer than in training).
      mesh: devices.
      config: the whole configuration.
    """

    def __init__(self, model: LanguageModel, mesh: Mesh, config: Any):
        """Compiles nothing yet."""
        self.model, self.mesh, self.config = model, mesh, config
        whole = replicated(mesh)
        self._initial = jax.jit(
            lambda params, num_lanes: model.apply(
                {'params': params}, num_lanes, method='initial_state'
            ),
            static_argnums=1,
            out_shardings=lanes_sharding(mesh),
        )
        self._step = jax.jit(
            functools.partial(_score, model),
            static_argnames='emptied',
            out_shardings=(lanes_sharding(mesh), whole),
            donate_argnames='memory',
        )

    def initial_state(self, params: Any, num_lanes: int) -> Any:
        """Memories of documents that have not begun."""
        return self._initial(params, num_lanes)

    def step(self, holder: list[Any], params: Any, initial: Any, batch: Batch) -> Any:
        """Scores one batch from, and into, the memories `holder[0]`; returns the sums."""
        holder[0], sums = self._step(params, initial, holder[0], batch, emptied=False)
        return sums

    def evaluate(
        self,
        params: Any,
        corpus: Any,
        split: str,
        *,
        emptied: bool = False,
        initial: Any = None,
        max_segments: int = 0,
        report: Any = None,
    ) -> tuple[Result, Any]:
        """Scores every token of `corpus` once.

        Args:
          params: parameters.
          corpus: tokenised documents of a split.
          split: its name.
          emptied: empty the memory before every segment, to see what it is worth.
          initial: memories that every document starts from, [lanes, ...]; None = empty.
          max_segments: stop after that many segments per lane; 0 = read all.
          report: called with (segments read per lane, tokens scored) after every step.

        Returns:
          The result and the memories after the last segment of every lane.
        """
        config = self.config.evaluate
        lanes = own_lanes(self.mesh, config.num_lanes)
        if initial is None:
            initial = self.initial_state(params, config.num_lanes)
        memory = jax.tree.map(lambda leaf: leaf.copy(), initial)
        total = np.zeros((3,), np.float64)
        segments, whole = 0, True
        per_step = min(SEGMENTS_PER_STEP, max_segments) if max_segments else SEGMENTS_PER_STEP
        for batch in batches(
            corpus,
            lanes=lanes,
            num_lanes=config.num_lanes,
            segment_length=config.segment_length,
            segments_per_batch=per_step,
            seed=0,
            shuffle=False,
            num_epochs=1,
            cursor=None,
        ):
            batch = from_processes(self.mesh, batch.replace(cursor=()), 1)
            memory, sums = self._step(params, initial, memory, batch, emptied=emptied)
            total += np.asarray([sums['nll'], sums['tokens'], sums['num_bytes']], np.float64)
            segments += per_step
            if report is not None:
                report(segments, int(total[1]))
            if max_segments and segments >= max_segments:
                whole = False
                break
        protocol = (
            f'segment {config.segment_length}, memory {memory_lengths(self.model.config)}'
            f'{" emptied before every segment" if emptied else ""}, {config.num_lanes} lanes, '
            f'{"all" if whole else "the first"} {int(total[1]):,} tokens '
            f'({int(round(total[2])):,} bytes) of {split} scored'
        )
        return Result(split, float(total[0]), int(total[1]), float(total[2]), protocol), memory


def _score(model, params, initial, memory, batch: Batch, *, emptied: bool):
    """Reads a batch; documents start from `initial`. Returns memories and sums of the whole batch."""

    def read(memory, inputs, key):
        start = inputs.start | emptied
        memory = select_lanes(start, initial, memory)
        inputs = inputs.replace(start=jnp.zeros_like(start))
        memory, (sums, _) = score_segment(model, params, memory, inputs, key, train=False)
        return memory, sums

    memory, sums = read_segments(read, memory, batch, jax.random.key(0))
    return memory, jax.tree.map(lambda part: part.sum(), sums)
