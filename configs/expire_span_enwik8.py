"""Expire-Span on enwik8, 12 layers of 512, spans up to 16k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_enwik8.py --config.data.path=enwik8 --workdir=DIR
Published: 0.99 bits/byte (the last 10k of 110k updates at a tenth of the rate: run the first 100k, then
with `--config.train.num_steps=110000 --config.optimizer.learning_rate=7e-5`).
`:large` is the model of 24 layers and 208 M parameters with spans up to 32k; published: 0.95.
`:memory=transformer_xl|adaptive_span|compressive` are the baselines; `:tiny` is for two cores.
"""

from longmem_jax.config.base import base
from longmem_jax.config.recipes import Comparison
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model  # 38 M parameters
    model.num_layers = 12
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.pre_norm = model.final_norm = False
    model.scale_embedding = model.tie_weights = False
    model.dropout = model.attention_dropout = 0.3
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'

    config.optimizer.learning_rate = 7e-4
    config.optimizer.schedule = 'constant'
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.3

    config.data.pieces = 512  # one stream per lane

    config.train.num_steps = 100_000
    config.train.num_lanes = 512
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 512
    config.evaluate.num_lanes = 128
    config.evaluate.max_segments = 200
    config.checkpoint.every = 4000

    choice = Comparison(
        config,
        block=512,
        span=16_384,
        ramp=128,
        xl=2048,
        compressed=8192,
        weights=dict(expire_span=1e-6, adaptive_span=5e-7),
        shorten=True,
    )

    def large(config):
        """24 layers of 768, Eq. 8, layer drop."""
        model.num_layers = 24
        model.d_model = model.d_embed = 768
        model.num_heads, model.head_dim = 8, 96  # heads are not given
        model.d_feed_forward = 4096
        model.dropout = model.attention_dropout = 0.5
        model.layer_drop = 0.2
        config.optimizer.learning_rate = 4e-4
        config.optimizer.warmup_steps = 16_000
        weights = dict(expire_span=3e-7, adaptive_span=5e-7)
        choice.change(span=32_768, weights=weights, changes=dict(pre_div=128.0))

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        model.num_layers = 3
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dropout = model.attention_dropout = 0.0
        model.layer_drop = 0.0
        model.pre_norm = model.final_norm = True
        model.dtype = 'float32'
        config.data.pieces = 16
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 600
        config.train.num_lanes = 16
        config.train.segment_length = 64
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 8
        config.evaluate.max_segments = 50
        config.evaluate.max_test_segments = 200
        config.checkpoint.every = 200
        choice.change(
            span=1024,
            block=64,
            ramp=32,
            xl=256,
            compressed=512,
            weights=dict(expire_span=1e-4, adaptive_span=1e-5),
            changes=dict(pre_div=1.0, num_sizes=5),
        )

    return variant(config, arg, tiny=tiny, large=large, **choice.variants())
