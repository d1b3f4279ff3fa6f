"""The shape that speeds are compared at: 4 layers of 256, segment 128, 4 lanes, float32.

python -m longmem_jax.commands.bench --config=configs/benchmark.py
Transformer-XL with a memory of 1,024, or `:memory=adaptive_span|compressive|expire_span` with spans of
1,024 (`--fill=12` fills them first). `:alive=N` is Expire-Span with N memories alive in a capacity of
4,096 (`--fill=40`). `:fixed` is Adaptive-Span that sees all of its span. `:infini` is Infini-attention
with the delta rule; `:memorizing=N` keeps N memories in the third layer (0 = none; `--fill=70` fills
8,192).
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.recipes import (
    Comparison,
    adaptive_span,
    expire_span,
    infini,
    with_memory,
)
from longmem_jax.config.variants import variant, whole_number

CAPACITY, RAMP = 4096, 16


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
    return variant(
        config,
        arg,
        tiny=tiny,
        memory=memory,
        alive=alive,
        fixed=fixed,
        infini=only_infini,
        memorizing=memorizing,
    )


def tiny(config):
    """A sixteenth of Transformer-XL's memory."""
    if 'transformer_xl' in config.model:
        config.model.transformer_xl.memory_length = 64


def memory(config, name):
    """Another memory of the same reach; spans begin at 0.4 of it, those of Expire-Span at 0.1."""
    weights = dict(expire_span=1e-6, adaptive_span=1e-6)
    choice = Comparison(
        config, block=128, span=1024, ramp=128, xl=1024, compressed=1024, weights=weights
    )
    choice.change(memory=name)
    if name == 'adaptive_span':
        config.model.adaptive_span = adaptive_span(1024, 32, initial_share=0.4)


def fixed(config):
    """The fixed span of the Expire-Span paper's Transformer-XL."""
    stack(config.model, 4, 'adaptive_span')
    config.model.adaptive_span = adaptive_span(1024, 32, per='none', num_sizes=1)


def alive(config, value):
    """Expire-Span whose memories live for N tokens, the ramp included."""
    number = whole_number('alive', value)
    longest = CAPACITY - RAMP
    stack(config.model, 4, 'expire_span')
    config.model.expire_span = expire_span(
        longest,
        RAMP,
        64,
        capacity=CAPACITY,
        initial_share=min(max(number - RAMP, 1) / longest, 0.9999),
        num_sizes=7,
    )
    config.train.loss_weights.expire_span = 0.0


def only_infini(config):
    """Infini-attention in every layer."""
    del config.model.transformer_xl
    stack(config.model, 4, 'infini')
    config.model.infini = infini()


def memorizing(config, value):
    """A memory of N in the third layer, an XL cache of 128 in all."""
    number = whole_number('memorizing', value) if value != '0' else 0
    del config.model.transformer_xl
    with_memory(config.model, 3, 128, number)
