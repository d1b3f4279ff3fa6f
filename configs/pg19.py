"""Transformer-XL on PG-19 at the size of the long-memory papers' baseline (Wu et al., 2022, Sec. 4.2).

python -m longmem_jax.main --config=configs/pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, segments of 512 tokens, a memory of 512, 2^17 tokens per update; the papers use a
vocabulary of 32,000 pieces, here learnt from the training split unless `data.tokenizer.path` names one.
Published with another vocabulary: perplexity 11.88 per token (Munkhdalai et al., 2024, Table 2).
`:tiny` reads bytes and trains in minutes on two cores.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model  # 184 M parameters
    stack(model, 12, 'transformer_xl')
    model.vocab_size = 32_128
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 8, 128
    model.d_feed_forward = 4096
    model.transformer_xl = transformer_xl(512)
    model.dropout = 0.05
    model.dtype = 'bfloat16'

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000

    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0

    config.train.num_steps = 500_000
    config.train.num_lanes = 256  # x 512 = 2^17 tokens
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000

    config.evaluate.segment_length = 512
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.checkpoint.every = 5000
    return variant(config, arg, tiny=tiny)


def tiny(config):
    """4 layers of 160 on bytes, some minutes on two cores."""
    model = config.model
    stack(model, 4, 'transformer_xl')
    model.vocab_size = 257
    model.d_model = model.d_embed = 160
    model.num_heads, model.head_dim = 4, 40
    model.d_feed_forward = 640
    model.transformer_xl.memory_length = 256
    model.dropout = 0.0
    model.dtype = 'float32'
    config.data.tokenizer = dict(kind='bytes', path='', size=0)
    config.optimizer.name = 'adam'
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 1000
    config.train.num_lanes = 16
    config.train.segment_length = 128
    config.train.log_every = 20
    config.train.evaluate_every = 200
    config.evaluate.segment_length = 128
    config.evaluate.num_lanes = 2
    config.evaluate.max_segments = 200
    config.evaluate.max_test_segments = 1000
    config.evaluate.model = dict(transformer_xl=transformer_xl(512, clamp_length=384))
    config.checkpoint.every = 200
