"""BABILong (Kuratov et al., 2024): bAbI's facts among sentences of novels, qa1 to qa5, at any length.

python -m longmem_jax.main --config=configs/babilong.py:task=qa1,length=4096 --workdir=DIR
`--config.data.path=FOLDER` has the novels, such as PG-19's; without it the noise is the docstrings of
Python's standard library, and scores are not comparable with published ones. `:memory=` is any memory of
the library. `--config.data.task.lengths='(4096, 10000000)'` with `--mode=evaluate` tests other lengths:
documents are streamed. `--mode=floors` scores rules that read the facts by their forms, in windows and
without them; models get no such parser. `:tiny` has up to 128 tokens, for two cores.

The benchmark's values are `prompt` (tokens of a length that it keeps for instructions) and the rules for
facts and sentences. It has no model: sizes and training are ours. All attention sees the same channels
of the last four tokens (`token_shift`), since models of this size then learn to look up sooner. A step
has a fifth more tokens per lane than the longest document: no gradient leads from a question back into
an earlier step.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import one_of, variant, whole_number

TASKS = ('qa1', 'qa2', 'qa3', 'qa4', 'qa5')


def get_config(arg=''):
    config = base()

    size(config, layers=8, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = 8192
    config.model.dtype, config.model.token_shift = 'bfloat16', 'last_four'
    config.data.source = 'babilong'
    config.data.tokenizer = dict(kind='bpe', path='', size=8192)
    config.data.task = dict(
        name='qa1',
        documents=10_000_000,
        eval_documents=1000,
        lengths=(512, 1024, 2048, 4096),
        prompt=300,
    )
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 16
    config.train.segment_length = 512
    config.train.segments_per_step = 10  # 5,120 tokens: a longest document is mostly in one step
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=4096, memories=65_536)

    def tiny(config):
        """2 layers of 64, some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=1500, lanes=12, segment=32)
        config.model.vocab_size = config.data.tokenizer.size = 512
        config.data.task.update(eval_documents=192, lengths=(0, 64, 128), prompt=0)
        config.optimizer.learning_rate = 3e-3
        config.train.remat = False
        config.train.segments_per_step = 5  # 160 tokens
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 0
        scale.update(reach=256, memories=2048, basis=64, samples=64, widths=(0.02, 0.05), slots=16)

    def task(config, name):
        """One of the five tasks."""
        config.data.task.name = one_of('task', name, TASKS)

    def length(config, value):
        """One length, for training and evaluation."""
        config.data.task.lengths = (whole_number('length', value),)

    return variant(config, arg, memory='infini', scale=scale, tiny=tiny, task=task, length=length)
