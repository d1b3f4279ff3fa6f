"""Instructions among distractor text (Sukhbaatar et al., 2021, Sec. 5.1), on generated text.

python -m longmem_jax.main --config=configs/instruction.py --workdir=DIR
6 layers of 512 with spans up to 16k. Published on another text (LIGHT): Compressive 71 %, Adaptive-
Span 64 %, Expire-Span 74 % of instructions executed:
`:memory=transformer_xl|adaptive_span|compressive`. A mean of 950 words lies between instruction and
execution. `:tiny` has a mean of 60, for two cores.
"""

from longmem_jax.config.base import base
from longmem_jax.config.recipes import Comparison
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model
    model.vocab_size = 256  # 189 words
    model.num_layers = 6
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.scale_embedding = model.tie_weights = False
    model.dropout = model.attention_dropout = 0.1
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'

    config.data.source = 'instruction'
    config.data.task = dict(
        documents=20_000,
        eval_documents=256,
        locations=1000,
        num_characters=40,
        mean_gap=950.0,
        instruction_share=0.2,
        train_on_text=True,
    )

    config.optimizer.learning_rate = 7e-4
    config.optimizer.schedule = 'constant'
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.3

    config.train.num_steps = 100_000
    config.train.num_lanes = 256
    config.train.segment_length = 256
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 256
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 100
    config.checkpoint.every = 4000

    choice = Comparison(
        config,
        block=256,
        span=16_384,
        ramp=64,
        xl=2048,
        compressed=8192,
        weights=dict(expire_span=2e-6, adaptive_span=5e-7),
    )

    def tiny(config):
        """2 layers of 96, some minutes on two cores."""
        model.num_layers = 2
        model.d_model = model.d_embed = 96
        model.num_heads, model.head_dim = 4, 24
        model.d_feed_forward = 256
        model.dropout = model.attention_dropout = 0.0
        model.dtype = 'float32'
        task = config.data.task
        task.documents, task.eval_documents, task.locations = 512, 16, 100
        task.num_characters, task.mean_gap = 12, 60.0
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 100
        config.train.num_steps = 2000
        config.train.num_lanes = 16
        config.train.segment_length = 64
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 50
        config.checkpoint.every = 1000
        choice.change(
            span=512,
            block=64,
            ramp=32,
            xl=128,
            compressed=512,
            weights=dict(expire_span=1e-4, adaptive_span=1e-5),
            changes=dict(num_sizes=4),
        )

    return variant(config, arg, tiny=tiny, **choice.variants())
