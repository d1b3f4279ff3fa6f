"""Every rule that a configuration must keep, checked before anything compiles; all faults at once."""

import itertools
from typing import Any

import ml_collections

from longmem_jax.config import retrieval
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.devices.sharding import mesh_sizes
from longmem_jax.errors import UsageError, nearest, unknown
from longmem_jax.faults import above, at_least, between, of_section, one_of, under
from longmem_jax.layers import embedding, norms
from longmem_jax.memory.checks import layer_faults, size_faults
from longmem_jax.memory.registry import ATTENTION, FEED_FORWARD, LAYERS
from longmem_jax.models.kinds import KINDS


def _stack(model, name, registry):
    """Faults of one layer stack, spelled out in the config."""
    given = tuple(model[name])
    if not all(isinstance(layer, str) for layer in given):
        return [f'config.model.{name} = {given}: names of layers are needed, one per layer']
    faults = []
    if len(given) != model.num_layers:
        example = ','.join((given * model.num_layers)[: model.num_layers])
        example += ',' if model.num_layers == 1 else ''
        faults.append(
            f'config.model.{name} = {given}: one name per layer is needed, {model.num_layers} in all '
            f'(config.model.num_layers); set both, such as --config.model.{name}={example}'
        )
    for layer in sorted(set(given)):
        if layer not in registry:
            faults.append(unknown(f'config.model.{name}', layer, sorted(registry)))
    return faults


def _kind(model, segment_length):
    """Faults of the kind of model and of its section."""
    if model.kind not in KINDS:
        return [unknown('config.model.kind', model.kind, sorted(KINDS))]
    kind, where = KINDS[model.kind], f'config.model.{model.kind}'
    faults = _attention_of_kind(model)
    if not kind.fields:
        return faults
    if model.kind not in model:
        return [*faults, f'{where} is missing: the fields are {", ".join(kind.fields)}']
    wrong = of_section(model[model.kind], kind.fields)
    if not wrong and set(model.attention) <= set(ATTENTION):
        wrong = kind.faults(model, segment_length)
    return faults + under(where, wrong)


def _attention_of_kind(model):
    """Faults of attention layers that belong to one kind of model."""
    given = f'config.model.attention = {tuple(model.attention)}'
    faults = [
        f'{given}, config.model.kind = {model.kind!r}: {kind.attention!r} needs kind = {name!r}'
        for name, kind in KINDS.items()
        if kind.attention in model.attention and name != model.kind
    ]
    needed = KINDS[model.kind].attention
    if needed and set(model.attention) != {needed}:
        faults.append(f'{given}: {model.kind!r} needs {needed!r} in all layers')
    return faults


def _fields(model, name, segment_length):
    """Faults of the sub-config of one layer type, for segments of so many tokens."""
    where = f'config.model.{name}'
    if name not in model:
        advice = (
            f'to use this memory in all layers: --config=configs/NAME.py:memory={name}'
            if name in ATTENTION
            else f'it needs the fields {", ".join(LAYERS[name].fields())}'
        )
        return [f'{where} is missing, though {name!r} is in the stack of layers; {advice}']
    return layer_faults(
        LAYERS[name],
        model[name],
        LAYERS[name].fields(),
        model,
        segment_length,
        where=f'{where}.',
        where_model='config.model.',
    )


def _positions(model, segment_length):
    """Faults of the table of absolute positions."""
    number = model.num_positions
    if number and model.position == 'none':
        return [
            f"num_positions = {number}: position = 'none' has none; use 0, or position = 'learned' or "
            "'sinusoidal'"
        ]
    if number and model.kind != 'language_model':
        return [
            f'num_positions = {number}: kind = {model.kind!r} begins at position 0 in every segment; '
            "use 0, or kind = 'language_model'"
        ]
    if number and number < segment_length:
        return [
            f'num_positions = {number}: must be at least the segment length {segment_length}, or 0 for '
            'a table of that length'
        ]
    return []


def _clusters(model):
    """Faults of the adaptive embedding and softmax."""
    faults, cutoffs = [], tuple(model.cutoffs)
    edges = (0, *cutoffs, model.vocab_size)
    if not all(isinstance(edge, int) for edge in edges):
        return [f'config.model.cutoffs: must be a tuple of ints, got {cutoffs}']
    if any(low >= high for low, high in itertools.pairwise(edges)):
        faults.append(
            f'config.model.cutoffs = {cutoffs}: must rise and lie between 0 and '
            f'vocab_size = {model.vocab_size}'
        )
    if model.div_val < 1 or model.d_embed // model.div_val ** len(cutoffs) < 1:
        faults.append(
            f'config.model.div_val = {model.div_val}: d_embed = {model.d_embed} divided by it '
            f'{len(cutoffs)} times must leave at least 1'
        )
    if len(model.tie_projections) != len(cutoffs) + 1:
        faults.append(
            f'config.model.tie_projections = {tuple(model.tie_projections)}: '
            f'{len(cutoffs) + 1} booleans are needed, one per cluster'
        )
    return faults


def model_faults(model: Any, segment_length: int) -> list[str]:
    """Faults of `config.model`, for segments of so many tokens."""
    faults = at_least(model, 1, 'vocab_size', 'd_embed') + size_faults(model)
    faults += one_of(model, norm=norms.KINDS, position=embedding.ABSOLUTE)
    faults += _positions(model, segment_length) + between(model, 0, 1, 'layer_drop', ends='[)')
    for name in ('residual_dropout', 'embedding_dropout'):
        if model[name] != -1 and between(model, 0, 1, name, ends='[)'):
            faults.append(
                f'{name} = {model[name]}: must lie between 0 and 1, excluding 1, or be -1 (as dropout)'
            )
    faults = under('config.model', faults)
    faults += _stack(model, 'attention', ATTENTION)
    faults += _stack(model, 'feed_forward', FEED_FORWARD)
    if not all(isinstance(name, str) for name in (*model.attention, *model.feed_forward)):
        return faults
    faults += _kind(model, segment_length)
    for name in sorted({*model.attention, *model.feed_forward} & set(LAYERS)):
        faults += _fields(model, name, segment_length)
    return faults + _clusters(model)


def _divisions(config, sizes):
    """Faults of what is spread over devices."""
    faults, model = [], config.model
    lanes = sizes['data'] * sizes['fsdp']
    for section in ('train', 'evaluate'):
        if config[section].num_lanes % lanes:
            faults.append(
                f'config.{section}.num_lanes = {config[section].num_lanes}: must be a multiple of '
                f'{lanes}, the devices that lanes are spread over (config.mesh data x fsdp)'
            )
    for name, axis in (('num_heads', 'tensor'), ('d_feed_forward', 'tensor'), ('d_model', 'fsdp')):
        if model[name] % sizes[axis]:
            faults.append(
                f'config.model.{name} = {model[name]}: must be a multiple of '
                f'config.mesh.{axis} = {sizes[axis]}'
            )
    if model.vocab_size % sizes['tensor']:
        faults.append(
            f'config.model.vocab_size = {model.vocab_size}: must be a multiple of config.mesh.tensor '
            f'= {sizes["tensor"]}; a vocabulary may be larger than the tokenizer needs'
        )
    return faults


def _positive(config):
    """Numbers of other sections that must be above 0."""
    return [
        fault
        for section, names in {
            'train': ('num_steps', 'num_lanes', 'segment_length', 'segments_per_step', 'log_every'),
            'evaluate': ('num_lanes', 'segment_length'),
            'checkpoint': ('every', 'keep'),
            'optimizer': ('learning_rate', 'accumulate_steps'),
        }.items()
        for fault in under(f'config.{section}', above(config[section], 0, *names))
    ]


def _loss_weights(config):
    """Auxiliary losses of the layers that have no weight, and weights that no layer has."""
    model, faults = config.model, []
    used = {*model.attention, *model.feed_forward} & set(LAYERS) & set(model)
    names = set()
    for layer in used:
        if set(LAYERS[layer].fields()) <= set(model[layer]):
            names.update(LAYERS[layer].losses(model[layer]))
    if model.kind in KINDS:
        names.update(KINDS[model.kind].losses)
    given = set(config.train.loss_weights)
    for name in sorted(names - given):
        faults.append(f'config.train.loss_weights.{name} is missing: a weight for this loss')
    for name in sorted(given - names):
        allowed = f'its losses are {", ".join(sorted(names))}' if names else 'it has none'
        faults.append(
            f'config.train.loss_weights.{name} = {config.train.loss_weights[name]}: not a loss of this '
            f'model, {nearest(name, names)}{allowed}'
        )
    return faults


def _optimizer(config):
    """Settings that the optimizer chosen would ignore."""
    settings, faults = config.optimizer, []
    if settings.weight_decay and settings.name in ('adam', 'sgd'):
        faults.append(
            f'config.optimizer.weight_decay = {settings.weight_decay}: {settings.name!r} has none; '
            "use 'adamw'"
        )
    if settings.momentum and settings.name != 'sgd':
        faults.append(f"config.optimizer.momentum = {settings.momentum}: belongs to 'sgd' only")
    return faults


def _pairs(config):
    """Faults of data in pairs and of the model that reads them."""
    pairs, faults = config.data.pairs, []
    paired = config.data.source == 'parallel'
    if paired != (config.model.kind == 'seq2seq'):
        return [
            f'config.data.source = {config.data.source!r}, config.model.kind = '
            f"{config.model.kind!r}: 'parallel' and 'seq2seq' belong together"
        ]
    if not paired or 'seq2seq' not in config.model:
        return []
    if len(pairs.languages) != 2 or not all(pairs.languages):
        faults.append(
            f'config.data.pairs.languages = {tuple(pairs.languages)}: source and target are '
            "needed, such as ('en', 'de')"
        )
    if pairs.max_source != config.model.seq2seq.max_source:
        faults.append(
            f'config.data.pairs.max_source = {pairs.max_source}: must be '
            f'config.model.seq2seq.max_source = {config.model.seq2seq.max_source}'
        )
    for section in ('train', 'evaluate'):
        if config[section].segment_length != pairs.max_source + pairs.max_target:
            faults.append(
                f'config.{section}.segment_length = {config[section].segment_length}: must be '
                'config.data.pairs.max_source + max_target = '
                f'{pairs.max_source} + {pairs.max_target}'
            )
    faults += under('config.translate', at_least(config.translate, 1, 'beams', 'num_lanes'))
    if config.retrieval.kind != 'none':
        faults.append(f"config.retrieval.kind = {config.retrieval.kind!r}: not for 'seq2seq'")
    return faults


def _generate(config):
    """Faults of how texts are drawn."""
    settings = config.generate
    faults = at_least(settings, 0, 'length', 'sample_length', 'temperature', 'top_k')
    return under('config.generate', faults + between(settings, 0, 1, 'top_p'))


def _context(config):
    """Faults of overlapping windows."""
    context, length = config.evaluate.context, config.evaluate.segment_length
    if not 0 <= context < length:
        return [
            f'config.evaluate.context = {context}: must lie between 0 and '
            f'config.evaluate.segment_length = {length}'
        ]
    if context and (config.data.source in TASKS or config.data.source == 'parallel'):
        return [f'config.evaluate.context = {context}: windows are for texts']
    return []


def find_faults(config: Any, num_devices: int) -> list[str]:
    """Every fault of a configuration for that many devices, one line each."""
    faults = model_faults(config.model, config.train.segment_length)
    try:
        evaluated = model_faults(evaluation_model(config), config.evaluate.segment_length)
        faults += [f'in evaluation, {fault}' for fault in evaluated if fault not in faults]
    except UsageError as error:
        faults.append(str(error))
    if config.data.source in TASKS:
        faults += under('config.data.task', TASKS[config.data.source][1](config.data.task))
    faults += _positive(config) + _optimizer(config) + _loss_weights(config) + _pairs(config)
    faults += under('config.retrieval', retrieval.check(config.retrieval)) + _context(config)
    faults += _generate(config)
    if config.train.segment_length != config.evaluate.segment_length and (
        config.model.position == 'learned' and not config.model.num_positions
    ):
        faults.append(
            f'config.evaluate.segment_length = {config.evaluate.segment_length}: learned positions '
            f'need config.train.segment_length = {config.train.segment_length}, or a table of their '
            'own length, config.model.num_positions'
        )
    try:
        faults += _divisions(config, mesh_sizes(config.mesh.to_dict(), num_devices))
    except UsageError as error:
        faults.append(str(error))
    return faults


def require_runnable(config: Any, num_devices: int) -> None:
    """Raises one `UsageError` with all faults; nothing has been compiled by then."""
    faults = find_faults(config, num_devices)
    if faults:
        count = '1 problem' if len(faults) == 1 else f'{len(faults)} problems'
        raise UsageError(f'{count} in the configuration:\n  ' + '\n  '.join(faults))


def evaluation_model(config: Any) -> Any:
    """`config.model` as evaluation uses it: with the overrides of `config.evaluate.model`.

    Raises:
      UsageError: an override of a field that is not there.
    """
    model = config.model.copy_and_resolve_references()
    for name, value in config.evaluate.model.items():
        where = f'config.evaluate.model.{name}'
        if name not in model:
            raise UsageError(
                f'{where}: config.model has no {name!r}, so there is nothing to override: '
                f'{nearest(name, model)}remove it, or set a field of config.model'
            )
        if not isinstance(model[name], ml_collections.ConfigDict):
            model[name] = value
            continue
        for field, new in value.items():
            if field not in model[name]:
                raise UsageError(unknown(f'a field of {where}', field, sorted(model[name])))
            model[name][field] = new
    return model
