"""The attributes of a Hugging Face `config.json`: every one is used, harmless, or refused."""

import math
from collections.abc import Mapping
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.layers.positions import SCALINGS, rotated_width
from longmem_jax.untrusted.schema import shown

# Attributes that change neither the parameters nor what a model computes in evaluation: special tokens,
# generation, labels of classifiers, initial values, dropout, and who wrote the file.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path name_or_path
    _model_name_or_path
    architectures model_type transformers_version dtype torch_dtype longmem
    attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout
    classifier_dropout_prob embd_pdrop embed_dropout hidden_dropout hidden_dropout_prob resid_dropout
    resid_pdrop summary_first_dropout
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id prefix tokenizer_class vocab_file
    initializer_range init_std initializer_factor _num_labels output_past
    finetuning_task id2label label2id num_labels problem_type task_specific_params
    summary_activation summary_proj_to_labels summary_type summary_use_proj directionality
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    gradient_checkpointing return_dict output_attentions output_hidden_states output_scores
    return_dict_in_generate torchscript use_bfloat16 use_cache reorder_and_upcast_attn
    output_router_logits router_aux_loss_coef
    linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length
    min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    remove_invalid_values repetition_penalty suppress_tokens temperature tf_legacy_loss top_k top_p
    typical_p chunk_size_feed_forward
    """.split()
)
# Attributes of which only these values are supported.
FIXED: dict[str, tuple[Any, ...]] = {
    'is_decoder': (False, True),
    'is_encoder_decoder': (False,),
    'add_cross_attention': (False,),
    'cross_attention_hidden_size': (None,),
    'tie_encoder_decoder': (False,),
    'pruned_heads': ({},),
    'pretraining_tp': (1,),
    'use_mrope': (False,),
}
REQUIRED = object()
LARGEST = 2**30  # of whole numbers


class Attributes:
    """The attributes of `source`, a name for messages, that have not been used yet."""

    def __init__(self, values: Mapping[str, Any], source: str):
        """`values`: the parsed `config.json`."""
        self._left, self.source = dict(values), source

    def has(self, name: str) -> bool:
        """Whether the attribute is there, and has not been used."""
        return name in self._left

    def peek(self, name: str) -> Any:
        """The value of an attribute that is left unused; None = it is missing."""
        return self._left.get(name)

    def put(self, name: str, value: Any) -> None:
        """Gives an attribute that was used another value."""
        self._left[name] = value

    def drop(self, *names: str) -> None:
        """Uses attributes that change nothing, if they are there."""
        for name in names:
            self._left.pop(name, None)

    def take(self, name: str, kind: type, default: Any = REQUIRED) -> Any:
        """The value of an attribute.

        Args:
          kind: type of the value: int, float, bool, str, list or dict.
          default: value where it is missing; null counts as missing if the default is None.

        Raises:
          UsageError: it is missing and has no default, or is of another type.
        """
        value = self._left.pop(name, default)
        if value is REQUIRED:
            raise UsageError(f'{self.source}: {name} is missing.')
        if value is None and default is None:
            return None
        right = isinstance(value, (int, float) if kind is float else kind)
        if not right or (isinstance(value, bool) and kind is not bool):
            raise self.refusal(name, value, f'a value of type {kind.__name__} is needed')
        if kind is float and not math.isfinite(value):
            raise self.refusal(name, value, 'a finite number is needed')
        return float(value) if kind is float else value

    def number(self, name: str, kind: type, *default: Any) -> Any:
        """As `take`; numbers must be above 0, and whole ones at most `LARGEST`."""
        value = self.take(name, kind, *default)
        if kind is not bool and value is not None and value <= 0:
            raise self.refusal(name, value, 'must be above 0')
        if kind is int and value is not None and value > LARGEST:
            raise self.refusal(name, value, f'at most {LARGEST} is supported')
        return value

    def require(self, name: str, *allowed: Any) -> None:
        """Raises `UsageError` unless the attribute is missing or has one of the allowed values."""
        if name in self._left and (value := self._left.pop(name)) not in allowed:
            values = ', '.join(map(repr, allowed))
            raise self.refusal(name, value, f'only {values} is supported')

    def refusal(self, name: str, value: Any, why: str) -> UsageError:
        """The error for an attribute whose value is not supported."""
        return UsageError(f'{self.source} sets {name} = {shown(value)}: {why}.')

    def finish(self) -> None:
        """Raises `UsageError` with the names of all attributes that nothing has used."""
        for name, allowed in FIXED.items():
            self.require(name, *allowed)
        unknown = sorted(set(self._left) - HARMLESS)
        if unknown:
            names = ', '.join(unknown)[:500]
            raise UsageError(
                f'{self.source} sets {names}: not supported. Remove an attribute only if you know that '
                'it changes nothing.'
            )


def rotary(
    attributes: Attributes,
    *,
    base: float = 10000.0,
    share: float | None = None,
    optional: bool = False,
    head_dim: int,
    context: int,
    seen: int = 0,
) -> dict[str, Any] | None:
    """Fields of `config.model` for rotary positions, from both spellings of the attributes.

    Current files have `rope_parameters`, older ones `rope_theta` (GPT-NeoX `rotary_emb_base`, and
    `rotary_pct`) and `rope_scaling`.

    Args:
      share: of a head that is rotated, where the file has none; None = whole heads are, in all models
        of the family.
      optional: a file may set `rope_theta` to null: nothing is rotated.
      head_dim: width of a head.
      context: the model's longest text.
      seen: tokens that layers without a window shall see, 0 = nothing was said.

    Returns:
      The fields; None = nothing is rotated.

    Raises:
      UsageError: an unknown type of scaling, an unknown parameter of it, or a number out of range.
    """
    values: dict[str, Any] = {}
    for spelling in ('rope_parameters', 'rope_scaling'):
        given = dict(attributes.take(spelling, dict, None) or {})
        if 'type' in given:
            given = {'rope_type': given['type']} | given
            del given['type']
        for name, value in given.items():
            if values.setdefault(name, value) != value:
                why = f'rope_parameters has {name} = {values[name]!r}; remove one of the two'
                raise attributes.refusal(f'{spelling}.{name}', value, why)
    for name, old in (('rope_theta', 'rotary_emb_base'), ('partial_rotary_factor', 'rotary_pct')):
        for spelling in (old, name):
            if optional and spelling == 'rope_theta' and attributes.has(spelling):
                values.setdefault(spelling, attributes.take(spelling, float, None))
            value = attributes.take(spelling, float, None)
            if value is not None:
                values.setdefault(name, value)
    if optional and values.get('rope_theta', base) is None:
        values = {name: value for name, value in values.items() if value not in (None, 'default')}
        Attributes(values, f'{attributes.source}: rope_parameters').finish()
        return None
    scaling = Attributes(values, f'{attributes.source}: rope_parameters')
    kind = scaling.take('rope_type', str, 'default')
    kind = 'longrope' if kind == 'su' else kind
    if kind not in (*PLAIN, *SCALINGS[1:]):
        allowed = ', '.join(repr(name) for name in (*PLAIN, *SCALINGS[1:]))
        raise UsageError(
            f'{attributes.source}: rope_type = {kind!r} is not known; supported are {allowed}.'
        )
    fields: dict[str, Any] = dict(
        rotary_base=scaling.number('rope_theta', float, base),
        rotary_share=_share(scaling, share),
        rotary_scaling='none' if kind in PLAIN else kind,
    )
    if fields['rotary_base'] <= 1:
        raise scaling.refusal('rope_theta', fields['rotary_base'], 'must be above 1')
    original = scaling.number('original_max_position_embeddings', int, None)
    original = (
        attributes.number('original_max_position_embeddings', int, None) or original or context
    )
    if kind == 'longrope':
        pairs = rotated_width(head_dim, fields['rotary_share']) // 2
        fields |= _longrope(scaling, pairs, original, context, seen or original)
    elif kind != 'default':
        factor = scaling.number('factor', float)
        fields |= {} if kind == 'dynamic' else dict(rotary_factor=factor)
    if kind in BANDS:
        fields |= dict(rotary_original=original, rotary_bands=_bands(scaling, kind))
    if kind == 'yarn':
        gain = scaling.number('attention_factor', float, None)
        fields['rotary_gain'] = gain or 0.1 * math.log(max(fields['rotary_factor'], 1.0)) + 1.0
        scaling.require('truncate', True)
        scaling.require('finetuned', True, False)
    scaling.finish()
    return fields


def _share(scaling: Attributes, default: float | None) -> float:
    """The share of a head that is rotated; `default` as in `rotary`."""
    name = 'partial_rotary_factor'
    if default is None:
        scaling.require(name, 1)
        return 1.0
    share = scaling.number(name, float, default)
    if share > 1:
        raise scaling.refusal(name, share, 'must be at most 1')
    return share


def _longrope(
    scaling: Attributes, pairs: int, original: int, context: int, seen: int
) -> dict[str, Any]:
    """The fields of a scaling by a factor per pair: one set for up to `original` tokens, one for more.

    transformers changes the set where a text grows longer. Here the tokens that are `seen` decide.
    """
    sets = [scaling.take(f'{name}_factor', list) for name in ('short', 'long')]
    for name, values in zip(('short', 'long'), sets, strict=True):
        if not all(type(value) in (int, float) and 0 < value < math.inf for value in values):
            raise scaling.refusal(f'{name}_factor', values, 'numbers above 0 are needed')
        if len(values) != pairs:
            why = f'{pairs} numbers are needed, one for each rotated pair of a head'
            raise scaling.refusal(f'{name}_factor', values, why)
    if original < 2:
        raise scaling.refusal('original_max_position_embeddings', original, 'must be at least 2')
    ratio = scaling.number('factor', float, None) or context / original
    gain = scaling.number('attention_factor', float, None)
    if gain is None:
        gain = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    factors = tuple(map(float, sets[seen > original]))
    return dict(rotary_factors=factors, rotary_gain=gain, rotary_original=original)


# Types without scaling; 'dynamic' scales texts that are longer than the context, which are none here.
PLAIN = ('default', 'dynamic')
# Type of scaling to the names of its bands, the lower one first.
BANDS = {'llama3': ('low_freq_factor', 'high_freq_factor'), 'yarn': ('beta_slow', 'beta_fast')}


def _bands(scaling: Attributes, kind: str) -> tuple[float, float]:
    """The numbers of turns between which frequencies are mixed; only 'yarn' has defaults."""
    below, above = BANDS[kind]
    if kind == 'yarn':
        low = scaling.number(below, float, None) or 1.0
        high = scaling.number(above, float, None) or 32.0
    else:
        low, high = scaling.number(below, float), scaling.number(above, float)
    if low >= high:
        raise scaling.refusal(above, high, f'must be above {below}, which is {low}')
    return low, high


def rope_parameters(model: Any, share: float | None = None) -> dict[str, Any]:
    """The `rope_parameters` of a `config.model`: the inverse of `rotary`; `share` as there."""
    kind = model.rotary_scaling
    values: dict[str, Any] = dict(
        rope_theta=model.rotary_base, rope_type='default' if kind == 'none' else kind
    )
    if model.rotary_share != (1 if share is None else share):
        values['partial_rotary_factor'] = model.rotary_share
    if kind == 'longrope':
        same = list(model.rotary_factors)
        return values | dict(
            short_factor=same, long_factor=same, attention_factor=model.rotary_gain
        )
    if kind != 'none':
        values['factor'] = model.rotary_factor
    if kind in BANDS:
        values['original_max_position_embeddings'] = model.rotary_original
        values |= dict(zip(BANDS[kind], model.rotary_bands, strict=True))
    if kind == 'yarn':
        values['attention_factor'] = model.rotary_gain
    return values
