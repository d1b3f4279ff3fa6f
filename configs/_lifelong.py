"""What the configs of lifelong learning share: sizes, encoder, method, stream."""

from typing import Any

from longmem_jax.config.base import base, two_cores
from longmem_jax.config.variants import one_of, variant, whole_number
from longmem_jax.hosts.classifiers import BERT_BASE
from longmem_jax.lifelong import settings

SMALL = BERT_BASE | dict(
    vocab_size=8000, max_position_embeddings=128, hidden_size=64, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=256,
)  # fmt: skip


def small(name):
    """Fields of a method's section with `tiny`, whose streams are a hundredth of the papers'.

    The papers' replays, 1 % of the rows after every 9,600, would be a few rows, and do nothing: here a
    tenth of the rows is replayed, 8 after every 80. Episodes have one batch of support, not 5, since
    every episode is one step of the encoder; a rate for the whole encoder is lower than one for the
    head alone. Rates of adaptation are higher than the papers', for a small encoder: 1e-2, where MbPA
    has 1e-3 or 5e-3 and Meta-MbPA 1e-5; Meta-MbPA has 8 neighbours in training, not 32.
    """
    replayed = dict(replay_every=80, replay_rate=0.1)
    if name in ('oml_er', 'anml_er', 'maml_er'):
        return replayed | dict(updates=1, inner_rate=0.1 if name == 'oml_er' else 0.01)
    if name == 'meta_mbpa':
        return replayed | dict(num_neighbours=8, train_rate=1e-2, adapt_rate=1e-2)
    if name.startswith('mbpa'):
        return replayed | dict(adapt_rate=1e-2)
    others = dict(replay=replayed, agem=dict(every=80), online_ewc=dict(every=800))
    return others.get(name, {})


def lifelong(arg, source, *, batch, by_method, tiny_data):
    """A configuration.

    Args:
      arg: the argument of the config file.
      source: of the data.
      batch: rows of a step.
      by_method: name of a method to (rows of a step, tokens of a row), where they are others.
      tiny_data: fields of `config.data.task` with `tiny`.
    """
    config = base('lifelong')
    host: dict[str, Any] = dict(source='', dropout=0.1)
    chosen: dict[str, Any] = dict(method='oml_er', tiny=False)
    settings.use_data(config, source)
    config.data.tokenizer = dict(kind='wordpiece', path='', size=30_522)  # of the folder `path`
    config.model.dtype = 'bfloat16'
    config.optimizer.name = 'adam'
    config.optimizer.learning_rate = 3e-5
    config.optimizer.schedule = 'constant'
    config.optimizer.clip_norm = 0.0
    config.train.num_steps = 1_000_000  # at most: the stream ends a run
    config.train.log_every = 100
    config.train.evaluate_every = 1000  # steps between checkpoints
    config.generate.sample_length = 0

    def method(config, name):
        """How it learns."""
        chosen.update(method=one_of('method', name, sorted(settings.METHODS)))

    def order(config, name):
        """A published order of the tasks."""
        config.lifelong.order = name

    def stream(config, name):
        """'tasks', 'joint', or the name of one task."""
        config.lifelong.stream = name

    def length(config, value):
        """Tokens of a row."""
        config.data.task.max_length = whole_number('length', value)

    def path(config, value):
        """A pretrained encoder."""
        host.update(source=value)

    def tiny(config):
        """Minutes on two cores."""
        chosen.update(tiny=True)

    variant(
        config,
        arg,
        memory=None,
        method=method,
        order=order,
        stream=stream,
        length=length,
        path=path,
        tiny=tiny,
    )
    name = chosen['method']
    settings.use(config, name)
    rows, tokens = by_method.get(name, (batch, config.data.task.max_length))
    typed = any(item.startswith('length=') for item in (arg or '').split(','))
    if not typed:
        config.data.task.max_length = tokens
    if chosen['tiny']:
        asked = config.data.task.max_length
        two_cores(config, steps=1_000_000, lanes=8, segment=64)
        rows = 8
        config.data.task.update(tiny_data)
        if typed:
            config.data.task.max_length = asked
        config.data.tokenizer.size = SMALL['vocab_size']
        config.optimizer.name, config.optimizer.schedule = 'adam', 'constant'
        config.optimizer.learning_rate, config.optimizer.clip_norm = 3e-4, 0.0
        config.optimizer.warmup_steps = 0
        config.lifelong.first_rows = 100
        config.lifelong[name].update(small(name))
        config.train.log_every, config.train.evaluate_every = 100, 500
        host.update(dropout=0.0, shape=SMALL)
    config.train.num_lanes = config.evaluate.num_lanes = rows
    settings.use_encoder(config, **host)
    config.evaluate.segment_length = config.train.segment_length
    return config
