"""Evaluation: bits per byte and perplexity of a split, with the protocol that the number depends on."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from longmem_jax.data.lanes import Batch, in_order
from longmem_jax.data.windows import Windows
from longmem_jax.devices.sharding import (
    from_processes,
    lanes_sharding,
    memory_shardings,
    own_lanes,
    replicated,
)
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import read_segments, select_lanes
from longmem_jax.training.step import LN2, score_segment

SEGMENTS_PER_STEP = 8
# Fields of layers that say how far back they see, and what is printed before each.
LENGTHS = {
    'memory_length': '',
    'compressed_length': '+ slots ',
    'max_span': 'span ',
    'memory_size': '+ rows ',
    'num_basis': '+ functions ',
    'num_tokens': '+ memory tokens ',
    'num_slots': '+ slots ',
}
SUMS = ('nll', 'scored', 'tokens', 'num_bytes', 'right', 'answers', 'exact')


@dataclasses.dataclass(frozen=True)
class Result:
    """Sums over the tokens that were scored, and how they were scored.

    Attributes:
      split: 'train', 'validation' or 'test'.
      nll: nats.
      tokens, num_bytes: scored tokens and the source bytes they stand for.
      right: scored tokens that were the likeliest.
      answers, exact: answers of several tokens, and how many had all of them right.
      protocol: segment and memory lengths, lanes, and whether all of the split was read.
    """

    split: str
    nll: float
    tokens: int
    num_bytes: float
    protocol: str
    right: int
    answers: int
    exact: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / max(self.tokens, 1)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the source text, whatever the tokenizer; 0 for a task without bytes."""
        return self.nll / LN2 / max(self.num_bytes, 1.0) if self.num_bytes else 0.0

    @property
    def perplexity(self) -> float:
        """Perplexity per token (infinite beyond the range of floats)."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """Share of scored tokens that were the likeliest."""
        return self.right / max(self.tokens, 1)

    @property
    def exact_match(self) -> float:
        """Share of answers that greedy decoding gives word for word."""
        return self.exact / max(self.answers, 1)

    def scalars(self) -> dict[str, float]:
        """What is worth writing down."""
        answers = {'exact_match': self.exact_match, 'answers': float(self.answers)}
        return {
            **(answers if self.answers else {}),
            'accuracy': self.accuracy,
            'loss': self.loss,
            'bits_per_byte': self.bits_per_byte,
            'perplexity': self.perplexity,
            'tokens': float(self.tokens),
            'num_bytes': self.num_bytes,
        }


def memory_lengths(model: Any) -> str:
    """The lengths of memory that a model has, by kind and layer type: 'transformer_xl 512'."""
    named = []
    kinds = [model.kind] if model.kind != 'language_model' else []
    for name in (*kinds, *dict.fromkeys(model.attention)):
        fields = model[name].to_dict()
        lengths = [
            f'{LENGTHS[field]}{fields[field]}'
            for field in LENGTHS
            if fields.get(field) is not None and (fields[field] or field != 'num_tokens')
        ]
        named.append(' '.join([name, *lengths]))
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

        def one_lane():
            params = unbox(initial_parameters(model, jax.random.key(0)))
            return model.apply({'params': params}, 1, method='initial_state')

        memory = memory_shardings(mesh, jax.eval_shape(one_lane))
        self._initial = jax.jit(
            lambda params, num_lanes: model.apply(
                {'params': params}, num_lanes, method='initial_state'
            ),
            static_argnums=1,
            out_shardings=memory,
        )
        self._step = jax.jit(
            functools.partial(_score, model),
            static_argnames='emptied',
            out_shardings=(memory, lanes_sharding(mesh), whole),
            donate_argnames='memory',
        )

    def initial_state(self, params: Any, num_lanes: int) -> Any:
        """Memories of documents that have not begun."""
        return self._initial(params, num_lanes)

    def step(self, holder: list[Any], params: Any, initial: Any, batch: Batch) -> Any:
        """Scores one batch from, and into, the memories `holder[0]`; returns the sums."""
        errors = jnp.zeros((batch.start.shape[1],), jnp.int32)
        holder[0], _, sums = self._step(params, initial, holder[0], errors, batch, emptied=False)
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
        if config.context:
            corpus = Windows(corpus, config.segment_length, config.context)
        lanes = own_lanes(self.mesh, config.num_lanes)
        if initial is None:
            initial = self.initial_state(params, config.num_lanes)
        memory = jax.tree.map(lambda leaf: leaf.copy(), initial)
        wrong = jnp.zeros((config.num_lanes,), jnp.int32, device=lanes_sharding(self.mesh))
        total = dict.fromkeys(SUMS, 0.0)
        segments, whole = 0, True
        per_step = min(SEGMENTS_PER_STEP, max_segments) if max_segments else SEGMENTS_PER_STEP
        for batch in in_order(
            corpus, config.num_lanes, config.segment_length, per_step, lanes=lanes
        ):
            batch = from_processes(self.mesh, batch.replace(cursor=()), 1)
            memory, wrong, sums = self._step(params, initial, memory, wrong, batch, emptied=emptied)
            total = {name: total[name] + float(sums[name]) for name in SUMS}
            segments += per_step
            if report is not None:
                report(segments, int(total['scored']))
            if max_segments and segments >= max_segments:
                whole = False
                break
        context = f' after {config.context} tokens of context' if config.context else ''
        protocol = (
            f'segment {config.segment_length}{context}, memory {memory_lengths(self.model.config)}'
            f'{" emptied before every segment" if emptied else ""}, {config.num_lanes} lanes, '
            f'{"all" if whole else "the first"} {_scored(total)} of {split} scored'
        )
        return Result(
            split,
            total['nll'],
            int(total['scored']),
            total['num_bytes'],
            protocol,
            right=int(total['right']),
            answers=int(total['answers']),
            exact=int(total['exact']),
        ), memory


def _scored(total):
    """What was scored, in words: '1,000 tokens (1,000 bytes)', '8 answers (24 of 900 tokens)'."""
    tokens = f'{int(total["scored"]):,}'
    if total['answers']:
        return f'{int(total["answers"]):,} answers ({tokens} of {int(total["tokens"]):,} tokens)'
    return f'{tokens} tokens ({int(round(total["num_bytes"])):,} bytes)'


def exact_answers(
    wrong: jax.Array, scored: jax.Array, errors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Answers that have no wrong token, also those begun in earlier segments.

    Args:
      wrong: bool [lanes, length], scored tokens that are wrong.
      scored: uint8 [lanes, length]; 2 at the last token of an answer.
      errors: int32 [lanes], wrong tokens of answers begun and not ended before.

    Returns:
      int32 scalar, and `errors` for the next segment.
    """
    ends = scored == 2
    count = jnp.cumsum(wrong.astype(jnp.int32), axis=1) + errors[:, None]
    at_ends = jax.lax.cummax(jnp.where(ends, count, 0), axis=1)
    before = jnp.pad(at_ends, [(0, 0), (1, 0)])[:, :-1]
    exact = (ends & (count == before)).sum(dtype=jnp.int32)
    return exact, count[:, -1] - at_ends[:, -1]


def _score(model, params, initial, memory, errors, batch: Batch, *, emptied: bool):
    """Reads a batch; documents start from `initial`.

    Returns memories, wrong tokens of answers that have not ended, and sums of the whole batch."""

    def read(carry, inputs, key):
        memory, errors = carry
        errors = jnp.where(inputs.start, 0, errors)
        start = inputs.start | emptied
        memory = select_lanes(start, initial, memory)
        inputs = inputs.replace(start=jnp.zeros_like(start))
        memory, (sums, wrong, _) = score_segment(model, params, memory, inputs, key, train=False)
        exact, errors = exact_answers(wrong, inputs.scored, errors)
        answers = (inputs.scored == 2).sum(dtype=jnp.int32)
        return (memory, errors), sums | {'answers': answers, 'exact': exact}

    (memory, errors), sums = read_segments(read, (memory, errors), batch, jax.random.key(0))
    return memory, errors, jax.tree.map(lambda part: part.sum(), sums)
