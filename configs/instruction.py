"""Instructions among distractor text (Sukhbaatar et al., 2021, Sec. 5.1), on generated text.

python -m longmem_jax.main --config=configs/instruction.py --workdir=DIR
6 layers of 512 with spans up to 16k. Published on another text (LIGHT): Compressive 71 %,
Adaptive-Span 64 %, Expire-Span 74 % of instructions executed:
`:memory=transformer_xl|adaptive_span|compressive`, all on the same backbone; `transformer_xl_dai`
is that of Dai et al. On average, 950 words lie between an instruction and its execution; `:tiny`
has 60, four times as many instructions, and learns from them alone, for two cores.

Not the paper's: the text, and what the paper does not give: `d_feed_forward` is four times the
width; `attention_dropout`, `clip_norm`, `num_lanes`, `segment_length`, `num_steps`, `initial_share`
and `pre_norm` are near those of the paper's other tasks; `max_span` 16,384 is seventeen times the
mean distance. `capacity`: the paper reserves nothing in advance; 4,096 memories per layer and lane
are more than twice the first spans. The lengths of the baselines are those of collision, but
`model.adaptive_span.max_span` is 2,048 with `memory=transformer_xl`; `model.adaptive_span.ramp`,
`model.adaptive_span.initial_share` and `train.loss_weights.adaptive_span` are those of
Adaptive-Span's own scripts.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs._span_comparison import compared, set_reach, task_model


def get_config(arg=''):
    config = base()

    task_model(config, vocab_size=256, heads=8, feed_forward=2048)  # 189 words
    memories = compared(
        block=256, span=16_384, ramp=64, xl=2048, compressed=8192, expire_loss=2e-6,
        adaptive_loss=5e-7,
    )  # fmt: skip

    config.data.source = 'instruction'
    config.data.task = dict(
        documents=20_000,
        eval_documents=256,
        locations=1000,
        num_characters=40,
        mean_gap=950.0,
        instruction_share=0.2,
        train_on_text=True,
    )
    config.optimizer.learning_rate = 7e-4
    config.optimizer.warmup_steps = 8000
    config.optimizer.clip_norm = 0.3
    config.train.num_lanes = 256
    config.evaluate.max_segments = 100

    def tiny(config):
        """2 layers of 96, some minutes on two cores."""
        size(config, layers=2, width=96, heads=4, feed_forward=256)
        two_cores(config, steps=2000, lanes=16, segment=64)
        config.data.task.update(
            documents=512, eval_documents=16, locations=100, num_characters=12, mean_gap=60.0
        )
        # Many instructions, and nothing else to learn: a small model sees few of them in some minutes.
        config.data.task.update(instruction_share=0.8, train_on_text=False)
        config.optimizer.warmup_steps = 100
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 50
        config.checkpoint.every = 1000
        memories.update(
            compared(
                block=64, span=512, ramp=64, xl=128, compressed=512,
                expire_loss=1e-6, adaptive_loss=1e-5, adaptive_share=0.5, num_sizes=4,
                initial_share=0.75,
            )
        )  # fmt: skip

    def span(config, value):
        """Another longest span."""
        set_reach(memories, whole_number('span', value))

    return variant(config, arg, memory='expire_span', memories=memories, tiny=tiny, span=span)
