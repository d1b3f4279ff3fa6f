"""What an evaluation found, and the protocol that the numbers depend on."""

import dataclasses
import math
from typing import Any, Literal

from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS
from longmem_jax.training.step import LN2


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
      memory: 'kept' from segment to segment, or 'reset' before every segment.
    """

    split: str
    nll: float
    tokens: int
    num_bytes: float
    protocol: str
    right: int
    answers: int
    exact: int
    memory: Literal['kept', 'reset'] = 'kept'

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

    def as_json(self) -> dict[str, float | str]:
        """The scalars, and what they depend on."""
        return {**self.scalars(), 'protocol': self.protocol, 'memory': self.memory}


def memory_lengths(model: Any) -> str:
    """The lengths of memory that a model has, by kind and layer type: 'transformer_xl 512'."""
    kinds = [] if model.kind == 'language_model' else [model.kind]
    described = {name: kind.lengths for name, kind in KINDS.items()}
    described |= {name: entry.lengths for name, entry in LAYERS.items()}
    named = []
    for name in (*kinds, *dict.fromkeys((*model.attention, *model.feed_forward))):
        words = [f'{word}{model[name][field]}' for field, word in described[name].items()]
        if words or name in model.attention or name in kinds:
            named.append(' '.join([name, *words]))
    return ', '.join(named)


def scored_text(total: dict[str, float]) -> str:
    """What was scored, in words: '1,000 tokens (1,000 bytes)', '8 answers (24 of 900 tokens)'."""
    tokens = f'{int(total["scored"]):,}'
    if total['answers']:
        return f'{int(total["answers"]):,} answers ({tokens} of {int(total["tokens"]):,} tokens)'
    return f'{tokens} tokens ({int(round(total["num_bytes"])):,} bytes)'
