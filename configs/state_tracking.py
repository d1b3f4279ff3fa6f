"""State tracking: products in a group, at every position (Merrill et al., 2024, The Illusion of State).

python -m longmem_jax.main --config=configs/state_tracking.py:group=S5,memory=infini --workdir=DIR
`:group=` is S5, A5, Z60, or another of `data/tasks/state_tracking.py`; with S5_swaps only permutations
are read that move two things at most. Trained on sequences of 4 to 32 elements. `--mode=evaluate` scores
every length by itself: exact match is the share of sequences without an error.
`--config.data.task.lengths='(32, 64, 128, 512)'` tests others. `:memory=` is any memory of the library.
`:tiny` is for two cores. The data is generated.

Not the paper's: it trains one model per length, up to 25 elements, that reads them at once, so
`lengths`, `segment_length` and `segments_per_step` are ours, as are `num_layers` (it has 1 to 4),
`num_steps`, `warmup_steps` and `clip_norm`.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant
from longmem_jax.data.tasks import state_tracking


def get_config(arg=''):
    config = base()

    size(config, layers=2, width=512, heads=8, feed_forward=2048)
    config.data.source = 'state_tracking'
    config.data.task = dict(
        documents=1_000_000, eval_documents=1024, group='S5', lengths=(4, 8, 16, 32)
    )
    config.model.vocab_size = 121
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 1e-4
    config.optimizer.weight_decay = 0.01
    config.optimizer.schedule = 'constant'
    config.optimizer.warmup_steps = 500
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 512
    config.train.segment_length = 16
    config.train.segments_per_step = 2
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 128
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=64, memories=256, basis=64, samples=64, slots=16)
    scale.update(widths=(0.02, 0.05))

    def group(config, name):
        """Another group; the model gets a word for every element."""
        config.data.task.group = name
        if not state_tracking.check(config.data.task):  # the command names what is wrong
            config.model.vocab_size = state_tracking.vocabulary(config.data.task).vocab_size

    def tiny(config):
        """2 layers of 64, segments of 8; some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=2000, lanes=64, segment=8)
        config.data.task.update(eval_documents=256, lengths=(2, 4, 8, 16))
        config.optimizer.learning_rate, config.optimizer.weight_decay = 3e-3, 0.0
        config.train.log_every = 100
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 64

    return variant(config, arg, memory='infini', scale=scale, group=group, tiny=tiny)
