"""Memorizing Transformer on PG-19 (Wu et al., 2022, Sec. 4).

python -m longmem_jax.main --config=configs/memorizing_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, segments of 512 and as long an XL cache, 8,192 memories in layer 9, k = 32.
`:size=65536` and `:size=262144` are the larger memories, `:size=0` is the model without one; a model
trained with one size goes on with another (`:size=262144,from=WORKDIR`). Memories are bfloat16,
8.6, 69 and 275 GB for all 256 lanes together, spread over the devices; `config.mesh.memory` spreads
the rows of a lane as well. `:tiny` reads bytes on two cores. Published with another vocabulary,
perplexity per token: 11.93 (8k), 11.62 (65k), 12.34 without.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.recipes import with_memory
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    stack(model, 12, 'normalized_xl')
    model.vocab_size = 32_128
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 8, 128
    model.d_feed_forward = 4096
    model.norm = 'rmsnorm'
    model.dropout = 0.05
    model.dtype = 'bfloat16'
    chosen = dict(layer=9, length=512, size=None, default=8192, dtype='bfloat16', scale=1.0)

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000

    config.optimizer.name = 'adafactor'
    # 1 / sqrt(step) after 1,000 steps of warm-up: at most 0.0316.
    config.optimizer.learning_rate = 1000**-0.5
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

    def change(**changes):
        chosen.update(changes)
        number = chosen['default'] if chosen['size'] is None else chosen['size']
        with_memory(model, chosen['layer'], chosen['length'], number, cache_dtype=chosen['dtype'])

    def size(config, value):
        if not value.isdigit():
            raise UsageError(f'size={value}: a whole number of memories is needed, 0 for none.')
        change(size=int(value))

    def start_from(config, workdir):
        config.train.start_from = workdir

    def tiny(config):
        """4 layers of 128 on bytes, a memory of 2,048 in the third; some minutes on two cores."""
        stack(model, 4, 'normalized_xl')
        model.vocab_size = 257
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dropout = 0.0
        model.dtype = 'float32'
        config.data.tokenizer = dict(kind='bytes', path='', size=0)
        config.optimizer.name = 'adam'
        config.optimizer.learning_rate = 2e-3
        config.optimizer.schedule = 'cosine'
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 600
        config.train.num_lanes = 8
        config.train.segment_length = 128
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 128
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        config.checkpoint.every = 200
        # Adam would take thousands of steps from a scale of 1 to one that tells keys apart.
        change(layer=3, length=128, dtype='float32', default=2048, scale=8.0)

    change()
    return variant(config, arg, tiny=tiny, size=size, **{'from': start_from})
