"""Expire-Span on WikiText-103, words, spans up to 8k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_wikitext103.py --config.data.path=PATH
8 layers of 1,024 with adaptive embedding and softmax. Published: perplexity 19.6 (140 M
parameters). `:memory=transformer_xl|adaptive_span|compressive` are the baselines on the same
backbone, of which the paper draws the first (Fig. 10); `transformer_xl_dai` is that of Dai et al.
`:tiny` is for two cores.

What the paper does not list is "the same as the small enwik8 experiments": rate, warm-up, batch,
ramp, loss weight, random shortening.

Not the paper's: `capacity`: the paper reserves nothing in advance; 4,096 memories per layer and lane
are four times the first spans. `num_heads` 8 and `initial_share` are enwik8's; `cutoffs`, `div_val` and
`scale_embedding` those of Baevski and Auli's and Dai et al.'s models of this text. `init` and
`init_std`: kernels and tables begin with a deviation of d_model**-0.5, not with PyTorch's kernels and
N(0, 1) tables as in enwik8: here the tables are the output layer, too, and logits would begin 32 times
as large. The baselines' lengths are not given: `model.adaptive_span.max_span` 2,048 of
`memory=transformer_xl`; of `memory=compressive` `memory_length` 2,048 and `compressed_length` 512.
`model.adaptive_span.ramp`, `model.adaptive_span.initial_share` and `train.loss_weights.adaptive_span`
are those of Adaptive-Span's own scripts.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach


def get_config(arg=''):
    config = base()

    model = config.model  # 140 M parameters
    size(config, layers=8, width=1024, heads=8, feed_forward=4096)
    model.vocab_size = 267_744  # 267,735 words, rounded up to divide over devices
    model.cutoffs = (20_000, 40_000, 200_000)
    model.div_val = 4
    model.tie_projections = (False, True, True, True)
    model.pre_norm = model.final_norm = False
    model.dropout = model.attention_dropout = 0.3
    model.residual_dropout, model.embedding_dropout = 0.0, 0.2
    model.dtype = 'bfloat16'
    memories = compared(
        block=256, span=8192, ramp=128, xl=2048, compressed=4096, expire_loss=1e-6,
        adaptive_loss=5e-7, shorten=True,
    )  # fmt: skip

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 512
    config.optimizer.learning_rate = 7e-4
    config.optimizer.schedule = 'constant'
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.1
    config.train.num_steps = 300_000
    config.train.num_lanes = 512
    config.train.segment_length = 256
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        size(config, layers=3, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=400, lanes=8, segment=64)
        model.vocab_size = 8192
        model.cutoffs, model.div_val, model.tie_projections = (2000,), 4, (False, True)
        model.dropout = model.attention_dropout = model.embedding_dropout = 0.1
        model.pre_norm = model.final_norm = True
        config.data.tokenizer.size = 8000
        config.data.pieces = 1
        config.optimizer.schedule = 'constant'
        config.train.evaluate_every = 200
        config.evaluate.num_lanes = 1
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        memories.update(
            compared(
                block=64, span=1024, ramp=32, xl=256, compressed=512,
                expire_loss=1e-4, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=5,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span."""
        set_reach(memories, whole_number('span', value))

    return variant(config, arg, memory='expire_span', memories=memories, tiny=tiny, span=span)
