"""Transformer-XL on enwik8, 12 layers (Dai et al., 2019, Table 2; authors' base script).

python -m longmem_jax.main --config=configs/enwik8.py --config.data.path=enwik8 --workdir=DIR
Published: 1.06 bits/byte. Data: the single file of 100 MB, cut by position 90/5/5. `:tiny` trains in
minutes on two cores on any smaller file of the same kind.

Not the paper's: `num_lanes` 24 for the script's 22, since a multiple of 8 divides over devices;
`pieces`, one stream per lane, as there. `vocab_size` is all bytes and the end of a document, where the
script has the bytes that occur. `dtype` is bfloat16, the script's float32.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    size(config, layers=12, width=512, heads=8, feed_forward=2048)  # 41 M parameters
    config.model.pre_norm = config.model.final_norm = False
    config.model.dropout = 0.1
    config.model.dtype = 'bfloat16'
    config.model.init_std = 0.02
    # Evaluation: segments of 80, a memory of 2,100, distances clamped at 820, equal context lengths.
    xl = given(
        memory_length=512, evaluate=dict(memory_length=2100, clamp_length=820, same_length=True)
    )
    memories = dict(transformer_xl=xl)

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.clip_norm = 0.25
    config.data.pieces = 24  # one stream per lane, as in the authors' code
    config.train.num_steps = 400_000
    config.train.num_lanes = 24
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 80
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 200

    def tiny(config):
        """4 layers of 128, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=16, segment=128)
        config.model.pre_norm = config.model.final_norm = True
        config.data.pieces = 16
        config.evaluate.segment_length = 128
        config.evaluate.num_lanes = 1
        config.evaluate.max_test_segments = 800
        xl.fields.update(memory_length=256)
        xl.evaluate.update(memory_length=512, clamp_length=384)

    return variant(config, arg, memory='transformer_xl', memories=memories, tiny=tiny)
