"""The result of an evaluation, with the protocol that its numbers depend on."""

import dataclasses
import math
from typing import Any, Literal

from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS
from longmem_jax.training.step import LN2


@dataclasses.dataclass(frozen=True)
class Result:
    """Sums over the tokens that were scored, and how they were scored.

    Numbers per token are nan if no token was scored, those per answer if there was no answer.

    Attributes:
      split: 'train', 'validation' or 'test'.
      nll: sum of the negative log-likelihoods, in nats.
      tokens, num_bytes: scored tokens, and the source bytes they represent.
      right: scored tokens that were the most likely; None where that was not measured.
      answers, exact: answers of one or more tokens, and those with every token right.
      protocol: segment and memory lengths, lanes, and how much of the split was scored.
      memory: 'kept' from segment to segment, or 'reset' before every segment.
    """

    split: str
    nll: float
    tokens: int
    num_bytes: float
    protocol: str
    right: int | None
    answers: int
    exact: int
    memory: Literal['kept', 'reset'] = 'kept'

    @property
    def loss(self) -> float:
        """Nats per token."""
        return _mean(self.nll, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the source text, whatever the tokenizer; 0 for a task without bytes."""
        if self.tokens and not self.num_bytes:
            return 0.0
        return _mean(self.nll / LN2, self.num_bytes if self.tokens else 0)

    @property
    def perplexity(self) -> float:
        """Perplexity per token (infinite beyond the range of floats)."""
        return math.inf if self.loss >= 700 else math.exp(self.loss)

    @property
    def accuracy(self) -> float | None:
        """Share of scored tokens that were the most likely; None where that was not measured."""
        return None if self.right is None else _mean(self.right, self.tokens)

    @property
    def exact_match(self) -> float:
        """Share of answers that greedy decoding reproduces exactly."""
        return _mean(self.exact, self.answers)

    def scalars(self) -> dict[str, float]:
        """The numbers to log; without those per token if no token was scored."""
        if not self.tokens:
            return {'tokens': 0.0, 'num_bytes': self.num_bytes}
        answers = {'exact_match': self.exact_match, 'answers': float(self.answers)}
        return {
            **(answers if self.answers else {}),
            **({} if self.right is None else {'accuracy': self.accuracy}),
            'loss': self.loss,
            'bits_per_byte': self.bits_per_byte,
            'perplexity': self.perplexity,
            'tokens': float(self.tokens),
            'num_bytes': self.num_bytes,
        }

    def as_json(self) -> dict[str, float | str]:
        """The scalars, and the protocol they depend on."""
        return {**self.scalars(), 'protocol': self.protocol, 'memory': self.memory}


def _mean(total: float, count: float) -> float:
    """The share of each of `count`; nan of none."""
    return total / count if count else math.nan


def segment_text(evaluate: Any) -> str:
    """How a text is cut by `config.evaluate`: 'segment 64', 'segment 64 after 32 tokens of context'."""
    context = f' after {evaluate.context} tokens of context' if evaluate.context else ''
    return f'segment {evaluate.segment_length}{context}'


def lanes_text(count: int) -> str:
    """'1 lane', '8 lanes'."""
    return f'{count} lane' if count == 1 else f'{count} lanes'


def memory_lengths(model: Any) -> str:
    """Memory lengths of a model by kind and layer type, as text: 'transformer_xl 512'."""
    kinds = [] if model.kind == 'language_model' else [model.kind]
    texts = []
    for name in (*kinds, *dict.fromkeys((*model.attention, *model.feed_forward))):
        labels = (LAYERS.get(name) or KINDS[name]).lengths
        lengths = [f'{label}{model[name][field]}' for field, label in labels.items()]
        if lengths or name in model.attention or name in kinds:
            texts.append(' '.join([name, *lengths]))
    return ', '.join(texts)


def scored_text(total: dict[str, float], split: str, first: int | None) -> str:
    """What was scored, as text: 'all 8 answers (24 of 900 tokens) of test scored'.

    Args:
      total: sums over what was read: 'scored' and all 'tokens', 'num_bytes', 'answers'.
      split: its name.
      first: segments of every lane that were read; None = the whole split.
    """
    tokens = f'{int(total["scored"]):,}'
    if not total['scored'] and first is None:
        return f'nothing of {split} can be scored'
    if not total['scored']:
        return (
            f'nothing can be scored in the first {first:,} segments of every lane of {split}; raise '
            'config.evaluate.max_segments or max_test_segments'
        )
    if total['answers']:
        scored = f'{int(total["answers"]):,} answers ({tokens} of {int(total["tokens"]):,} tokens)'
    else:
        scored = f'{tokens} tokens ({int(round(total["num_bytes"])):,} bytes)'
    return f'{"all" if first is None else "the first"} {scored} of {split} scored'
