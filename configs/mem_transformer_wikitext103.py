r"""Transformer-XL with 20 memory tokens on WikiText-103 (Burtsev et al., 2020), and its recurrent form.

python -m longmem_jax.main --config=configs/mem_transformer_wikitext103.py \
    --config.data.path=wikitext-103 --workdir=DIR
16 layers of 410, segments of 150 with a cache of 150, 20 memory tokens before every segment.
`:recurrent` is the recurrent memory transformer (Bulatov et al., 2022): 10 tokens before and after
every segment, carried to the next, no cache, gradients through 4 segments. `:tokens=25` sets another
number; `:tiny` is for two cores. The tokens are parameters, so their number cannot differ in evaluation
alone: `:tokens=25` with `--config.train.start_from=WORKDIR` adds some to a trained model and trains on.

Not the paper's: `num_lanes` 64 for the script's 60, since a multiple of 16 divides over devices;
`pieces`, one stream per lane, as there. `vocab_size` is the 267,735 words rounded up, for the same
reason. `dtype` is bfloat16, the script's float32.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=16, width=410, heads=10, feed_forward=2100)
    model.vocab_size = 267_744
    model.pre_norm = model.final_norm = False
    model.cutoffs = (20_000, 40_000, 200_000)
    model.tie_projections = (False, True, True, True)
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    model.init_std = 0.02
    memory = given(num_tokens=20, memory_length=150)

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
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.generate.sample_length = 100

    def recurrent(config):
        """Memory tokens carried from segment to segment; no cache."""
        memory.fields.update(num_tokens=10, at_end=True, carry=True, memory_length=0)
        config.train.segments_per_step = 4

    def tiny(config):
        """4 layers of 128, 8 memory tokens, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        steps = 500 // config.train.segments_per_step
        two_cores(config, steps=steps, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.pre_norm = model.final_norm = True
        model.cutoffs = (2000, 8000)
        model.div_val = 2
        model.tie_projections = (False, True, True)
        model.dropout = 0.1
        cache = min(memory.fields['memory_length'], 64)
        memory.fields.update(num_tokens=8, memory_length=cache)
        config.data.pieces = 16
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 1
        config.evaluate.max_segments = 0

    def tokens(config, number):
        """Another number of memory tokens."""
        memory.fields.update(num_tokens=whole_number('tokens', number))

    return variant(
        config,
        arg,
        memory='memory_tokens',
        memories=dict(memory_tokens=memory),
        recurrent=recurrent,
        tiny=tiny,
        tokens=tokens,
    )
