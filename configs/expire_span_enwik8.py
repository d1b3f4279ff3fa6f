"""Expire-Span on enwik8, 12 layers of 512, spans up to 16k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_enwik8.py --config.data.path=enwik8 --workdir=DIR
Published: 0.99 bits/byte (the last 10k of 110k updates at a tenth of the rate: run the first 100k,
then continue with `--config.train.num_steps=110000 --config.optimizer.learning_rate=7e-5`).
`:large` is the model of 24 layers and 208 M parameters with spans up to 32k; published: 0.95, and
0.02 more in validation without LayerDrop, `--config.model.layer_drop=0`. `:one_gpu` is the released
script for one GPU, 8 layers of 256 with spans up to 4k; nothing is published.
`:memory=transformer_xl|adaptive_span|compressive` are the paper's baselines, all on the same
backbone; `transformer_xl_dai` is that of Dai et al. `:tiny` is for two cores; `:small`, on Python's
standard library, is for several spans side by side (`:small,span=64`).

Not the paper's: `capacity`: the paper reserves nothing in advance; 4,096 memories per layer and
lane are more than twice the first spans and four times the mean that the paper reports on PG-19.
The paper does not say how far `memory=transformer_xl` reaches (`model.adaptive_span.max_span`
2,048) nor what `memory=compressive` is made of: `memory_length` 4,096 as they are,
`compressed_length` 1,024 groups of `rate` 4. `model.adaptive_span.ramp`,
`model.adaptive_span.initial_share` and `train.loss_weights.adaptive_span` are those of
Adaptive-Span's own scripts (`configs/adaptive_span_enwik8.py`). For `:large` the paper does not
give `num_heads`, `initial_share`, `shorten`, `num_lanes`, `segment_length`, `clip_norm`,
`pre_norm`: as in the small model. The script of `:one_gpu` has no baselines; their lengths are
1,024 and 4,096.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach


def backbone():
    """12 layers of 512 in segments of 512, as in the released scripts of both kinds of spans."""
    config = base()
    model = config.model  # 38 M parameters
    size(config, layers=12, width=512, heads=8, feed_forward=2048)
    model.pre_norm = model.final_norm = False
    model.scale_embedding = model.tie_weights = False
    model.init, model.embedding_std = 'torch', 1.0  # PyTorch's, as released
    model.dropout = model.attention_dropout = 0.3
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'
    config.optimizer.schedule = 'constant'
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.max_segments = 200
    return config


def tiny_backbone(config):
    """3 layers of 128, some minutes on two cores."""
    size(config, layers=3, width=128, heads=4, feed_forward=512)
    two_cores(config, steps=600, lanes=16, segment=64)
    config.optimizer.schedule = 'constant'
    config.data.pieces = 16
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 50
    config.evaluate.max_test_segments = 200


def get_config(arg=''):
    config = backbone()
    model = config.model
    reach: dict[str, Any] = dict(block=512, ramp=128, xl=2048, compressed=8192, adaptive_loss=5e-7)
    memories = compared(span=16_384, expire_loss=1e-6, shorten=True, **reach)

    config.optimizer.learning_rate = 7e-4
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.3
    config.data.pieces = 512  # one stream per lane
    config.train.num_steps = 100_000
    config.train.num_lanes = 512
    config.evaluate.num_lanes = 128

    def large(config):
        """24 layers of 768, Eq. 8, layer drop."""
        size(config, layers=24, width=768, heads=8, feed_forward=4096)  # heads: not in the paper
        model.dropout = model.attention_dropout = 0.5
        model.layer_drop = 0.2
        config.optimizer.learning_rate = 4e-4
        config.optimizer.warmup_steps = 16_000
        memories.update(
            compared(span=32_768, expire_loss=3e-7, shorten=True, pre_div=128.0, **reach)
        )

    def one_gpu(config):
        """8 layers of 256, spans up to 4k, Eq. 8: the released script that fits one GPU."""
        size(config, layers=8, width=256, heads=4, feed_forward=1024)
        model.dropout = model.attention_dropout = 0.0
        config.optimizer.learning_rate = 3e-4
        config.data.pieces = config.train.num_lanes = 64
        config.train.segment_length = 256
        memories.update(
            compared(
                block=256, span=4096, ramp=64, xl=1024, compressed=4096, expire_loss=1e-6,
                adaptive_loss=5e-7, pre_div=64.0,
            )
        )  # fmt: skip

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        tiny_backbone(config)
        model.pre_norm = model.final_norm = True
        memories.update(
            compared(
                block=64, span=1024, ramp=32, xl=256, compressed=512,
                expire_loss=1e-4, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=5, shorten=True,
            )
        )  # fmt: skip

    def small(config):
        """2 layers of 64 in segments of 32, two minutes on one core: for curves over spans."""
        tiny_backbone(config)
        size(config, layers=2, width=64, heads=4, feed_forward=256)
        model.pre_norm = model.final_norm = True
        model.token_shift = 'half'
        config.data.source = 'stdlib'
        config.optimizer.schedule, config.optimizer.learning_rate = 'cosine', 3e-3
        config.optimizer.clip_norm = 1.0
        config.train.num_steps, config.train.evaluate_every = 1000, 500
        config.train.segment_length = config.evaluate.segment_length = 32
        config.generate.sample_length = 0
        memories.update(
            compared(
                block=32, span=256, ramp=32, xl=128, compressed=256,
                expire_loss=1e-4, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=3,
                initial_share=0.5,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span of the memories, that of `memory=transformer_xl` too."""
        longest = whole_number('span', value)
        set_reach(memories, longest)
        memories['transformer_xl'].fields['max_span'] = longest

    return variant(
        config,
        arg,
        memory='expire_span',
        memories=memories,
        large=large,
        one_gpu=one_gpu,
        tiny=tiny,
        small=small,
        span=span,
    )
