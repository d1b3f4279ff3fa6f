"""`config.lifelong`: its fields, the sections of methods, and their rules."""

from collections.abc import Mapping
from typing import Any

from longmem_jax.errors import UsageError, unknown
from longmem_jax.hosts import model_fields
from longmem_jax.hosts.classifiers import BERT_BASE, encoder_of
from longmem_jax.lifelong.data.labelled import LABELLED
from longmem_jax.lifelong.methods.registry import METHODS
from longmem_jax.problems import at_least, one_of, require_none, under

TASKS, JOINT = 'tasks', 'joint'
MEASURED = ('ends', 'end')


def use(config: Any, method: str) -> None:
    """Sets the method of a configuration and its section, with the paper's values.

    Raises:
      UsageError: an unknown method.
    """
    if method not in METHODS:
        raise UsageError(f'{unknown("method", method, sorted(METHODS))}.')
    config.lifelong.method = method
    config.lifelong[method] = dict(METHODS[method].settings)


def use_data(config: Any, source: str) -> None:
    """Sets the data set of a configuration and its fields, with the papers' values."""
    config.data.source, config.data.task = source, dict(LABELLED[source].settings)
    config.lifelong.order = next(iter(LABELLED[source].orders), '')


def use_encoder(
    config: Any, source: str, *, dropout: float, shape: Mapping[str, Any] = BERT_BASE
) -> None:
    """Makes the model of a configuration an encoder, and the first parameters a host's.

    Args:
      source: a folder or a name on the hub, see `hosts.hosts.find`; '' = `shape`, with random
        parameters.
      shape: attributes of a `config.json`.

    Raises:
      UsageError: no such model, one that is no encoder, or one without its tokenizer.
    """
    from longmem_jax.lifelong import encoders  # imports models

    given, dtype = shape, config.model.dtype
    if source:
        needed = 'lifelong learners read with an encoder (bert).'
        host = encoder_of(config, source, needed)
        model, given = host.plain, host.attributes
    else:
        model = model_fields.model_of(shape, 'shape')
        config.notes = (
            'without path=FOLDER encoder and key network are not pretrained: only for comparison',
        )
    config.model = encoders.config_of(model, dropout=dropout, dtype=dtype)
    config.model.init_std = float(given.get('initializer_range', 0.02))  # of what is new
    config.train.segment_length = config.data.task.max_length
    config.train.loss_weights, config.evaluate.model = {}, {}


def find_problems(config: Any) -> list[str]:
    """Problems of the stream and of the method of a configuration for lifelong learning."""
    if 'lifelong' not in config:
        return [
            'config.lifelong: this config does not learn tasks one after another; begin with '
            'configs/lifelong_classification.py'
        ]
    settings, data = config.lifelong, config.data
    if data.source not in LABELLED:
        return [unknown('config.data.source', data.source, sorted(LABELLED))]
    labelled = LABELLED[data.source]
    problems = under('config.data.task', labelled.check(data.task))
    problems = problems or _too_long(config)
    wrong = one_of(settings, method=METHODS, measure=MEASURED)
    wrong += at_least(settings, 1, 'epochs', 'draws') + at_least(settings, 0, 'first_rows')
    if labelled.orders and settings.order not in labelled.orders:
        wrong.append(unknown('order', settings.order, sorted(labelled.orders)))
    elif not labelled.orders and settings.order:
        wrong.append(
            f'order = {settings.order!r}: tasks of {data.source!r} come in a random order, that of '
            "config.data.seed; use ''"
        )
    if settings.epochs > 1 and settings.stream == TASKS:
        wrong.append(
            f"epochs = {settings.epochs}: tasks one after another are read once; stream = 'joint', or "
            'one task, may be read more often'
        )
    method = METHODS.get(settings.method)
    if method and settings.method not in settings:
        wrong.append(f'{settings.method} is missing: the fields are {", ".join(method.settings)}')
    elif method:
        given, known = settings[settings.method], method.settings
        if set(given) != set(known):
            wrong.append(f'{settings.method}: the fields are {", ".join(known)}')
        else:
            wrong += under(settings.method, method.check(given))
    return problems + under('config.lifelong', wrong)


def _too_long(config: Any) -> list[str]:
    """The problem of rows that are longer than what the encoder has positions for."""
    asked, most = config.data.task.max_length, config.train.segment_length
    positions = config.model.num_positions or most
    if asked <= min(most, positions):
        return []
    return [
        f'config.data.task.max_length = {asked}: config.train.segment_length = {most} is less, or the '
        f'encoder has fewer positions, {positions}; length=N after the config file sets both fields'
    ]


def require(config: Any) -> None:
    """Raises one `UsageError` with all problems."""
    require_none(find_problems(config))
