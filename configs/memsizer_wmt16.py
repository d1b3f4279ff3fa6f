"""Translation, WMT16 English-German, with MemSizer in the decoder (Zhang and Cai, 2022; the script).

python -m longmem_jax.main --config=configs/memsizer_wmt16.py --config.data.path=FOLDER --workdir=DIR
FOLDER contains train.en, train.de, and so on; or --config.data.name=wmt16_translate/de-en for TFDS.
6 layers of 1,024 with 16 heads; the decoder's self-attention has 4 slots, its cross-attention 32; the
encoder is a plain Transformer, as in the script. The baselines are `:memory=local` (softmax),
`:memory=linear` (ELU), `:memory=rfa` and `:memory=t2r`. Beam 5, length penalty 1, as in the survey.
`:tiny` is for two cores, and for 29,000 pairs of captions.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = translation()

    memories = dict(memsizer=given(num_slots=4), local=given(position='none'))
    for name in ('linear', 'rfa', 't2r'):
        memories[name] = given(size=64, carry=False)

    def small(config):
        """The tiny model, and memories to match."""
        tiny(config)
        memories['memsizer'].fields.update(chunk=40)
        for name in ('linear', 'rfa', 't2r'):
            memories[name].fields.update(size=48, chunk=40)

    variant(config, arg, memory='memsizer', memories=memories, tiny=small)
    if 'memsizer' in config.model.attention:
        config.model.seq2seq.update(cross='memsizer', cross_slots=32)
    return config


def translation():
    """Model, data and optimizer of the script; the decoder's attention is set by the memory."""
    config = base()

    model = config.model
    model.kind = 'seq2seq'
    size(config, layers=6, width=1024, heads=16, feed_forward=4096)
    model.vocab_size = 32_768
    model.position = 'sinusoidal'
    model.pre_norm, model.final_norm = False, False
    model.dropout = 0.3
    model.dtype = 'bfloat16'
    model.seq2seq = dict(
        max_source=128,
        encoder='none',
        num_encoder_layers=6,
        num_tokens=0,
        shared_layers=False,
        cross='softmax',
        cross_slots=0,
    )

    config.data.source = 'parallel'
    config.data.pairs = dict(languages=('en', 'de'), max_source=128, max_target=128)
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_768
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 4000
    config.optimizer.clip_norm = 0.0
    config.train.num_steps = 90_000
    config.train.num_lanes = 1792  # about 16 x 3,584 target tokens
    config.train.segment_length = 256
    config.train.log_every = 100
    config.train.evaluate_every = 2000
    config.train.loss_weights = dict(label_smoothing=0.1)
    config.evaluate.num_lanes = 64
    config.translate.num_lanes = 64
    return config


def tiny(config):
    """3 + 3 layers of 192, captions of at most 40 tokens, about 15 minutes on two cores."""
    model = config.model
    size(config, layers=3, width=192, heads=4, feed_forward=512)
    two_cores(config, steps=1500, lanes=64, segment=80)
    model.vocab_size = config.data.tokenizer.size = 6000
    model.pre_norm = model.final_norm = True
    model.dropout = 0.1
    model.seq2seq.num_encoder_layers = 3
    model.seq2seq.max_source = 40
    config.data.pairs.max_source = config.data.pairs.max_target = 40
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.learning_rate = 1.5e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.clip_norm = 1.0
    config.train.log_every = 50
    config.translate.num_lanes = 50
    config.checkpoint.every = 250
