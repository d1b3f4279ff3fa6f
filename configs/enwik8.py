"""Transformer-XL on enwik8, 12 layers (Dai et al., 2019, Table 2; authors' base script).

python -m longmem_jax.main --config=configs/enwik8.py --config.data.path=enwik8 --workdir=DIR
Published: 1.06 bits/byte. Data: the one file of 100 MB, cut by position 90/5/5.
`:tiny` trains in minutes on two cores on any smaller file of the same kind.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model  # 41 M parameters
    stack(model, 12, 'transformer_xl')
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.transformer_xl = transformer_xl(512)
    model.pre_norm = model.final_norm = False
    model.dropout = 0.1
    model.dtype = 'bfloat16'

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.clip_norm = 0.25

    config.data.pieces = 24  # one stream per lane, as the authors lay it

    config.train.num_steps = 400_000
    config.train.num_lanes = 24  # 22 in the script: a multiple of 8 divides over devices
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000

    # Evaluated at length 80 with 2,100 memories, distances clamped at 820, equal context lengths.
    config.evaluate.segment_length = 80
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 200
    config.evaluate.model = dict(
        transformer_xl=transformer_xl(2100, clamp_length=820, same_length=True)
    )
    config.checkpoint.every = 4000
    return variant(config, arg, tiny=tiny)


def tiny(config):
    """4 layers of 128, some minutes on two cores."""
    model = config.model
    stack(model, 4, 'transformer_xl')
    model.d_model = model.d_embed = 128
    model.num_heads, model.head_dim = 4, 32
    model.d_feed_forward = 512
    model.transformer_xl.memory_length = 256
    model.pre_norm = model.final_norm = True
    model.dropout = 0.0
    model.dtype = 'float32'
    config.data.pieces = 16
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 600
    config.train.num_lanes = 16
    config.train.segment_length = 128
    config.train.log_every = 20
    config.train.evaluate_every = 200
    config.evaluate.segment_length = 128
    config.evaluate.num_lanes = 1
    config.evaluate.max_segments = 200
    config.evaluate.max_test_segments = 800
    config.evaluate.model = dict(
        transformer_xl=transformer_xl(512, clamp_length=384, same_length=True)
    )
    config.checkpoint.every = 200
