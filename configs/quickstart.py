"""A byte-level Transformer-XL on the source of Python's standard library: no data, no network.

python -m longmem_jax.main --config=configs/quickstart.py --workdir=/tmp/longmem
Segments are short (32 bytes), so most of what helps to predict a byte is in the memory.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model
    stack(model, 4, 'transformer_xl')
    model.d_model = model.d_embed = 144
    model.num_heads, model.head_dim = 4, 36
    model.d_feed_forward = 576
    model.transformer_xl = transformer_xl(128)

    config.data.source = 'stdlib'

    config.optimizer.learning_rate = 2.5e-3
    config.optimizer.warmup_steps = 60
    config.optimizer.clip_norm = 1.0

    config.train.num_steps = 750
    config.train.num_lanes = 16
    config.train.segment_length = 32
    config.train.segments_per_step = 2
    config.train.log_every = 25
    config.train.evaluate_every = 250

    config.evaluate.segment_length = 32
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 64
    config.evaluate.max_test_segments = 200

    config.generate.sample_length = 300
    config.checkpoint.every = 100
    return variant(config, arg, tiny=tiny)


def tiny(config):
    """Seconds instead of minutes: shows that everything runs, learns little."""
    stack(config.model, 2, 'transformer_xl')
    config.model.d_model = config.model.d_embed = 64
    config.model.num_heads, config.model.head_dim = 2, 32
    config.model.d_feed_forward = 128
    config.model.transformer_xl.memory_length = 64
    config.train.num_steps = 20
    config.train.num_lanes = 4
    config.train.segment_length = 32
    config.train.log_every = 5
    config.train.evaluate_every = 10
    config.evaluate.segment_length = 32
    config.evaluate.num_lanes = 4
    config.evaluate.max_segments = 8
    config.evaluate.max_test_segments = 16
    config.generate.sample_length = 32
    config.checkpoint.every = 5
