"""The model whose speed is compared: 4 layers of 256, segment 128, 4 lanes, float32.

python -m experiments.speed.bench --config=configs/benchmark.py
Transformer-XL with a memory of 1,024, or any other memory: `:memory=adaptive_span`, `compressive` and
`expire_span` have spans of 1,024 (`--fill=12` fills them first). `:alive=N` is Expire-Span with N
memories alive in a capacity of 4,096 (`--fill=40`). `:fixed` is Adaptive-Span that always sees its
whole span. `:memorizing=N` keeps N memories in the third layer (0 = none; `--fill=70` fills 8,192).
"""

from typing import Any

from longmem_jax.config.base import base, size
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number

CAPACITY, RAMP = 4096, 16
MEMORY = 'transformer_xl'  # the memory, unless `:memory=` or a variant names another


def get_config(arg=''):
    config = base()

    size(config, layers=4, width=256, heads=4, feed_forward=1024)
    config.model.vocab_size = 256
    config.model.pre_norm = config.model.final_norm = False
    config.data.source = 'stdlib'  # not read by the benchmark
    config.train.num_lanes = config.evaluate.num_lanes = 4  # 4 per device
    memories = dict(
        transformer_xl=given(memory_length=1024),
        adaptive_span=given(max_span=1024, ramp=32, initial_share=0.4),
        compressive=given('compressive_sliding', memory_length=512, compressed_length=128, rate=4),
        expire_span=given(max_span=1024, ramp=128, position_length=128),
        memorizing=given(memory_length=128, memory_size=8192, block_size=8192, scale_init=1.0),
    )

    def tiny(config):
        """A memory of 64 for Transformer-XL."""
        memories['transformer_xl'].fields.update(memory_length=64)

    def alive(config, value):
        """Expire-Span whose memories live for N tokens, including the ramp."""
        longest = CAPACITY - RAMP
        share = min(max(whole_number('alive', value) - RAMP, 1) / longest, 0.9999)
        memories[MEMORY] = given(
            'expire_span',
            max_span=longest,
            ramp=RAMP,
            position_length=64,
            capacity=CAPACITY,
            initial_share=share,
            num_sizes=7,
            loss_weights=dict(expire_span=0.0),
        )

    def fixed(config):
        """A fixed span, like the Transformer-XL of the Expire-Span paper."""
        memories[MEMORY] = given(
            'adaptive_span', max_span=1024, ramp=32, per='none', num_sizes=1, loss_weights={}
        )

    def memorizing(config, value):
        """A memory of N in the third layer, an XL cache of 128 in all layers; 0 = no memory."""
        local: dict[str, Any] = dict(memory_length=128, scale_init=1.0)
        memories[MEMORY] = given('normalized_xl', **local)
        if value != '0':
            entries = whole_number('memorizing', value)
            memories[MEMORY] = given('memorizing', memory_size=entries, block_size=8192, **local)

    return variant(
        config,
        arg,
        memory=MEMORY,
        memories=memories,
        tiny=tiny,
        alive=alive,
        fixed=fixed,
        memorizing=memorizing,
    )
