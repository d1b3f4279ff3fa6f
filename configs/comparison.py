r"""Every memory of the library in one byte-level language model: equal steps, nearly equal parameters.

python -m longmem_jax.main --config=configs/comparison.py:memory=infini --config.data.path=FOLDER \
    --workdir=DIR
`:memory=` is any memory of the library; 12 layers of 512, segments of 512. `:large` has 12 of 896, 116
million parameters; `:tiny` has 4 of 128, for two cores. This is not an experiment of a paper;
`results.json` has parameters and bytes of state, so that results can be compared with their cost.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    size(config, layers=12, width=512, heads=8, feed_forward=2048)
    config.model.dropout = 0.1
    config.model.dtype = 'bfloat16'
    config.model.vocab_size = 264
    config.data.pieces = 64
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 100_000
    config.train.num_lanes = 32
    config.train.segment_length = 512
    config.train.segments_per_step = 2
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    scale = dict(memories=65_536, slots=256)

    def large(config):
        """12 layers of 896."""
        size(config, layers=12, width=896, heads=14, feed_forward=3584)

    def tiny(config):
        """4 layers of 128, segments of 64, two or three minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=400, lanes=8, segment=64)
        config.data.pieces = 4
        config.train.log_every = 50
        config.train.evaluate_every = 200
        config.evaluate.num_lanes = 8
        config.evaluate.max_segments = 64
        config.evaluate.max_test_segments = 256
        config.generate.sample_length = 0
        scale.update(memories=4096, slots=32)

    return variant(config, arg, memory='transformer_xl', scale=scale, large=large, tiny=tiny)
