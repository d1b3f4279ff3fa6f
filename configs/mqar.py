"""Multi-query associative recall (MQAR; Arora et al., 2023, "Zoology").

python -m longmem_jax.main --config=configs/mqar.py:memory=infini --workdir=DIR
Documents of 64 to 256 tokens with 4 to 64 pairs of a key and a value, read in segments of 64, so that
the memory has to carry pairs. `--config.data.task.sizes='((1024, 256),)'` with `--mode=evaluate` tests
another size. `:memory=` is any memory of the library; `local`, which has none, is the floor. `:width=64`
is another width of the model. `:tiny` has 32 words and up to 15 pairs in 128 tokens, for two cores. The
data is generated. `python -m experiments.mqar_curve` draws accuracy against bytes of state.

Not the paper's: it compares layers that read a document at once; `segment_length` 64 is for memories.
Its models have convolutions in addition to attention; `num_layers` and `d_feed_forward` are ours, and
`d_model` is one of its widths. `learning_rate` is the least of its sweep, 1e-3 to 3e-2;
`warmup_steps`, `clip_norm` and `num_steps` (it has 22,500 of 256 documents) are for memories that learn
more slowly.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    size(config, layers=2, width=128, heads=2, feed_forward=512)
    config.model.vocab_size = 8192
    config.data.source = 'mqar'
    config.data.task = dict(
        documents=180_000,
        eval_documents=3000,
        num_words=8192,
        # Five times as many documents of the first size as of any other.
        sizes=(*[(64, 4)] * 5, (128, 8), (256, 16), (256, 32), (256, 64)),
        power=0.01,
        passes=1,
        fill='random',
    )
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 64
    config.train.segment_length = 64
    config.train.segments_per_step = 4
    config.train.log_every = 100
    config.train.evaluate_every = 5000
    config.evaluate.num_lanes = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=256, memories=4096)

    def tiny(config):
        """2 layers of 64 and 32 words; some minutes on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=256)
        two_cores(config, steps=2000, lanes=16, segment=32)
        config.model.vocab_size = 32
        config.data.task.update(
            documents=10_000_000,
            eval_documents=192,
            num_words=32,
            sizes=((16, 2), (32, 4), (64, 8), (128, 15)),
            fill='blank',
        )
        config.optimizer.learning_rate = 3e-3
        config.train.log_every = 100
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        scale.update(reach=128, memories=2048, basis=64, samples=32, widths=(0.02, 0.05), slots=16)

    def width(config, value):
        """Another width of the model."""
        number = whole_number('width', value)
        size(config, layers=2, width=number, heads=2, feed_forward=4 * number)

    return variant(config, arg, memory='infini', scale=scale, tiny=tiny, width=width)
