"""Recall at a chosen distance: passkey, needles, associative recall, copy.

python -m longmem_jax.main --config=configs/recall.py:kind=needles,memory=infini --workdir=DIR
and the same with `--mode=evaluate` for accuracy by distance: a table, `recall.json` and `recall.png`;
`--config.data.task.distances='(4096, 1000000)'` sets other distances. `:memory=` is any memory of the
library, such as transformer_xl, infini, memorizing, recurrent, memformer; `:tiny` has distances of 16
to 256, for two cores; models that carry vectors from segment to segment then have a lower learning rate
and gradients through eight segments, with which they learn sooner. There are no published numbers:
the papers test large models. The data is generated.
"""

from typing import Any

from longmem_jax.config import reach
from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import one_of, variant
from longmem_jax.data.tasks.recall import KINDS


def get_config(arg=''):
    config = base()

    size(config, layers=6, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = 128
    config.model.dtype = 'bfloat16'
    config.data.source = 'recall'
    config.data.task = dict(
        kind='passkey',
        documents=1_000_000,
        eval_documents=256,
        distances=(256, 1024, 4096, 16_384, 65_536),
        num_pairs=8,
        answer_length=5,
        num_fillers=64,
        before=256,
        ask_every=0,
    )
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 64
    config.train.segment_length = 256
    config.train.segments_per_step = 4
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.generate.sample_length = 0
    carried: dict[str, Any] = {}  # for models that carry vectors: what differs
    scale = dict(reach=2048, memories=65_536, basis=512, samples=512, widths=(0.01, 0.05))

    def kind(config, name):
        """One of the recall tasks."""
        config.data.task.kind = one_of('kind', name, KINDS)

    def tiny(config):
        """2 layers of 64, some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=1500, lanes=16, segment=32)
        config.model.vocab_size = 32
        config.data.task.update(
            eval_documents=576,
            distances=(16, 64, 256),
            num_pairs=4,
            answer_length=1,
            num_fillers=8,
            before=32,
            spread='log',
        )
        config.optimizer.learning_rate = 3e-3
        config.train.remat = False
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 0
        scale.update(reach=256, memories=2048, basis=64, samples=64, widths=(0.02, 0.05), slots=16)
        carried.update(learning_rate=1e-3, segments_per_step=8)

    variant(config, arg, memory='infini', scale=scale, tiny=tiny, kind=kind)
    if carried and reach.carries_vectors(config.model):
        config.optimizer.learning_rate = carried['learning_rate']
        config.train.segments_per_step = carried['segments_per_step']
    return config
