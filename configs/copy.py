"""Copy over a gap of up to 16k tokens (Sukhbaatar et al., 2021, Sec. 5.1).

python -m longmem_jax.main --config=configs/copy.py --workdir=DIR
`:span=131072` is the paper's longest. Published accuracy: Transformer-XL with 2k 26.7 %,
Expire-Span with 16k 29.4 %, with 128k 52.1 %, all on gaps of up to 128k: `:gap=131072`.
`:memory=transformer_xl|adaptive_span|compressive` are baselines on the same backbone, of which the
paper has the first; `transformer_xl_dai` is that of Dai et al. `:tiny` has gaps of up to 192
tokens, for two cores. The data is generated.

Not the paper's: it gives nothing but the spans. Model, optimizer and memories are those of
collision: `num_layers`, `d_model`, `num_heads`, `d_feed_forward`, `attention_dropout`, `pre_norm`,
`learning_rate`, `warmup_steps`, `clip_norm`, `num_lanes`, `segment_length`, `num_steps`, `ramp`,
`initial_share` and `train.loss_weights.expire_span`. `capacity`: the paper reserves nothing in
advance; 4,096 memories per layer and lane, for a few A's. `max_count` 4: with four answers,
guessing is as good as the published 26.7 %.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach, task_model


def get_config(arg=''):
    config = base()

    task_model(config, vocab_size=16)  # 5 words
    memories = compared(
        block=256, span=16_384, ramp=128, xl=2048, compressed=8192, expire_loss=2e-6,
        adaptive_loss=5e-7, initial_share=0.01,
    )  # fmt: skip

    config.data.source = 'copy'
    config.data.task = dict(documents=1_000_000, eval_documents=512, span=16_384, max_count=4)
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 0.1
    config.train.num_lanes = 512
    config.generate.sample_length = 0

    def tiny(config):
        """2 layers of 64, some minutes on two cores."""
        size(config, layers=2, width=64, heads=4, feed_forward=128)
        two_cores(config, steps=1200, lanes=32, segment=32)
        config.data.task.update(span=192, documents=100_000)
        config.optimizer.warmup_steps = 100
        config.optimizer.clip_norm = 0.5
        config.train.log_every = 50
        config.evaluate.num_lanes = 16
        config.checkpoint.every = 600
        memories.update(
            compared(
                block=32, span=256, ramp=64, xl=64, compressed=256,
                expire_loss=1e-5, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=4,
                initial_share=0.5,
            )
        )  # fmt: skip

    def gap(config, value):
        """Another longest gap."""
        config.data.task.span = whole_number('gap', value)

    def span(config, value):
        """Another longest span of the memories."""
        set_reach(memories, whole_number('span', value))

    return variant(
        config, arg, memory='expire_span', memories=memories, tiny=tiny, gap=gap, span=span
    )
