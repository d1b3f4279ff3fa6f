r"""GPT-Neo with Infini-attention on TinyStories (Kesküll, 2024, Secs. 4-5).

python -m longmem_jax.main --config=configs/tinystories_gpt_neo.py --config.data.path=STORIES \
    --workdir=DIR
2 layers, about 9.4 million parameters, one epoch. STORIES has train.jsonl, validation.jsonl and
test.jsonl with a story as `text` per line. `:segment=32` (64, 128, 256, 512; the thesis pre-trains with
a memory at 64 and 256) is the length of segments, 512 tokens of a story per step in any case.
`:memory=local` is the vanilla model with a context of a segment. `:memory=local,segment=512` is the
base of fine-tuning, and `:segment=64,from=BASE_WORKDIR` fine-tunes it with a memory, for another epoch.
Published BLiMP / SuperGLUE: vanilla .604/.478 (32), .595/.512 (64), .587/.478 (128), .611/.540 (256),
.561/.537 (512); with a memory from the start .580/.474 (64), .618/.533 (256); fine-tuned .572/.476,
.558/.470, .574/.528, .566/.549. Betas by layer and head: `python -m experiments.analysis.gates
--workdir=DIR --logit`. `:tiny` is for two cores and needs no file: the library writes
stories, which are ours and no TinyStories; `python -m experiments.infini_attention.stories` trains all
rows with it.

Not the paper's: `d_model` and `head_dim`; the thesis has 516 and so 129 per head, which rotary
positions cannot pair. `attention`: GPT-Neo's second layer sees 256 tokens only, which matters in
segments of 512 alone; here it sees them all. `num_steps` are those of stories padded to 512 tokens;
here stories follow each other without padding, so this is more than an epoch. `num_lanes`,
`accumulate_steps` and `segments_per_step` make its 256 stories per update, and `gradients`, which the
released code stops, flow through the memory as in the paper on Infini-attention. `clip_norm`, `b1`,
`b2` and `weight_decay` are the released trainer's.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import one_of, variant

STORY = 512  # tokens
SEGMENTS = ('32', '64', '128', '256', '512')


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=2, width=512, heads=4, feed_forward=1024)
    model.vocab_size = 10_000
    model.dense.activation, model.dense.bias = 'gelu', True
    model.attention_bias, model.scale_scores = 'out', False
    model.scale_embedding = model.output_bias = False
    model.init_std = 0.02
    memories = dict(
        infini=given(
            position='rotary',
            rotate_memory=True,
            gate_init=0.0,
            gate_std=1.0,
            skip_gate_when_empty=False,
            groups=(),
        ),
        local=given(position='rotary'),
    )

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 10_000
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.optimizer.accumulate_steps = 16
    config.train.num_steps = 8280 * 16
    config.train.num_lanes = 16
    config.train.segment_length = 64
    config.train.segments_per_step = STORY // 64
    config.train.log_every = 100
    config.train.evaluate_every = 8000
    config.evaluate.num_lanes = 16

    def tiny(config):
        """2 layers of 64, two minutes on a core; what it has to learn soonest is to copy.

        So heads are wider, scores are scaled, and the rate is high: with initial kernels of this width,
        scores that are not scaled would begin with a standard deviation of 4.
        """
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=3000, lanes=2, segment=32)
        model.vocab_size = config.data.tokenizer.size = 512
        model.scale_scores = True
        config.optimizer.name, config.optimizer.accumulate_steps = 'adamw', 1
        config.optimizer.learning_rate, config.optimizer.b2 = 5e-3, 0.99
        config.optimizer.schedule = 'linear'
        config.train.segments_per_step = STORY // 32
        config.data.source = 'stories'
        config.data.task = dict(documents=10_000, eval_documents=200, episodes=(1, 18))
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def segment(config, value):
        """Another length of segments, with as many tokens of a story per step."""
        train, length = config.train, int(one_of('segment', value, SEGMENTS))
        tokens = train.segment_length * train.segments_per_step
        train.segment_length, train.segments_per_step = length, max(tokens // length, 1)

    def start(config, workdir):
        """Fine-tunes another run, the base, for as many steps."""
        config.train.start_from = workdir

    begins: dict[str, Any] = {'from': start}
    return variant(
        config,
        arg,
        memory='infini',
        memories=memories,
        tiny=tiny,
        segment=segment,
        **begins,
    )
