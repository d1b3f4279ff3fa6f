"""Object collision, spans up to 16k (Sukhbaatar et al., 2021, Sec. 5.1; released settings).

python -m longmem_jax.main --config=configs/collision.py --workdir=DIR
`:span=32768` and `:span=65536` are the paper's longer models (the last with random shortening).
Published error, 1 - accuracy: 52.2 %, 36.7 %, 26.7 %; Transformer-XL 1k 73.3 %, Compressive 8k 63.8
%, Adaptive-Span 16k 59.8 %: `:memory=transformer_xl|compressive|adaptive_span`, all on the same
backbone; `transformer_xl_dai` is that of Dai et al. `:easy` and `:easy_three` ask for the last
collision and for the last three; published with spans of 1k, 2k, 4k: `:easy,span=1024`. `:tiny` is
a small world for two cores. The data is generated.

Not the paper's: `capacity`: the paper reserves nothing in advance; 4,096 memories per layer and
lane are many times the first spans. The Compressive Transformer's 8k are `memory_length` 4,096 as
they are and `compressed_length` 1,024 groups of `rate` 4, a choice of ours.
`model.adaptive_span.ramp`, `model.adaptive_span.initial_share` and
`train.loss_weights.adaptive_span` are those of Adaptive-Span's own scripts. With spans so short
that 1 % of them is no memory, `initial_share` is three segments.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach, task_model


def get_config(arg=''):
    config = base()

    task_model(config, vocab_size=64)  # 44 words; `:easy_three` has 64 answers
    memories = compared(
        block=256, span=16_384, ramp=128, xl=1024, compressed=8192, expire_loss=2e-6,
        adaptive_loss=5e-7, initial_share=0.01,
    )  # fmt: skip

    config.data.source = 'collision'
    config.data.task = dict(
        documents=512,  # one per lane; 50 M steps, 400 M tokens in all
        steps=97_656,
        eval_documents=64,
        eval_steps=78_125,
        question='colours',
        easy_question='present',  # as in the released code, and so in the paper's numbers
        easy_share=0.4,
        size=16,
        num_colours=5,
        speed=0.5,
        recolour=0.05,
    )
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 0.1
    config.train.num_lanes = 512
    config.evaluate.max_segments = 500
    config.generate.sample_length = 0

    def tiny(config):
        """2 layers of 64, a world of 4 x 4 cells and one colour, some minutes on two cores."""
        size(config, layers=2, width=64, heads=4, feed_forward=128)
        two_cores(config, steps=1000, lanes=32, segment=64)
        config.data.task.update(
            documents=32, steps=20_000, eval_documents=16, eval_steps=1000, size=4, num_colours=1
        )
        config.optimizer.learning_rate = 1e-3
        config.optimizer.warmup_steps = 100
        config.optimizer.clip_norm = 0.5
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 32
        memories.update(
            compared(
                block=64, span=512, ramp=64, xl=64, compressed=512,
                expire_loss=1e-6, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=4,
                initial_share=0.75,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span; from 65,536 with random shortening."""
        longest = whole_number('span', value)
        set_reach(memories, longest)
        memories['expire_span'].fields['shorten'] = longest >= 65_536

    def easy(config):
        """Asks for the last collision."""
        config.data.task.question = 'last'

    def easy_three(config):
        """Asks for the last three collisions."""
        config.data.task.question = 'last_three'

    return variant(
        config,
        arg,
        memory='expire_span',
        memories=memories,
        tiny=tiny,
        span=span,
        easy=easy,
        easy_three=easy_three,
    )
