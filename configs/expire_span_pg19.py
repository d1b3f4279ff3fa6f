"""Expire-Span on PG-19 by characters, spans up to 8k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 512; `:span=16384` is the paper's longer model, which goes with
`--config.train.loss_weights.expire_span=3e-7`. Published: 1.07 bits per character with every memory;
`:memory=transformer_xl|adaptive_span|compressive` are the baselines; `:tiny` is for two cores.
"""

from longmem_jax.config.base import base
from longmem_jax.config.recipes import Comparison
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model
    model.vocab_size = 3520  # 3,506 characters; rounded up so that it divides over devices
    model.num_layers = 12
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.pre_norm = model.final_norm = False
    model.scale_embedding = model.tie_weights = False
    model.dropout = model.attention_dropout = 0.2
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'

    config.data.tokenizer = dict(kind='characters', path='', size=3506)

    config.optimizer.learning_rate = 7e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.3

    config.train.num_steps = 100_000
    config.train.num_lanes = 512
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 512
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.checkpoint.every = 4000

    choice = Comparison(
        config,
        block=512,
        span=8192,
        ramp=128,
        xl=2048,
        compressed=8192,
        weights=dict(expire_span=1e-6, adaptive_span=5e-7),
    )

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        model.num_layers = 3
        model.vocab_size = 512
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dropout = model.attention_dropout = 0.0
        model.pre_norm = model.final_norm = True
        model.dtype = 'float32'
        config.data.tokenizer.size = 500
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 600
        config.train.num_lanes = 8
        config.train.segment_length = 64
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        config.checkpoint.every = 200
        choice.change(
            span=1024,
            block=64,
            ramp=32,
            xl=256,
            compressed=512,
            weights=dict(expire_span=1e-4, adaptive_span=1e-5),
            changes=dict(num_sizes=5),
        )

    return variant(config, arg, tiny=tiny, **choice.variants())
