"""Transformer-XL with 20 memory tokens on WikiText-103 (Burtsev et al., 2020), and its recurrent form.

python -m longmem_jax.main --config=configs/mem_transformer_wikitext103.py \
    --config.data.path=wikitext-103 --workdir=DIR
16 layers of 410, segments of 150 with a cache of 150, 20 memory tokens before every segment.
`:recurrent` is the recurrent memory transformer (Bulatov et al., 2022): 10 tokens before and behind
every segment, carried on, no cache, gradients through 4 segments; `:tokens=25` for another number.
`:tiny` is for two cores.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    stack(model, 16, 'memory_tokens')
    model.vocab_size = 267_744
    model.d_model = model.d_embed = 410
    model.num_heads, model.head_dim = 10, 41
    model.d_feed_forward = 2100
    model.memory_tokens = dict(
        num_tokens=20,
        at_end=False,
        carry=False,
        gradients=True,
        read_cache=False,
        look_ahead='nearest',  # 'released': as the authors' shift of relative positions has it
        memory_length=150,
        same_length=False,
        clamp_length=0,
        position='transformer_xl',
    )
    model.pre_norm = model.final_norm = False
    model.cutoffs = (20_000, 40_000, 200_000)
    model.tie_projections = (False, True, True, True)
    model.dropout = 0.1
    model.dtype = 'bfloat16'

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 64

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.clip_norm = 0.25

    config.train.num_steps = 200_000
    config.train.num_lanes = 64
    config.train.segment_length = 150
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 150
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.generate.sample_length = 100
    config.checkpoint.every = 4000

    def recurrent(config):
        """Tokens are carried from segment to segment; no cache."""
        fields = model.memory_tokens
        fields.num_tokens = min(fields.num_tokens, 10)
        fields.at_end = fields.carry = True
        fields.memory_length = 0
        config.train.segments_per_step = 4

    def tokens(config, number):
        model.memory_tokens.num_tokens = whole_number('tokens', number)

    return variant(config, arg, tiny=tiny, recurrent=recurrent, tokens=tokens)


def tiny(config):
    """4 layers of 128, 8 memory tokens, some minutes on two cores."""
    model = config.model
    stack(model, 4, 'memory_tokens')
    model.vocab_size = 20_480
    model.d_model = model.d_embed = 128
    model.num_heads, model.head_dim = 4, 32
    model.d_feed_forward = 512
    model.memory_tokens.num_tokens = 8
    model.memory_tokens.memory_length = min(model.memory_tokens.memory_length, 64)
    model.pre_norm = model.final_norm = True
    model.cutoffs = (2000, 8000)
    model.div_val = 2
    model.tie_projections = (False, True, True)
    model.dtype = 'float32'
    config.data.pieces = 16
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 500 // config.train.segments_per_step
    config.train.num_lanes = 16
    config.train.segment_length = 64
    config.train.log_every = 20
    config.train.evaluate_every = 100
    config.evaluate.segment_length = 64
    config.evaluate.num_lanes = 1
    config.evaluate.max_segments = 0
    config.checkpoint.every = 100
