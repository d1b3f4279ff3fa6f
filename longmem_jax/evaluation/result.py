"""The result of an evaluation, with the protocol that its numbers depend on."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from longmem_jax.config.told_apart import called
from longmem_jax.memory.registry import FEED_FORWARD, LAYERS, used
from longmem_jax.models.kinds import KINDS
from longmem_jax.training.metrics import METRICS


@dataclasses.dataclass(frozen=True)
class Result:
    """Sums over the tokens that were scored, and how they were scored.

    Attributes:
      split: 'train', 'validation' or 'test'.
      sums: of `training.metrics.sums_of`, at least `nll` (nats), `scored` and `num_bytes`; `answers` of
        one or more tokens, and those with every token right, `exact`.
      protocol: segment and memory lengths, lanes, and how much of the split was scored.
      memory: 'kept' from segment to segment, or 'reset' before every segment.
    """

    split: str
    sums: Mapping[str, float]
    protocol: str
    memory: Literal['kept', 'reset'] = 'kept'

    def __getitem__(self, name: str) -> float:
        """A metric of `METRICS`; nan if there is nothing to count, or it was not measured."""
        metric = METRICS[name]
        return metric.value(self.sums) if metric.total in self.sums else math.nan

    @property
    def nll(self) -> float:
        """Sum of the negative log-likelihoods, in nats."""
        return self.sums['nll']

    @property
    def tokens(self) -> int:
        """Scored tokens."""
        return int(self.sums['scored'])

    @property
    def num_bytes(self) -> float:
        """Source bytes of the scored tokens."""
        return self.sums['num_bytes']

    @property
    def answers(self) -> int:
        """Answers of one or more tokens."""
        return int(self.sums.get('answers', 0))

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self['loss']

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the source text, whatever the tokenizer; 0 for a task without bytes."""
        return self['bits_per_byte']

    @property
    def perplexity(self) -> float:
        """Perplexity per token (infinite beyond the range of floats)."""
        return self['perplexity']

    @property
    def accuracy(self) -> float:
        """Share of scored tokens that were the most likely."""
        return self['accuracy']

    @property
    def exact_match(self) -> float:
        """Share of answers that greedy decoding reproduces exactly."""
        return self['exact_match']

    def scalars(self) -> dict[str, float]:
        """The numbers to log; without those per token if no token was scored."""
        counts = {'tokens': float(self.tokens), 'num_bytes': self.num_bytes}
        if not self.tokens:
            return counts
        measured = [
            name
            for name, metric in METRICS.items()
            if metric.total in self.sums
            and (self.sums.get(metric.per) or not math.isnan(metric.without))
        ]
        counts |= {'answers': float(self.answers)} if self.answers else {}
        return {name: self[name] for name in measured} | counts

    def as_json(self) -> dict[str, float | str]:
        """The scalars, and the protocol they depend on."""
        return {**self.scalars(), 'protocol': self.protocol, 'memory': self.memory}


def segment_text(evaluate: Any) -> str:
    """How a text is cut by `config.evaluate`: 'segment 64', 'segment 64 after 32 tokens of context'."""
    context = f' after {evaluate.context} tokens of context' if evaluate.context else ''
    return f'segment {evaluate.segment_length}{context}'


def memory_lengths(model: Any) -> str:
    """Memory lengths of a model by kind and layer type, as text: 'transformer_xl 512'."""
    kinds = [] if model.kind == 'language_model' else [model.kind]
    texts = []
    for name in (*kinds, *used(model)):
        labels = LAYERS[name].view.lengths if name in LAYERS else KINDS[name].lengths
        lengths = [f'{label}{model[name][field]}' for field, label in labels.items()]
        if lengths or name not in FEED_FORWARD:
            texts.append(' '.join([called(name, model) if name in LAYERS else name, *lengths]))
    return ', '.join(texts)


def scored_text(total: dict[str, float], split: str, first: int | None) -> str:
    """What was scored, as text: 'all 8 answers (24 of 900 tokens) of test scored'.

    `total` are sums over what was read, `first` segments of every lane that were read; None = the
    whole split.
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
