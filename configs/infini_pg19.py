"""Infini-attention on PG-19 (Munkhdalai et al., 2024, Sec. 3.1).

python -m longmem_jax.main --config=configs/infini_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, sequences of 32,768 tokens in 16 segments of 2,048 with gradients through the
memories, delta rule; `:rule=linear` is the linear rule. `:memory=transformer_xl` is the baseline;
`:tiny` reads bytes, for two cores. Published with another vocabulary: perplexity 9.67 per token, linear
9.65. `--config.model.infini.gate_std=1.0` draws the first gates as the thesis on Infini-attention does.

Not the paper's: `groups`, gates have an optimizer of their own (Adam, 0.01, no decay): at the rate of
the model they hardly move. The paper does not give `d_model` (we take heads x head width),
`vocab_size`, the local `position` scheme, `gate_init` and `gate_std` (all gates begin at one half),
`dropout`, `clip_norm`, `num_steps`, or the baseline's `memory_length` (we take a segment).
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    size(config, layers=12, width=1024, heads=8, feed_forward=4096)
    config.model.vocab_size = 32_128
    config.model.dropout = 0.0
    config.model.dtype = 'bfloat16'
    memories = dict(
        infini=given(skip_gate_when_empty=False, groups=(('attention/gate$', 1.0, False, 'adam'),)),
        transformer_xl=given(memory_length=2048),
    )

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000
    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 100_000
    config.train.num_lanes = 64
    config.train.segment_length = 2048
    config.train.segments_per_step = 16
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2000
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 16

    def tiny(config):
        """4 layers of 128 on bytes, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=64)
        read_bytes(config)
        memories['infini'].groups = None  # the recipe's: the same optimizer, five times the rate
        memories['transformer_xl'].fields.update(memory_length=64)
        config.train.segments_per_step = 4
        config.train.remat = False
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 200
        config.evaluate.max_test_segments = 1000

    def rule(config, name):
        memories['infini'].fields.update(rule=name)

    return variant(config, arg, memory='infini', memories=memories, tiny=tiny, rule=rule)
