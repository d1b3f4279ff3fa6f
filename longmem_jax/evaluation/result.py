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

    Attributes:
      split: 'train', 'validation' or 'test'.
      nll: sum of the negative log-likelihoods, in nats.
      tokens, num_bytes: scored tokens, and the source bytes they represent.
      right: scored tokens that were the most likely.
      answers, exact: answers of one or more tokens, and those with every token right.
      protocol: segment and memory lengths, lanes, and how much of the split was scored.
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
        """Share of scored tokens that were the most likely."""
        return self.right / max(self.tokens, 1)

    @property
    def exact_match(self) -> float:
        """Share of answers that greedy decoding reproduces exactly."""
        return self.exact / max(self.answers, 1)

    def scalars(self) -> dict[str, float]:
        """The numbers to log."""
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
        """The scalars, and the protocol they depend on."""
        return {**self.scalars(), 'protocol': self.protocol, 'memory': self.memory}


def memory_lengths(model: Any) -> str:
    """Memory lengths of a model by kind and layer type, as text: 'transformer_xl 512'."""
    kinds = [] if model.kind == 'language_model' else [model.kind]
    labels = {name: kind.lengths for name, kind in KINDS.items()}
    labels |= {name: entry.lengths for name, entry in LAYERS.items()}
    texts = []
    for name in (*kinds, *dict.fromkeys((*model.attention, *model.feed_forward))):
        lengths = [f'{label}{model[name][field]}' for field, label in labels[name].items()]
        if lengths or name in model.attention or name in kinds:
            texts.append(' '.join([name, *lengths]))
    return ', '.join(texts)


def scored_text(total: dict[str, float]) -> str:
    """What was scored, as text: '1,000 tokens (1,000 bytes)', '8 answers (24 of 900 tokens)'."""
    tokens = f'{int(total["scored"]):,}'
    if total['answers']:
        return f'{int(total["answers"]):,} answers ({tokens} of {int(total["tokens"]):,} tokens)'
    return f'{tokens} tokens ({int(round(total["num_bytes"])):,} bytes)'
