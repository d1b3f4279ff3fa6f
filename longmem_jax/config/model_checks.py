"""The rules of `config.model`: sizes, stacks of layers, fields of each layer, positions, clusters."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from longmem_jax.errors import unknown
from longmem_jax.layers import embedding, token_shift
from longmem_jax.memory.checks import (
    LONGEST,
    MOST,
    kernel_problems,
    layer_problems,
    rates_as_dropout,
    size_problems,
)
from longmem_jax.memory.registry import AROUND, ATTENTION, FEED_FORWARD, LAYERS, used
from longmem_jax.models import adapted, stack
from longmem_jax.models.kinds import KINDS
from longmem_jax.problems import at_least, at_most, between, of_section, one_of, under

MOST_WORDS = {'vocab_size': 1 << 30, 'd_embed': 1 << 20, 'num_positions': 1 << 30}
SHOWN = 4  # names of layers in an example


def model_problems(model: Any, segment_length: int) -> list[str]:
    """Problems of `config.model`, for segments of `segment_length` tokens."""
    too_large = under('config.model', at_most(model, MOST | MOST_WORDS))
    too_large += at_most({'segment_length': segment_length}, LONGEST)
    if too_large:
        return too_large  # the other rules make lists of that length
    problems = at_least(model, 1, 'vocab_size', 'd_embed', 'loss_blocks')
    problems += at_least(model, 0, 'embedding_std', 'cache_tokens')
    problems += size_problems(model)
    problems += one_of(
        model,
        position=embedding.ABSOLUTE,
        token_shift=tuple(token_shift.EARLIER),
        remat=stack.REMAT,
    )
    if model.parallel_residual and (not model.pre_norm or model.kind == 'seq2seq'):
        problems.append(
            'parallel_residual = True: needs pre_norm = True, and a model without cross-attention'
        )
    problems += _output_norm(model) + _rotary_bases(model)
    problems += _positions(model, segment_length) + between(model, 0, 1, 'layer_drop', ends='[)')
    problems += rates_as_dropout(model, 'embedding_dropout')
    problems = under('config.model', problems)
    if 'lora' in model:
        problems += under('config.model.lora', adapted.check(model.lora))
    problems += _stack(model, 'attention', ATTENTION)
    problems += _stack(model, 'feed_forward', FEED_FORWARD)
    for place, registry in (('beside', ATTENTION), ('around', AROUND)):
        problems += _stack(model, place, {**registry, '': None}) if len(model[place]) else []
    if not all(isinstance(name, str) for name in used(model)):
        return problems
    inside = [name for name in set(model.around) & {*AROUND} if AROUND[name].layer.between]
    if model.remat and inside:
        problems.append(
            f"config.model.remat = {model.remat!r}: {inside[0]!r} is read inside of blocks; use '', and "
            'config.train.remat = True'
        )
    if model.loss_blocks > 1 and model.kind == 'seq2seq':
        problems.append(
            f'config.model.loss_blocks = {model.loss_blocks}: seq2seq models compute all logits at '
            'once; set it to 1'
        )
    if segment_length < 1:  # a problem of the config; layers divide by it
        return problems
    problems += _kind(model, segment_length)
    for name in sorted({*used(model)} & set(LAYERS)):
        problems += _fields(model, name, segment_length)
    return problems + _clusters(model) + ([] if problems else _kernels(model))


def training_problems(model: Any, segment_length: int) -> list[str]:
    """What would keep the layers of a sound `config.model` from learning, in such segments."""
    return [
        problem
        for name in sorted(used(model))
        if (check := LAYERS[name].recipe.check) is not None
        for problem in under(f'config.model.{name}', check(model[name], model, segment_length))
    ]


def packing_problems(model: Any) -> list[str]:
    """Why a sound `config.model` cannot begin documents inside of segments; [] = it can."""
    where = 'config.train.packed = True'
    if model.kind != 'language_model':
        return [f'{where}: is for language models; config.model.kind = {model.kind!r}']
    if others := stack.without_starts(model):
        return [
            f'{where}: {", ".join(others)} in config.model cannot begin a document inside of a segment; '
            "use layers that do, such as 'delta_net' with 'dense', or packed = False"
        ]
    if model.position != 'none':
        return [
            f'{where}: config.model.position = {model.position!r} counts from the begin of a segment; '
            "use 'none', or packed = False"
        ]
    return []


def _stack(model: Any, name: str, registry: Mapping[str, Any]) -> list[str]:
    """Problems of a stack, such as `attention`: the names of its layers."""
    layers = tuple(model[name])
    if not all(isinstance(layer, str) for layer in layers):
        return [f'config.model.{name} = {layers}: names of layers are needed, one per layer']
    problems = []
    if len(layers) != model.num_layers:
        count = min(model.num_layers, SHOWN)
        example = ','.join((layers * count)[:count]) + (',' if count == 1 else '')
        example += f' --config.model.num_layers={count}' if count < model.num_layers else ''
        problems.append(
            f'config.model.{name} = {layers}: one name per layer is needed, {model.num_layers} in all '
            f'(config.model.num_layers); set both, such as --config.model.{name}={example}'
        )
    for layer in sorted(set(layers)):
        if layer not in registry:
            allowed = sorted(filter(None, registry))
            problems.append(unknown(f'config.model.{name}', layer, allowed))
    return problems


def _kind(model: Any, segment_length: int) -> list[str]:
    """Problems of the kind of model and of its section."""
    if model.kind not in KINDS:
        return [unknown('config.model.kind', model.kind, sorted(KINDS))]
    kind, where = KINDS[model.kind], f'config.model.{model.kind}'
    if not kind.fields:
        return []
    if model.kind not in model:
        return [f'{where} is missing: the fields are {", ".join(kind.fields)}']
    of_fields = of_section(model[model.kind], kind.fields)
    if not of_fields and set(model.attention) <= set(ATTENTION):
        of_fields = kind.check(model, segment_length)
    return under(where, of_fields)


def _fields(model: Any, name: str, segment_length: int) -> list[str]:
    """Problems of the sub-config of the layer type `name`."""
    where = f'config.model.{name}'
    if name not in model:
        advice = f'a config file sets it: {where} = longmem_jax.config.recipes.section({name!r})'
        memories = ' or '.join(LAYERS[name].recipe.by_name)
        if memories and name not in FEED_FORWARD and name not in model.beside:
            advice += f'; to use this memory in all layers: --config=NAME:memory={memories}'
        return [f'{where} is missing, though {name!r} is in the stack of layers; {advice}']
    return layer_problems(
        LAYERS[name],
        model[name],
        LAYERS[name].fields(),
        model,
        segment_length,
        where=f'{where}.',
        where_model='config.model.',
    )


def _kernels(model: Any) -> list[str]:
    """Problems of `kernels`, of a stack without other problems."""
    if model.kernels == 'fused' and model.kind != 'language_model':
        return [
            f"config.model.kernels = 'fused': is for the kind 'language_model', not {model.kind!r}; use "
            "'plain'"
        ]
    layers = {name: model[name] for name in used(model) if name in ATTENTION}
    return under('config.model', kernel_problems(ATTENTION, layers, model))


def _output_norm(model: Any) -> list[str]:
    """Problems of `output_norm` and `both_norms`."""
    norms = tuple(model.output_norm)
    if model.both_norms and (norms or not model.pre_norm or model.kind != 'language_model'):
        return [
            "both_norms = True: needs pre_norm = True, output_norm = (), and kind = 'language_model'"
        ]
    if not norms:
        return []
    if not all(isinstance(norm, bool) for norm in norms) or len(norms) != model.num_layers:
        return [f'output_norm = {norms}: one bool per layer is needed, {model.num_layers} in all']
    if not model.pre_norm or model.kind != 'language_model':
        return ["output_norm: needs pre_norm = True, and kind = 'language_model'"]
    return []


def _rotary_bases(model: Any) -> list[str]:
    """Problems of `rotary_bases`."""
    bases = tuple(model.rotary_bases)
    numbers = all(type(base) in (int, float) for base in bases)
    right = numbers and all(base in (-1, 0) or 1 < base < math.inf for base in bases)
    if bases and (len(bases) != model.num_layers or not right):
        return [
            f'rotary_bases = {bases}: one number per layer is needed, {model.num_layers} in all: a base '
            'above 1, 0 = not rotated, or -1 = as the model'
        ]
    return []


def _positions(model: Any, segment_length: int) -> list[str]:
    """Problems of the table of absolute positions."""
    length = model.num_positions
    if model.positions_restart and not length:
        return [
            'positions_restart = True: is only for num_positions > 0; otherwise positions restart anyway'
        ]
    if length and model.position == 'none':
        return [
            f"num_positions = {length}: position = 'none' has no table; use 0, or position = "
            "'learned' or 'sinusoidal'"
        ]
    if model.kind in KINDS and KINDS[model.kind].own_positions:
        return []
    if length and model.kind != 'language_model':
        return [
            f'num_positions = {length}: kind = {model.kind!r} begins at position 0 in every segment; '
            "use 0, or kind = 'language_model'"
        ]
    if length and length < segment_length:
        return [
            f'num_positions = {length}: must be at least the segment length {segment_length}; take '
            'shorter segments (of a pretrained decoder segment=N in its config), or 0 for a new table'
        ]
    return []


def _clusters(model: Any) -> list[str]:
    """Problems of the adaptive embedding and softmax."""
    problems, cutoffs = [], tuple(model.cutoffs)
    edges = (0, *cutoffs, model.vocab_size)
    if not all(isinstance(edge, int) for edge in edges):
        return [f'config.model.cutoffs: must be a tuple of ints, got {cutoffs}']
    if any(low >= high for low, high in itertools.pairwise(edges)):
        problems.append(
            f'config.model.cutoffs = {cutoffs}: must rise and lie between 0 and '
            f'vocab_size = {model.vocab_size}'
        )
    if model.div_val < 1 or model.d_embed // model.div_val ** len(cutoffs) < 1:
        problems.append(
            f'config.model.div_val = {model.div_val}: d_embed = {model.d_embed} divided by it '
            f'{len(cutoffs)} times must leave at least 1'
        )
    if len(model.tie_projections) != len(cutoffs) + 1:
        problems.append(
            f'config.model.tie_projections = {tuple(model.tie_projections)}: '
            f'{len(cutoffs) + 1} booleans are needed, one per cluster'
        )
    return problems
