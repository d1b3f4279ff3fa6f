"""Kinds of model, by the names of `config.model.kind`; all are run, trained and scored alike."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import ml_collections

from longmem_jax.contract import Recipe, Scale
from longmem_jax.models import memformer, memory_transformer, seq2seq
from longmem_jax.models.adapted import Adapted
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.registry import Registry
from longmem_jax.views import View


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
      model: its module, or a function that makes it.
      fields: names and types of the fields of its section, `config.model.NAME`.
      faults: `(config.model, segment_length) -> faults` of that section.
      losses: names in its `Aux.losses`, in addition to those of its layers.
      recipes: names of `:memory=NAME` to `(scale) -> Recipe`, where the model itself is the memory.
      lengths: fields that set how much it remembers, each with its label in result tables.
      attention: the attention layer that its blocks must use and other kinds must not; '' = any.
      carries: `config.model -> bool`: the model itself remembers, not only its attention layers.
      first_token: `config.model -> position` of a segment's first token in what blocks read.
      growing: suffixes of paths of parameters that may have more rows than in the run it starts from.
      reads: what it reads: 'texts', which continue from segment to segment; 'pairs', 'classes' or
        'rows', whose segments are examples; '' = what only its subject knows.
      outer: its name in messages if another memory replaces its attention only: what it reads and
        predicts stays. '' = it becomes a language model.
      own_positions: `faults` compares `num_positions` with what it reads, which is not a segment.
      beyond_host: fields in which it may differ from the Hugging Face model that it begins with.
      view: what `--mode=inspect` shows of the model itself, see `longmem_jax.views`; None = nothing.
      toy: fields and sections of `config.model` for the conformance suite; None for a kind that does
        not read texts.
      variants: named changes to `toy` that the suite also runs: section to fields.
    """

    model: Callable[..., nn.Module]
    fields: dict[str, type] = dataclasses.field(default_factory=dict)
    faults: Callable[[Any, int], list[str]] = lambda model, segment_length: []
    losses: tuple[str, ...] = ()
    recipes: dict[str, Callable[[Scale], Recipe]] = dataclasses.field(default_factory=dict)
    lengths: dict[str, str] = dataclasses.field(default_factory=dict)
    attention: str = ''
    carries: Callable[[Any], bool] = lambda model: False
    first_token: Callable[[Any], int] = lambda model: 0
    growing: tuple[str, ...] = ()
    reads: str = 'texts'
    outer: str = ''
    own_positions: bool = False
    beyond_host: frozenset[str] = frozenset()
    view: View | None = None
    toy: dict[str, Any] | None = None
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def by_example(self) -> bool:
        """Whether every segment is an example by itself, so that nothing is carried to the next."""
        return self.reads in ('pairs', 'classes', 'rows')


KINDS = Registry(
    'config.model.kind',
    Kind,
    {
        'language_model': Kind(LanguageModel),
        'memformer': Kind(
            memformer.Memformer,
            memformer.FIELDS,
            memformer.faults,
            recipes={'memformer': memformer.recipe},
            lengths={'num_slots': '+ slots '},
            carries=lambda model: True,
            view=memformer.VIEW,
            toy=dict(
                position='sinusoidal',
                memformer=dict(
                    encoder='slot_attention',
                    num_encoder_layers=1,
                    num_slots=3,
                    num_summaries=1,
                    temperature=0.5,
                    bias_std=0.1,
                    slot_heads=0,
                    forgets=True,
                    normalized=True,
                ),
            ),
            variants=dict(
                joint=dict(memformer=dict(encoder='joint')),
                paper=dict(memformer=dict(normalized=False)),
                ablated=dict(memformer=dict(slot_heads=1, forgets=False, temperature=1.0)),
                none=dict(memformer=dict(num_slots=0)),
            ),
        ),
        'memory_transformer': Kind(
            memory_transformer.MemoryTransformer,
            memory_transformer.FIELDS,
            memory_transformer.faults,
            recipes={
                'memory_tokens': memory_transformer.recipe,
                'recurrent': memory_transformer.recurrent_recipe,
            },
            attention='memory_tokens',
            carries=lambda model: model.memory_transformer.carry,
            first_token=lambda model: model.memory_tokens.num_tokens,
            view=memory_transformer.VIEW,
            growing=('memory_tokens/tokens',),
            toy=dict(memory_transformer=dict(carry=True, gradients=True)),
            variants=dict(
                leading=dict(
                    memory_transformer=dict(carry=False),
                    memory_tokens=dict(at_end=False, same_length=True, read_cache=True),
                ),
                recurrent=dict(
                    memory_transformer=dict(gradients=False),
                    memory_tokens=dict(memory_length=0, position='rotary'),
                ),
            ),
        ),
        'seq2seq': Kind(
            seq2seq.Seq2Seq,
            seq2seq.FIELDS,
            seq2seq.faults,
            losses=('label_smoothing',),
            growing=('encoder/tokens',),
            reads='pairs',
            outer='a decoder',
        ),
    },
    brought='kinds',
)


def make_model(config: Any, segment_length: int) -> nn.Module:
    """The model of `config.model` for segments of `segment_length` tokens."""
    frozen = ml_collections.FrozenConfigDict(config)
    model = KINDS[config.kind].model(config=frozen, segment_length=segment_length)
    # A section that is missing: a config of before it existed, such as a run's.
    fields = config.get('lora')
    return Adapted(model, **fields.to_dict()) if fields and fields.rank else model
