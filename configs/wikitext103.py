"""Transformer-XL on WikiText-103, words, adaptive softmax (Dai et al., 2019, Table 1; base script).

python -m longmem_jax.main --config=configs/wikitext103.py --config.data.path=wikitext-103 --workdir=DIR
Published: perplexity 24.0. Data: a folder with train.txt, validation.txt and test.txt (or .tokens files
with these names). The vocabulary is learned from the training split, by falling frequency. `:tiny` has
4 layers of 128.

Not the paper's: `num_lanes` 64 for the script's 60, since a multiple of 16 divides over devices;
`pieces`, one stream per lane, as there. `vocab_size` is the 267,735 words rounded up, for the same
reason. `dtype` is bfloat16, the script's float32.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    model = config.model  # 151 M parameters, 110 M of them the tied embedding
    size(config, layers=16, width=410, heads=10, feed_forward=2100)
    model.vocab_size = 267_744
    model.pre_norm = model.final_norm = False
    model.cutoffs = (20_000, 40_000, 200_000)
    model.tie_projections = (False, True, True, True)
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    model.init_std = 0.02
    # Evaluation: segments of 64, a memory of 640, distances clamped at 400, equal context lengths.
    xl = given(
        memory_length=150, evaluate=dict(memory_length=640, clamp_length=400, same_length=True)
    )
    memories = dict(transformer_xl=xl)

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 64
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.clip_norm = 0.25
    config.train.num_steps = 200_000
    config.train.num_lanes = 64
    config.train.segment_length = 150
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 64
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.generate.sample_length = 100

    def tiny(config):
        """4 layers of 128, two tails of the softmax, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=500, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.pre_norm = model.final_norm = True
        model.cutoffs, model.div_val = (2000, 8000), 2
        model.tie_projections = (False, True, True)
        model.dropout = 0.1
        xl.fields.update(memory_length=64)
        xl.evaluate.update(memory_length=128, clamp_length=96)
        config.data.pieces = 16
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 1
        config.evaluate.max_segments = 0

    return variant(config, arg, memory='transformer_xl', memories=memories, tiny=tiny)
