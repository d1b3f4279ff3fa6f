"""Expire-Span on PG-19 by characters, spans up to 8k (Sukhbaatar et al., 2021, Sec. 5.2).

python -m longmem_jax.main --config=configs/expire_span_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 512; `:span=16384` is the paper's longer model, used with
`--config.train.loss_weights.expire_span=3e-7`. Published: 1.07 bits per character with every memory;
`:memory=transformer_xl|adaptive_span|compressive` are the baselines; `:tiny` is for two cores.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.span_comparison import compared
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=12, width=512, heads=8, feed_forward=2048)
    model.vocab_size = 3520  # 3,506 characters, rounded up to divide over devices
    model.pre_norm = model.final_norm = False
    model.scale_embedding = model.tie_weights = False
    model.dropout = model.attention_dropout = 0.2
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'
    memories = compared(
        block=512, span=8192, ramp=128, xl=2048, compressed=8192, expire_loss=1e-6,
        adaptive_loss=5e-7,
    )  # fmt: skip

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
                expire_loss=1e-4, adaptive_loss=1e-5, num_sizes=5,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span."""
        memories['expire_span'].fields['max_span'] = whole_number('span', value)
        memories['adaptive_span'].fields['max_span'] = whole_number('span', value)

    return variant(config, arg, memory='expire_span', memories=memories, tiny=tiny, span=span)
