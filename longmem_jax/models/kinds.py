"""Kinds of model, by the names of `config.model.kind`; all are run, trained and scored alike."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import ml_collections

from longmem_jax.models import seq2seq
from longmem_jax.models.adapted import Adapted
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.registry import Registry


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
      model: its module, or a function that makes it.
      fields: names and types of the fields of its section, `config.model.NAME`.
      check: `(config.model, segment_length) -> problems` of that section.
      losses: names in its `Aux.losses`, in addition to those of its layers.
      growing: suffixes of paths of parameters that may have more rows than in the run it starts from.
      reads: what it reads: 'texts', which continue from segment to segment; 'pairs', 'classes' or
        'rows', whose segments are examples; '' = what only its subject knows.
      keeps: what it reads and predicts stays if it is given another memory; else it becomes a language
        model.
      own_positions: `check` compares `num_positions` with what it reads, which is not a segment.
      beyond_host: fields in which it may differ from the Hugging Face model that it begins with.
    """

    model: Callable[..., nn.Module]
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[Any, int], list[str]] = lambda model, segment_length: []
    losses: tuple[str, ...] = ()
    lengths: dict[str, str] = dataclasses.field(default_factory=dict)
    growing: tuple[str, ...] = ()
    reads: str = 'texts'
    keeps: bool = False
    own_positions: bool = False
    beyond_host: frozenset[str] = frozenset()

    @property
    def by_example(self) -> bool:
        """Whether every segment is an example by itself, so that nothing is carried to the next."""
        return self.reads in ('pairs', 'classes', 'rows')


KINDS = Registry(
    'config.model.kind',
    Kind,
    {
        'language_model': Kind(LanguageModel),
        'seq2seq': Kind(
            seq2seq.Seq2Seq,
            seq2seq.FIELDS,
            seq2seq.check,
            losses=('label_smoothing',),
            growing=('encoder/tokens',),
            reads='pairs',
            keeps=True,
        ),
    },
    brought='kinds',
)


def make_model(config: Any, segment_length: int) -> Any:
    """The model of `config.model` for segments of `segment_length` tokens: a module as its kind says."""
    frozen = ml_collections.FrozenConfigDict(config)
    model = KINDS[config.kind].model(config=frozen, segment_length=segment_length)
    # A section that is missing: a config of before it existed, such as a run's.
    fields = config.get('lora')
    return Adapted(model, **fields.to_dict()) if fields and fields.rank else model
