"""Every memory of the library in one language model of bytes: equal steps, nearly equal parameters.

python -m longmem_jax.main --config=configs/comparison.py:memory=infini --config.data.path=FOLDER \
    --workdir=DIR
`:memory=` is one of those in `longmem_jax/side_by_side.py`; 12 layers of 512, segments of 512.
`:tiny` has 4 layers of 128, for two cores. Not an experiment of a paper: parameters and state are in
`results.json`, so that numbers can be compared for what they cost.
"""

from longmem_jax.config import side_by_side
from longmem_jax.config.base import base
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    model.vocab_size = 264
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
    config.evaluate.segment_length = 512
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.checkpoint.every = 2500
    sizes = dict(
        block=512, reach=1024, memories=65_536, basis=512, samples=512, widths=(0.01, 0.05),
        slots=256, tokens=20, keys=128,
    )  # fmt: skip
    chosen = dict(memory='transformer_xl', layers=12)

    def change(**changes):
        chosen.update(changes)
        side_by_side.put(config, chosen['memory'], layers=chosen['layers'], **sizes)

    def memory(config, name):
        change(memory=name)

    def tiny(config):
        """4 layers of 128, segments of 64, two or three minutes on two cores."""
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dropout = 0.0
        model.dtype = 'float32'
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        config.data.pieces = 4
        config.train.num_steps = 400
        config.train.num_lanes = 8
        config.train.segment_length = config.evaluate.segment_length = 64
        config.train.log_every = 50
        config.train.evaluate_every = 200
        config.evaluate.num_lanes = 8
        config.evaluate.max_segments = 64
        config.evaluate.max_test_segments = 256
        config.generate.sample_length = 0
        config.checkpoint.every = 200
        sizes.update(
            block=64, reach=128, memories=4096, basis=64, samples=64, widths=(0.02, 0.05), slots=32,
            tokens=8, keys=32,
        )  # fmt: skip
        change(layers=4)

    change()
    return variant(config, arg, tiny=tiny, memory=memory)
