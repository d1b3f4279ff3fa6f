"""RULER (Hsieh et al., 2024): needles, chains of variables, counts and questions in texts of any length.

python -m longmem_jax.main --config=configs/ruler.py:task=vt,length=4096 --workdir=DIR
`:task=` is one of niah_single_1 to 3, niah_multikey_1 to 3, niah_multivalue, niah_multiquery, vt, cwe,
fwe, qa_1, qa_2; `:memory=` any memory of the library. The test split is that of the released generator
for `config.data.seed` and the tokenizer (here learned from samples;
`--config.data.tokenizer.kind=tokenizers` and `--config.data.tokenizer.path=FOLDER` name that of a
model). Tasks with words need `pip install -e '.[ruler]'`. Those with essays (niah_single_2,
niah_single_3, niah_multikey_1, niah_multivalue, niah_multiquery) and questions need `:path=FILE`: a
text, and the JSON of SQuAD or HotpotQA. `:tiny` has 2 layers of 64 and vt at 320 and 448 tokens without
a worked example, for two cores.

Not the paper's: it tests large language models and trains none. Small models learn little of these
tasks from scratch; `--config.data.task.lengths='(512, 1024, 4096)'` trains at several lengths. The score
`exact_match` is the share of the parts of an answer that are right, as in the paper, but a model that
answers wrongly is told the right part before it goes on. `longmem_jax.hosts.commands.lm_eval_files`
writes the same samples for lm-eval, where a model writes freely and is scored as in the paper.
A step has 4,096 tokens per lane, as many as a document: where a question and what it asks for stand in
two steps, no gradient tells the memory to keep it. For a longer `:length=`, raise
`train.segments_per_step`, or train at shorter lengths too.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import one_of, variant, whole_number
from longmem_jax.data.sets.ruler.source import NAMES


def get_config(arg=''):
    config = base()

    size(config, layers=6, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = config.data.tokenizer.size = 4096
    config.model.dtype, config.model.token_shift = 'bfloat16', 'last_four'
    config.data.source = 'ruler'
    config.data.tokenizer.kind = 'bpe'
    config.data.seed = 42  # of the released samples
    config.data.task = dict(
        name='vt',
        lengths=(4096,),
        documents=1_000_000,
        eval_documents=500,
        example=True,
    )
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 16
    config.train.segment_length = 256
    config.train.segments_per_step = 16  # the 4,096 tokens of a document
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=2048, memories=16_384)

    def tiny(config):
        """2 layers of 64; some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=1500, lanes=8, segment=64)
        config.train.segments_per_step = 7  # 448 tokens
        config.model.vocab_size = config.data.tokenizer.size = 512
        config.data.task.update(lengths=(320, 448), eval_documents=48, example=False)
        config.optimizer.learning_rate = 5e-3
        config.optimizer.b2, config.optimizer.warmup_steps = 0.99, 100
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        scale.update(reach=256, memories=512, basis=64, samples=64, widths=(0.02, 0.05), slots=16)

    def task(config, name):
        """One of the 13 tasks."""
        config.data.task.name = one_of('task', name, NAMES)

    def length(config, value):
        """Tokens of prompt and answer."""
        config.data.task.lengths = (whole_number('length', value),)

    def path(config, file):
        """The essays, questions or words that a task needs."""
        config.data.path = file

    return variant(
        config,
        arg,
        memory='memorizing',
        scale=scale,
        tiny=tiny,
        task=task,
        length=length,
        path=path,
    )
