"""GPT-2 small with a memory, as fine-tuned for the infinity-former: `gpt2_*.py`, `cmu_dog.py`."""

from typing import Any

from longmem_jax.config.base import base, read_bytes, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.hosts import grafting

SMALL = grafting.GPT2_SMALL | dict(vocab_size=257, n_positions=128, n_embd=64, n_layer=2, n_head=4)
# What is new learns at five times the rate of GPT-2.
RATE, HOST_RATE = 2.5e-4, 0.2
DROPOUT = 0.1


def fine_tuned(config, arg, *, memories, tiny, host_rate=1.0, **variants):
    """The configuration with GPT-2, or the host of `path=FOLDER`, as its model, and a memory in it.

    Args:
      config: of data and training; changed in place.
      arg: the argument of the config file.
      memories: as in `variant`, with 'infinity_former'.
      tiny: `(config)`: sizes for two cores, after which the model is a small one of bytes.
      host_rate: learning rate of what the host has, as a multiple of the rate of what is new.
      **variants: as in `variant`.
    """
    host: dict[str, Any] = dict(source='', shape=grafting.GPT2_SMALL)
    learned = dict(dropout=DROPOUT)
    config.data.tokenizer.kind = 'tokenizers'  # of the folder `path`

    def small(config):
        """Without `path`, a small model of bytes that has learned nothing."""
        read_bytes(config)
        host.update(shape=SMALL)
        learned.update(dropout=0.0)
        tiny(config)

    def path(config, value):
        host.update(source=value)

    def sticky(config, kind):
        memories['infinity_former'].fields.update(sticky=kind)

    def put(config, name, changes, **scale):
        grafting.use_host(config, **host)
        grafting.graft(config, name, changes=changes, **scale)
        if host_rate != 1.0:
            grafting.rate_of_host(config, host_rate)
        config.model.dropout = config.model.attention_dropout = learned['dropout']

    return variant(
        config,
        arg,
        memory='infinity_former',
        memories=memories,
        put=put,
        tiny=small,
        path=path,
        sticky=sticky,
        **variants,
    )


def language_model(arg, num_steps, **data):
    """The configuration of a language model for a corpus.

    Args:
      arg: the argument of the config file.
      num_steps: an epoch, in segments of 512 tokens.
      **data: fields of `config.data`.
    """
    config = base()
    continuous = given(
        num_basis=512,
        widths=(0.005, 0.01),
        num_samples=512,
        tau=0.5,
        ridge=0.5,
        sigma_sq_min=1e-4,
        memory_threshold=2048,
        threshold_kind='clear',
        sigma_0=0.05,
        kl='true',
        sticky='none',
        normalize_written=False,
        loss_weights=dict(kl=1e-6),
        groups=(),
    )
    memories = dict(
        infinity_former=continuous,
        compressive=given(memory_length=512, compressed_length=512, rate=4),
    )

    config.data.update(data)
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = RATE
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = num_steps
    config.train.num_lanes = 1
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 20_000
    config.evaluate.num_lanes = 1
    config.evaluate.max_segments = 400
    config.mesh.data, config.mesh.memory = 1, -1  # a single lane cannot be divided

    def tiny(config):
        """Segments of 64."""
        two_cores(config, steps=400, lanes=4, segment=64)
        config.optimizer.name = 'adamw'
        config.data.first = 0
        continuous.fields.update(
            num_basis=64, widths=(0.02, 0.05), num_samples=128, memory_threshold=256
        )
        memories['compressive'].fields.update(memory_length=64, compressed_length=64)
        config.mesh.data, config.mesh.memory = -1, 1
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def rate(config, value):
        memories['compressive'].fields.update(rate=whole_number('rate', value))

    return fine_tuned(config, arg, memories=memories, tiny=tiny, host_rate=HOST_RATE, rate=rate)
