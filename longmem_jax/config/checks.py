"""Every rule that a configuration must keep, checked before anything compiles; all problems at once.

The rules of `config.model` are in `config.model_checks`; subjects bring those of their sections.
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_collections

from longmem_jax.config.base import base
from longmem_jax.config.model_checks import model_problems, packing_problems, training_problems
from longmem_jax.config.names import is_name, taken
from longmem_jax.config.sections import WHOLE_TASK, in_use, sections
from longmem_jax.data.conventions import ADD_BOS
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.devices.generators import prng_problems
from longmem_jax.devices.sharding import mesh_sizes
from longmem_jax.errors import UsageError, nearest, no_field
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.kinds import KINDS
from longmem_jax.problems import above, at_least, at_most, between, one_of, require_none, under
from longmem_jax.registry import brought, foreign

LARGEST_SEED = 2**32 - 1  # NumPy's are not negative, JAX's have 32 bits
ABOVE_0 = {
    'train': ('num_steps', 'num_lanes', 'segment_length', 'segments_per_step'),
    'evaluate': ('num_lanes', 'segment_length'),
    'checkpoint': ('keep',),
    'optimizer': ('learning_rate', 'accumulate_steps'),
}
AT_LEAST_0 = {
    # 0 = at the end only
    'train': ('log_every', 'evaluate_every', 'patience', 'max_bad_steps', 'z_loss'),
    'evaluate': ('max_segments', 'max_test_segments'),
    'checkpoint': ('every', 'at'),  # 0 = at the end, and when stopped; the newest
    'optimizer': ('eps', 'weight_decay', 'momentum', 'warmup_steps', 'clip_norm'),
    'generate': ('length_penalty',),
    'translate': ('length_penalty', 'max_sentences'),
}
# Steps are counted in int32.
LARGEST = {
    'train': {'num_steps': 2**31 - 1, 'num_lanes': 1 << 24, 'segments_per_step': 1 << 20},
    'evaluate': {'num_lanes': 1 << 24},
    'generate': {'beams': 1 << 10},
    'translate': {'beams': 1 << 10},
}
WITH_MOMENTUM = ('sgd', 'nesterov')
# Fields of the core's training, and what they must be where a subject's section brings its own.
OF_OWN: dict[str, dict[str, Any]] = {
    'train': {'ema_decay': 0.0, 'patience': 0, 'packed': False},
    'checkpoint': {'best': ''},
}


def find_problems(config: Any, num_devices: int) -> list[str]:
    """Every problem of a configuration on `num_devices` devices, one line each."""
    if foreign() and (problems := _names()):
        return problems
    problems = model_problems(config.model, config.train.segment_length)
    if not problems:  # it reads the fields, which must be sound
        problems = training_problems(config.model, config.train.segment_length)
        problems += packing_problems(config.model) if config.train.packed else []
    try:
        evaluated = model_problems(evaluation_model(config), config.evaluate.segment_length)
        problems += [
            f'in evaluation, {problem}' for problem in evaluated if problem not in problems
        ]
    except UsageError as error:
        problems.append(str(error))
    if config.data.source in TASKS:
        problems += _of_task(config.data.task, TASKS[config.data.source].check(config.data.task))
    if config.data.path and (config.data.source == 'stdlib' or config.data.source in TASKS):
        problems.append(
            f'config.data.path = {config.data.path!r}: data.source = {config.data.source!r} reads no '
            "files; add --config.data.source=text, or --config.data.path=''"
        )
    if config.data.name and (
        config.data.source in ('stdlib', 'text') or config.data.source in TASKS
    ):
        problems.append(
            f'config.data.name = {config.data.name!r}: data.source = {config.data.source!r} reads no '
            "data set of a hub; add --config.data.source=huggingface or tfds, or --config.data.name=''"
        )
    if config.data.source in SOURCES and (check := SOURCES[config.data.source].check):
        problems += _of_task(config.data.task, check(config.data.task))
    problems += (
        _numbers(config)
        + _gradient(config.train)
        + prng_problems(config)
        + _optimizer(config)
        + _of_own(config)
        + _best(config)
        + _loss_weights(config)
        + _pairs(config)
    )
    problems += context_problems(config, 'evaluate') + _generate(config) + _tokenizer(config.data)
    if config.train.segment_length != config.evaluate.segment_length and (
        config.model.position == 'learned' and not config.model.num_positions
    ):
        problems.append(
            f'config.evaluate.segment_length = {config.evaluate.segment_length}: learned positions '
            f'need config.train.segment_length = {config.train.segment_length}, or their own table '
            'length, config.model.num_positions'
        )
    for check in brought('checks'):
        problems += check(config)
    try:
        problems += _divisions(config, mesh_sizes(config.mesh.to_dict(), num_devices))
    except UsageError as error:
        problems.append(str(error))
    return problems


def _names() -> list[str]:
    """Names of other packages that are names of something else in every config."""
    config = base()
    known = taken()
    wrong = {f'memory {name!r}': known[name] for name in LAYERS if name in known}
    wrong |= {f'section {name!r}': f'config.{name}' for name in sections() if name in config}
    return [
        f'{what} of another package: configs have a {field}; rename it, or leave that package out'
        for what, field in wrong.items()
    ]


def _best(config: Any) -> list[str]:
    """Problems of how the best checkpoint is chosen, which must be there when it is."""
    best, every = config.checkpoint.best, config.checkpoint.every
    evaluated = config.train.evaluate_every
    where = f'config.checkpoint.best = {best!r}'
    if not best:
        return []
    source = config.data.source
    if best == 'bits_per_byte' and source in TASKS:
        return [f"{where}: a generated task has no bytes; use 'accuracy' or 'loss'"]
    if best == 'exact_match' and source in SOURCES and SOURCES[source].corpus is None:
        return [f"{where}: a text has no answers; use 'bits_per_byte' or 'loss'"]
    if not evaluated or not every or evaluated % every:
        return [
            f'{where}: every validation needs a checkpoint, so config.train.evaluate_every = '
            f'{evaluated} must be a multiple of config.checkpoint.every = {every}, and both above 0'
        ]
    return []


def _of_own(config: Any) -> list[str]:
    """Problems of fields that the training of a subject would ignore."""
    other = [name for name, each in sections().items() if each.lower and in_use(config, name)]
    return [
        f'config.{section}.{name} = {config[section][name]!r}: what config.{other[0]} trains does not '
        f'have it; use {neutral!r}'
        for section, fields in OF_OWN.items()
        for name, neutral in fields.items()
        if other and config[section][name] != neutral
    ]


def require_runnable(config: Any, num_devices: int) -> None:
    """Raises one `UsageError` with all problems, before anything is compiled."""
    require_none(find_problems(config, num_devices))


def evaluation_model(config: Any) -> Any:
    """`config.model` with the overrides of `config.evaluate.model` applied.

    Raises:
      UsageError: an override of a field that does not exist, or that parameters are trained for.
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
                raise UsageError(no_field(where, field, model[name]))
            trained = LAYERS[name].recipe.trained if name in LAYERS else {}
            if field in trained and new != model[name][field]:
                raise UsageError(
                    f'{where}.{field} = {new}: must be {model[name][field]}, as in training: '
                    f'{trained[field]}'
                )
            model[name][field] = new
    return model


def _divisions(config: Any, sizes: Mapping[str, int]) -> list[str]:
    """Problems of sizes that must divide over the devices; `sizes`: mesh axis -> devices."""
    problems, model = [], config.model
    lane_devices = sizes['data'] * sizes['fsdp']
    for section in ('train', 'evaluate'):
        if config[section].num_lanes % lane_devices:
            problems.append(
                f'config.{section}.num_lanes = {config[section].num_lanes}: must be a multiple of '
                f'{lane_devices}, the devices that lanes are split over (config.mesh data x fsdp)'
            )
    for name, axis in (('num_heads', 'tensor'), ('d_feed_forward', 'tensor'), ('d_model', 'fsdp')):
        if model[name] % sizes[axis]:
            problems.append(
                f'config.model.{name} = {model[name]}: must be a multiple of '
                f'config.mesh.{axis} = {sizes[axis]}'
            )
    if model.vocab_size % sizes['tensor']:
        problems.append(
            f'config.model.vocab_size = {model.vocab_size}: must be a multiple of config.mesh.tensor '
            f'= {sizes["tensor"]}; a vocabulary may be larger than the tokenizer needs'
        )
    return problems


def _numbers(config: Any) -> list[str]:
    """Problems of the other sections' numbers that are too small or too large."""
    problems = []
    for section, names in ABOVE_0.items():
        problems += under(f'config.{section}', above(config[section], 0, *names))
    for section, names in AT_LEAST_0.items():
        problems += under(f'config.{section}', at_least(config[section], 0, *names))
    for section, most in LARGEST.items():
        problems += under(f'config.{section}', at_most(config[section], most))
    for section in ('train', 'data', 'generate'):
        problems += under(f'config.{section}', between(config[section], 0, LARGEST_SEED, 'seed'))
    if not 0 <= config.train.ema_decay < 1:
        problems.append(
            f'config.train.ema_decay = {config.train.ema_decay}: must be at least 0 and below 1, such '
            'as 0.999; 0 = no average'
        )
    return problems


def _gradient(train: Any) -> list[str]:
    """Problems of the number of segments that have a gradient."""
    if 0 <= train.gradient_segments <= train.segments_per_step:
        return []
    return [
        f'config.train.gradient_segments = {train.gradient_segments}: must be 0 (all) or at most '
        f'config.train.segments_per_step = {train.segments_per_step}'
    ]


def _loss_weights(config: Any) -> list[str]:
    """Problems of auxiliary losses without a weight, and of weights without a loss."""
    model, problems = config.model, []
    layers = set(used(model)) & set(LAYERS) & set(model)
    names: set[str] = set()
    switched_off: set[str] = set()
    for layer in layers:
        entry = LAYERS[layer]
        if set(entry.fields()) <= set(model[layer]):
            names.update(entry.layer.losses(model[layer]))
            # A field of the layer says that it has no such loss; the weight may stay.
            switched_off.update(entry.layer.losses(entry.defaults()))
    if model.kind in KINDS:
        names.update(KINDS[model.kind].losses)
    weighted = set(config.train.loss_weights)
    for name in sorted(names - weighted):
        problems.append(f'config.train.loss_weights.{name} is missing: a weight for this loss')
    for name in sorted(weighted - names - switched_off):
        allowed = f'its losses are {", ".join(sorted(names))}' if names else 'it has none'
        problems.append(
            f'config.train.loss_weights.{name} = {config.train.loss_weights[name]}: not a loss of this '
            f'model, {nearest(name, names)}{allowed}'
        )
    return problems


def _optimizer(config: Any) -> list[str]:
    """Problems of settings that the chosen optimizer would ignore."""
    settings, problems = config.optimizer, []
    problems += [
        f'config.optimizer.{name} = {settings[name]}: must be at least 0 and below 1'
        for name in ('b1', 'b2')
        if not 0 <= settings[name] < 1
    ]
    problems += under('config.optimizer', between(settings, 0, 1, 'final_fraction'))
    if 0 < config.train.num_steps < settings.accumulate_steps:
        problems.append(
            f'config.optimizer.accumulate_steps = {settings.accumulate_steps}: an update needs as many '
            f'steps, and config.train.num_steps = {config.train.num_steps} would make none'
        )
    if settings.options and not settings.name.startswith('optax.'):
        problems.append(
            f'config.optimizer.options = {settings.options}: belong to optimizers of optax, such as '
            f"'optax.lamb'; {settings.name!r} has fields of config.optimizer"
        )
    without = ('adam', 'adagrad', 'rmsprop', 'given', *WITH_MOMENTUM)
    if settings.weight_decay and settings.name in without:
        problems.append(
            f'config.optimizer.weight_decay = {settings.weight_decay}: {settings.name!r} has none; '
            "use 'adamw'"
        )
    if settings.momentum and settings.name not in (*WITH_MOMENTUM, 'muon'):
        problems.append(
            f"config.optimizer.momentum = {settings.momentum}: belongs to 'sgd', 'nesterov' and 'muon' "
            'only'
        )
    if settings.name == 'nesterov' and not 0 < settings.momentum < 1:
        problems.append(
            f"config.optimizer.momentum = {settings.momentum}: 'nesterov' needs one between 0 and 1, "
            'such as 0.99'
        )
    if settings.clip_each and not settings.clip_norm:
        problems.append(
            'config.optimizer.clip_each = True: needs a limit above 0, config.optimizer.clip_norm'
        )
    return problems


def _pairs(config: Any) -> list[str]:
    """Problems of paired data and of the model that reads it."""
    pairs, problems = config.data.pairs, []
    paired = config.data.source == 'parallel'
    if paired != (config.model.kind == 'seq2seq'):
        return [
            f'config.data.source = {config.data.source!r}, config.model.kind = '
            f"{config.model.kind!r}: 'parallel' and 'seq2seq' belong together"
        ]
    if not paired or 'seq2seq' not in config.model:
        return []
    if len(pairs.languages) != 2 or not all(pairs.languages):
        problems.append(
            f'config.data.pairs.languages = {tuple(pairs.languages)}: must name source and target, '
            "such as ('en', 'de')"
        )
    if pairs.max_source != config.model.seq2seq.max_source:
        problems.append(
            f'config.data.pairs.max_source = {pairs.max_source}: must be '
            f'config.model.seq2seq.max_source = {config.model.seq2seq.max_source}'
        )
    for section in ('train', 'evaluate'):
        if config[section].segment_length != pairs.max_source + pairs.max_target:
            problems.append(
                f'config.{section}.segment_length = {config[section].segment_length}: must be '
                'config.data.pairs.max_source + max_target = '
                f'{pairs.max_source} + {pairs.max_target}'
            )
    problems += under('config.translate', at_least(config.translate, 1, 'beams', 'num_lanes'))
    return problems


def _tokenizer(data: Any) -> list[str]:
    """Problems of settings that the chosen tokenizer would ignore, and of what stands before texts."""
    settings, problems = data.tokenizer, []
    if data.source in TASKS and settings.kind != 'bytes':
        problems.append(f'kind = {settings.kind!r}: the task {data.source!r} has its own words')
    if settings.path and (data.source in TASKS or settings.kind == 'bytes'):
        problems.append(
            f'path = {settings.path!r}: would be ignored; a file is only read for texts, and with '
            "another kind than 'bytes'"
        )
    if settings.size and settings.kind == 'bytes':
        problems.append(
            f"size = {settings.size}: would be ignored; 'bytes' has 256 and a begin token"
        )
    problems = under('config.data.tokenizer', problems + at_least(settings, 0, 'size'))
    problems += under('config.data', one_of(data, add_bos=ADD_BOS))
    whole = [name for name, source in SOURCES.items() if source.corpus is None]
    if data.tokenized and data.source not in whole:
        problems.append(
            f'config.data.tokenized = {data.tokenized!r}: the source {data.source!r} is not one of '
            f'texts; allowed are {", ".join(whole)}'
        )
    return problems


def _generate(config: Any) -> list[str]:
    """Problems of the settings of text generation."""
    settings = config.generate
    problems = at_least(settings, 0, 'length', 'sample_length', 'temperature', 'top_k', 'beams')
    if settings.temperature == math.inf:
        problems.append('temperature = inf: must be a number')
    return under('config.generate', problems + between(settings, 0, 1, 'top_p'))


def _of_task(task: Any, problems: list[str]) -> list[str]:
    """Problems of the fields of `config.data.task`; a config of another kind has none of them."""
    whole = [f'config.data.task has no fields: {WHOLE_TASK}'] if problems and not task else []
    wrong = [f'{name}: no field can have this name' for name in task if not is_name(name)]
    return under('config.data.task', problems + wrong) + whole


def context_problems(config: Any, section: str) -> list[str]:
    """Problems of `config.SECTION.context`, tokens of overlapping windows."""
    context, length = config[section].context, config.evaluate.segment_length
    where, source = f'config.{section}.context = {context}', config.data.source
    if not 0 <= context < max(length, 1):  # a wrong length is told elsewhere
        less = f'config.evaluate.segment_length = {length}, the tokens of a window'
        return [f'{where}: must be at least 0 and less than {less}; set a longer window, too']
    texts = source not in TASKS and (source not in SOURCES or SOURCES[source].reads == 'texts')
    if texts or not context:
        return []
    return [f'{where}: only texts are read in overlapping windows; use 0']
