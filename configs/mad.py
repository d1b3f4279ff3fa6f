"""MAD: six small tasks, each for one skill of a layer (Poli et al., 2024).

python -m longmem_jax.main --config=configs/mad.py:task=fuzzy,memory=infini --workdir=DIR
`:task=` is `recall`, `noisy`, `fuzzy`, `compression`, `memorization` or `copying`, each at the paper's
first difficulty; its others are overrides such as `--config.data.task.length=512`. `:memory=` is any
memory of the library. `:tiny` has a model of 64, for two cores. The data is generated.

The paper takes the best of the learning rates 1e-4, 5e-4 and 1e-3 and of the weight decays 0 and 0.1.

Not the paper's: its layers read a document at once; `segment_length` 32 is for memories, so the model
learns through `segments_per_step`. `num_heads` and `d_feed_forward` are ours, and `dtype` is float32.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import one_of, variant

# What differs from recall, and segments of a step of 128 documents.
TASKS: dict[str, tuple[dict[str, Any], int]] = dict(
    recall=({}, 4),
    noisy=(dict(num_words=32, num_noise=16, noise=0.2), 4),
    fuzzy=(dict(kind='fuzzy', key_length=3, value_length=3), 4),
    compression=(dict(kind='compression', length=32), 2),
    memorization=(dict(kind='memorization', num_words=256, length=32, documents=256), 1),
    copying=(dict(kind='copying', length=256, num_copied=16), 8),
)


def get_config(arg=''):
    config = base()

    size(config, layers=2, width=128, heads=4, feed_forward=512)
    config.data.source = 'mad'
    config.data.task = dict(
        kind='recall',
        documents=12_800,
        eval_documents=1280,
        num_words=16,
        length=128,
        num_noise=0,
        noise=0.0,
        key_length=1,
        value_length=1,
        num_copied=16,
        train_on_text=True,
    )
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.final_fraction = 2e-3
    config.optimizer.clip_norm = 0.0
    config.train.num_lanes = 128
    config.train.segment_length = 32
    config.train.log_every = 100
    config.train.evaluate_every = 1000
    config.evaluate.num_lanes = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=256, memories=2048, basis=64, samples=64, slots=16)
    scale.update(widths=(0.02, 0.05))

    def task(config, name):
        """One of the six tasks."""
        one_of('task', name, TASKS)
        changes, config.train.segments_per_step = TASKS[name]
        settings = config.data.task
        settings.update(changes)
        config.model.vocab_size = settings.num_words + 2  # and at most two marks
        config.train.num_steps = 200 * settings.documents // config.train.num_lanes

    def tiny(config):
        """2 layers of 64 that learn from answers only; some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=1500, lanes=16, segment=32)
        config.data.task.update(eval_documents=128, train_on_text=False)
        config.optimizer.learning_rate = 3e-3
        config.optimizer.clip_norm = 1.0
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16

    argument = arg if 'task=' in arg else ','.join(filter(None, (arg, 'task=recall')))
    return variant(config, argument, memory='infini', scale=scale, task=task, tiny=tiny)
