"""The kinds of model that `config.model.kind` may name; all are read, trained and scored alike."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_collections

from longmem_jax.contract import Recipe, Scale
from longmem_jax.models import memformer, seq2seq
from longmem_jax.models.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes:
      model: its module.
      fields: names and types of the fields of its section, `config.model.NAME`.
      faults: `(config.model, segment_length) -> faults` of that section.
      losses: names in its `Aux.losses`, besides those of its layers.
      recipes: names of `:memory=NAME` to `(scale) -> Recipe`, where the model itself is the memory.
      lengths: fields that say how much it remembers, with a word each for tables of results.
    """

    model: type
    fields: dict[str, type] = dataclasses.field(default_factory=dict)
    faults: Callable[[Any, int], list[str]] = lambda model, segment_length: []
    losses: tuple[str, ...] = ()
    recipes: dict[str, Callable[[Scale], Recipe]] = dataclasses.field(default_factory=dict)
    lengths: dict[str, str] = dataclasses.field(default_factory=dict)


KINDS = {
    'language_model': Kind(LanguageModel),
    'memformer': Kind(
        memformer.Memformer,
        memformer.FIELDS,
        memformer.faults,
        recipes={'memformer': memformer.recipe},
        lengths={'num_slots': '+ slots '},
    ),
    'seq2seq': Kind(seq2seq.Seq2Seq, seq2seq.FIELDS, seq2seq.faults, ('label_smoothing',)),
}


def make_model(config: Any, segment_length: int) -> LanguageModel:
    """The model of `config.model` for segments of `segment_length` tokens."""
    return KINDS[config.kind].model(
        config=ml_collections.FrozenConfigDict(config), segment_length=segment_length
    )
