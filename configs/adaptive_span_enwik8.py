"""Adaptive-Span on enwik8, 12 layers of 512, spans up to 8k (Sukhbaatar et al., 2019; released scripts).

python -m longmem_jax.main --config=configs/adaptive_span_enwik8.py --config.data.path=FILE --workdir=DIR
Its own recipe: Adagrad, with the gradient of every parameter clipped by itself. The comparison with
Expire-Span, with Adam, is `configs/expire_span_enwik8.py:memory=adaptive_span`. Published: 1.02
bits/byte (39 M parameters). `:large` is the model of 24 layers of 768 and 150k updates; published:
0.98, after 20k more at a tenth of the rate (`--config.train.num_steps=170000
--config.optimizer.learning_rate=7e-3`). `:tiny` is for two cores.

Not the paper's: `trim_memory`, off: the scripts also shorten the cache, which changes no result
unless a span grows by more than 64 tokens in a segment; here space is reserved in any case.
`num_heads` 8 is the Expire-Span paper's, for models of the same sizes.
"""

from typing import Any

from longmem_jax.config.base import size
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant
from longmem_jax.configs.expire_span_enwik8 import backbone, tiny_backbone


def get_config(arg=''):
    config = backbone()  # 39 M parameters
    model = config.model
    memories = dict(
        adaptive_span=given(
            max_span=8192, ramp=32, initial_share=0.0, loss_weights=dict(adaptive_span=5e-7)
        )
    )

    config.optimizer.name = 'adagrad'
    config.optimizer.learning_rate = 0.07
    config.optimizer.warmup_steps = 32_000
    config.optimizer.clip_norm = 0.03
    config.optimizer.clip_each = True
    config.data.pieces = 64  # one stream per lane
    config.train.num_steps = 600_000
    config.train.num_lanes = 64
    config.evaluate.num_lanes = 64

    def large(config):
        """24 layers of 768, for 150k updates."""
        size(config, layers=24, width=768, heads=8, feed_forward=4096)
        model.dropout = model.attention_dropout = 0.4
        config.train.num_steps = 150_000

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        tiny_backbone(config)
        config.optimizer.name, config.optimizer.learning_rate = 'adagrad', 0.03
        memories['adaptive_span'].fields.update(max_span=256)

    changes: dict[str, Any] = dict(large=large, tiny=tiny)
    return variant(config, arg, memory='adaptive_span', memories=memories, **changes)
