"""Expire-Span on PG-19 by characters, spans up to 8k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 512; `:span=16384` is the paper's longer model, whose loss weighs 3e-7. Published: 1.07
bits per character with every memory, a mean of 860 memories with spans up to 16k, 2,440 with
Adaptive-Span. `:memory=transformer_xl|adaptive_span|compressive` are the paper's baselines, with a span
of 2k, and twice 16k; `transformer_xl_dai` is that of Dai et al. `:tiny` is for two cores.

Not the paper's: `capacity`: the paper reserves nothing in advance; 4,096 memories per layer and lane
are four times what is alive. `learning_rate`, `num_lanes`, `num_steps`, `initial_share`,
`embedding_std`, `pre_div` and `pre_norm` are not given: as on enwik8. Neither is `shorten`, which is
off: the paper names it where there is too little text for the memory, and PG-19 has the most.
`model.adaptive_span.ramp`, `model.adaptive_span.initial_share` and `train.loss_weights.adaptive_span`
are those of Adaptive-Span's own scripts; `memory_length` 8,192, `compressed_length` 2,048 and `rate` 4
are how the Compressive Transformer gets its 16k.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=12, width=512, heads=8, feed_forward=2048)
    model.vocab_size = 3520  # 3,506 characters, rounded up to divide over devices
    model.pre_norm = model.final_norm = False
    model.scale_embedding = model.tie_weights = False
    model.init, model.embedding_std = 'glorot_uniform', 1.0
    model.dropout = model.attention_dropout = 0.2
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'
    memories = compared(
        block=512, span=8192, ramp=128, xl=2048, compressed=16_384, expire_loss=1e-6,
        adaptive_loss=5e-7,
    )  # fmt: skip
    memories['adaptive_span'].fields['max_span'] = 16_384

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
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        size(config, layers=3, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=64)
        model.vocab_size = 512
        model.pre_norm = model.final_norm = True
        config.data.tokenizer.size = 500
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        memories.update(
            compared(
                block=64, span=1024, ramp=32, xl=256, compressed=512,
                expire_loss=1e-4, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=5,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span; from 16,384 with the loss weight of the paper's longer model."""
        longest = whole_number('span', value)
        set_reach(memories, longest)
        if longest >= 16_384:
            memories['expire_span'].loss_weights = dict(expire_span=3e-7)

    return variant(config, arg, memory='expire_span', memories=memories, tiny=tiny, span=span)
