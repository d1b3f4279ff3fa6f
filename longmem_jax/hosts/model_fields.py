"""The `config.json` of a Hugging Face model to `config.model`, and back."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from longmem_jax.config.base import base
from longmem_jax.config.recipes import section
from longmem_jax.errors import UsageError, unknown
from longmem_jax.hosts import attributes as of_file
from longmem_jax.hosts import expert_layers, layer_windows
from longmem_jax.hosts.attributes import Attributes
from longmem_jax.hosts.families import FAMILIES, Family
from longmem_jax.hosts.own_layers import own_layer
from longmem_jax.memory.checks import MOST

ACTIVATIONS = {
    'gelu_new': 'gelu',
    'gelu': 'gelu_exact',
    'gelu_pytorch_tanh': 'gelu',
    'gelu_fast': 'gelu',
    'relu': 'relu',
}
GATED = {'silu': 'swiglu', 'swish': 'swiglu', 'gelu_pytorch_tanh': 'geglu', 'gelu_new': 'geglu'}
BIASES = {False: 'none', True: 'all'}


def family_of(given: Mapping[str, Any], source: str) -> str:
    """The `model_type`; raises `UsageError` if it is none of `FAMILIES`."""
    kind = given.get('model_type')
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UsageError(f'{source}: {unknown("model_type", kind, FAMILIES)}.')
    return kind


def model_of(given: Mapping[str, Any], source: str, context: int = 0) -> ConfigDict:
    """`config.model` of the attributes of a `config.json`.

    `context`: tokens that layers without a window see; 0 = as many as the file says.

    Raises:
      UsageError: attributes that are missing, of another type, or not supported, by name.
    """
    family, left = FAMILIES[family_of(given, source)], Attributes(given, source)
    left.drop(*family.harmless)
    model = base().model
    del model.transformer_xl
    model.update(dict(output_bias=False, scale_embedding=False) | family.fixed)
    for name, (field, kind, *default) in family.copied.items():
        value = left.number(name, kind, *default)
        model[field] = 4 * model.d_model if value is None else value
        if field == 'num_layers' and value > MOST[field]:
            raise left.refusal(name, value, f'at most {MOST[field]} are supported')
    model.d_embed = model.d_model
    for name, allowed in family.required.items():
        left.require(name, *allowed)
    windows = family.windows(left, model.num_layers)  # some depend on the context
    length = left.number(family.context, int)
    left.require('n_ctx', length)
    if context > length:
        raise left.refusal(
            family.context, length, f'no longer context, such as {context}, is possible'
        )
    _heads(family, left, model)
    bias = family.attention_bias
    model.attention_bias = (
        bias if isinstance(bias, str) else BIASES[left.take(bias[0], bool, bias[1])]
    )
    _dense(family, left, model)
    expert_layers.read(family, left, model)
    rotation, seen = None, context or length
    if family.rotary is None:
        model.num_positions = length
    else:
        bases = family.rotations.read(left, windows) if family.rotations else ()
        rotation = of_file.rotary(
            left, **family.rotary, head_dim=model.head_dim, context=length, seen=context
        )
        if rotation and rotation['rotary_scaling'] == 'longrope':
            original = rotation.pop('rotary_original')
            seen = context or original
        model.update(rotation or {})
        same = (-1,) if model.rotary_scaling != 'none' else (-1, model.rotary_base)
        model.rotary_bases = () if all(base in same for base in bases) else bases
    if model.kind == 'text_encoder':
        left.require('position_embedding_type', 'absolute')
        left.require('is_decoder', False)
        left.require('tie_word_embeddings', True, False)
        types = left.number('type_vocab_size', int, 2)
        model.text_encoder = dict(token_types=types, pooler=True)
        model.attention = ('local',) * model.num_layers
        model.local = section('local', position='none')
    else:
        position, own = 'none' if rotation is None else 'rotary', own_layer(family)
        if own:
            fields = section(own[0], **own[1].read(left, model))
            model.update({own[0]: fields} if None in windows else {})
        if family.attention_norms_outputs:
            model.output_norm = tuple(window is not None for window in windows)
        set_windows(
            model,
            windows,
            seen,
            position=position,
            own=own[0] if own else '',
            output_gate=family.output_gate,
        )
    left.require('scale_attn_by_inverse_layer_idx', False)
    left.finish()
    return model


def _heads(family: Family, left: Attributes, model: Any) -> None:
    """Sets the heads of keys and values and the width of a head."""
    heads = model.num_heads
    if family.kv_heads is not None:
        default = family.kv_heads if not left.has('num_key_value_heads') else None
        shared = left.take('num_key_value_heads', int, default) or heads
        if shared < 1 or heads % shared:
            raise left.refusal('num_key_value_heads', shared, f'must divide the {heads} heads')
        model.num_kv_heads = 0 if shared == heads else shared
    default = family.head_dim if not left.has('head_dim') else None
    width = left.take('head_dim', int, default) if family.kv_heads is not None else None
    if not width and model.d_model % heads:
        raise UsageError(
            f'{left.source}: the width {model.d_model} is not a multiple of the {heads} heads.'
        )
    model.head_dim = width or model.d_model // heads
    if family.score_width is not None:
        name, usual = family.score_width
        if (width := left.take(name, int, usual)) != model.head_dim:
            why = f'only the width of a head, {model.head_dim}, is supported'
            raise left.refusal(name, width, why)


def _dense(family: Family, left: Attributes, model: Any) -> None:
    """Sets the feed-forward layers."""
    name, default = family.activation
    theirs, known = left.take(name, str, default), GATED if family.gated else ACTIVATIONS
    if theirs not in known:
        raise left.refusal(name, theirs, f'supported are {", ".join(known)}')
    bias = family.dense_bias
    bias = left.take(bias, bool, False) if isinstance(bias, str) else bias
    model.feed_forward = ('dense',) * model.num_layers
    model.dense = section('dense', activation=known[theirs], bias=bias)


def set_windows(
    model: Any,
    windows: layer_windows.Windows,
    context: int,
    own: str = '',
    **fields: Any,
) -> None:
    """Sets the attention layers: the context, a window of their own where that is not 0, or `own`.

    `fields` are further ones of attention.
    """
    sizes = sorted({window for window in windows if window})
    if len(sizes) > 1:
        raise UsageError(f'layers with windows of {sizes} tokens: one size is supported.')
    names = {None: own, 0: 'full'}
    model.attention = tuple(names.get(window, 'sliding') for window in windows)
    if 0 in windows:
        model.full = section('full', window=context, **fields)
    if sizes:
        model.sliding = section('sliding', window=sizes[0], **fields)


def attributes_of(model: Any) -> dict[str, Any]:
    """A `config.json` for a `config.model` that was not read from one: the inverse of `model_of`.

    Raises:
      UsageError: no family computes what this model computes; with the fields that differ from the
        nearest family.
    """
    nearest: list[str] | None = None
    for kind, family in FAMILIES.items():
        try:
            given = _write(kind, family, model)
            differing = differences(model_of(given, kind), model)
        except (UsageError, KeyError, AttributeError, ValueError):
            continue
        if not differing:
            return given
        if nearest is None or len(differing) < len(nearest):
            nearest = [f'{kind}: {line}' for line in differing]
    near = f'; nearest is {"; ".join(nearest)}' if nearest else ''
    raise UsageError(
        f'config.model is not a model of a Hugging Face family{near}. Those of '
        '--config=host:path=FOLDER are, with what was added to them.'
    )


# Fields that no parameter and no result in evaluation depends on.
FREE = frozenset(
    """
    dropout residual_dropout embedding_dropout attention_dropout layer_drop init init_std embedding_std
    scale_residual_init dtype kernels remat loss_blocks cache_tokens cache_dtype
    """.split()
)


def differences(host: Any, model: Any, skip: frozenset[str] = frozenset()) -> list[str]:
    """Fields of two `config.model` that differ, as lines.

    Not compared are `FREE` fields, those in `skip`, and sections that the host does not use.
    """
    used = {*host.attention, *host.feed_forward, host.kind}
    lines = []
    for name in sorted({*host, *model} - FREE - skip):
        values = [side.get(name) for side in (host, model)]
        if any(isinstance(value, ConfigDict) for value in values) and name not in used:
            continue
        plain = [v.to_dict() if isinstance(v, ConfigDict) else v for v in values]
        plain = [tuple(v) if isinstance(v, (list, tuple)) else v for v in plain]
        if plain[0] != plain[1]:
            lines.append(f'{name} = {plain[1]}, not {plain[0]}')
    return lines


def _write(kind: str, family: Family, model: Any) -> dict[str, Any]:
    """The attributes of a family that are nearest to a model."""
    given: dict[str, Any] = dict(model_type=kind, architectures=[family.architecture])
    # Without it transformers takes the family's, which may be beyond this vocabulary.
    given['pad_token_id'] = None
    given |= {name: model[field] for name, (field, *_) in family.copied.items()}
    sections = [model[name] for name in ('full', 'sliding') if name in model.attention]
    given[family.context] = model.num_positions or max(fields.window for fields in sections)
    if family.kv_heads is not None:
        given['num_key_value_heads'] = model.num_kv_heads or model.num_heads
        given['head_dim'] = model.head_dim
    if family.score_width is not None:
        given[family.score_width[0]] = model.head_dim
    if not isinstance(family.attention_bias, str):
        given[family.attention_bias[0]] = model.attention_bias == 'all'
    known = GATED if family.gated else ACTIVATIONS
    inverse = {ours: theirs for theirs, ours in reversed(known.items())}
    given[family.activation[0]] = inverse.get(model.dense.activation, 'none')
    given |= expert_layers.write(family, model)
    if isinstance(family.dense_bias, str):
        given[family.dense_bias] = model.dense.bias
    of_layers: dict[str, int | None] = {'full': 0}
    if 'sliding' in model.attention:
        of_layers['sliding'] = model.sliding.window
    if (own := own_layer(family)) and own[0] in model.attention:
        of_layers[own[0]] = None
        given |= own[1].write(model[own[0]])
    windows = tuple(of_layers.get(name, 0) for name in model.attention)
    if family.rotary is not None:
        rotates = any(fields.position == 'rotary' for fields in sections)
        given['rope_parameters'] = (
            of_file.rope_parameters(model, family.rotary.get('share'))
            if rotates
            else {'rope_theta': None, 'rope_type': 'default'}
        )
        if model.rotary_scaling == 'longrope':
            given['original_max_position_embeddings'] = given[family.context]
    if family.rotations is not None:
        parameters = given.pop('rope_parameters')
        given |= family.rotations.write(parameters, tuple(model.rotary_bases), windows)
    if model.kind == 'text_encoder':
        given['type_vocab_size'] = model.text_encoder.token_types
    return given | family.write_windows(windows)
