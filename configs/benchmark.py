"""The shape that speeds are compared at: 4 layers of 256, segment 128, memory 1,024, 4 lanes, float32.

python -m longmem_jax.bench --config=configs/benchmark.py
"""

from longmem_jax.config import base, stack, transformer_xl
from longmem_jax.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model
    stack(model, 4, 'transformer_xl')
    model.vocab_size = 256
    model.d_model = model.d_embed = 256
    model.num_heads, model.head_dim = 4, 64
    model.d_feed_forward = 1024
    model.transformer_xl = transformer_xl(1024)
    model.pre_norm = model.final_norm = False

    config.data.source = 'stdlib'  # not read by the benchmark
    config.train.num_lanes = config.evaluate.num_lanes = 4  # 4 per device
    config.train.segment_length = config.evaluate.segment_length = 128
    return variant(config, arg, tiny=tiny)


def tiny(config):
    """A sixteenth of the memory."""
    config.model.transformer_xl.memory_length = 64
