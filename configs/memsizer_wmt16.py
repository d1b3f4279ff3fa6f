"""Translation, WMT16 English-German, with MemSizer in the decoder (Zhang and Cai, 2022; the script).

python -m longmem_jax.main --config=configs/memsizer_wmt16.py --config.data.path=FOLDER --workdir=DIR
FOLDER contains train.en, train.de, and so on; or --config.data.name=wmt16_translate/de-en for TFDS.
6 layers of 1,024 with 16 heads; the decoder's self-attention has 4 slots, its cross-attention 32. The
baselines are `:memory=local` (softmax), `:memory=linear` (ELU), `:memory=rfa` and `:memory=t2r`. As in
the survey, each replaces the causal and the cross-attention of the decoder; the encoder is a softmax
Transformer for all, as in the script. `:pair=en-fr` (dropout 0.1) and `:pair=zh-en` are the survey's
other languages. Beam 5, length penalty 1, as in the survey. `:shift=half` and `:shift=convolution` show
the decoder's self-attention the tokens just before. `:tiny` is for two cores, and for 29,000 pairs of
captions.

Not the paper's: `num_lanes`: 1,792 pairs in place of 16 x 3,584 target tokens, since a pair is one
segment. `vocab_size` and `data.tokenizer.kind`: the shared vocabulary is learned here. `dtype` is
bfloat16 in place of float16. `:pair=zh-en` has the settings of English-German, nothing else is known.
Queries, keys and values of softmax attention and RFA begin with Xavier's values without their gain of
2**-0.5, and RFA's cross-attention keeps its random directions in training.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import one_of, variant

LINEAR = ('linear', 'rfa', 't2r')
DROPOUT = {'en-de': 0.3, 'en-fr': 0.1, 'zh-en': 0.3}


def get_config(arg=''):
    config = translation()
    config.model.init, config.model.attention_bias = 'glorot_uniform', 'all'

    memories = dict(memsizer=given(num_slots=4, shift='none'), local=given(position='none'))
    memories['memsizer'].fields.update(query_scale=8.0, write_scale=8.0)
    for name in LINEAR:
        memories[name] = given(size=64, carry=False, shift='none')
    memories['rfa'].fields.update(redraw=True, guard='clamp', epsilon=1.0)

    def small(config):
        """The tiny model, and memories to match."""
        tiny(config)
        memories['memsizer'].fields.update(chunk=40, query_scale=0.0, write_scale=0.0)
        for name in LINEAR:
            memories[name].fields.update(size=48, chunk=40)

    def pair(config, languages):
        """Other languages, source first."""
        config.model.dropout = DROPOUT[one_of('pair', languages, sorted(DROPOUT))]
        config.data.pairs.languages = tuple(languages.split('-'))

    def shift(config, kind):
        """A view of the tokens just before, for the decoder's self-attention."""
        for name in ('memsizer', *LINEAR):
            memories[name].fields.update(shift=kind)

    variant(config, arg, memory='memsizer', memories=memories, pair=pair, tiny=small, shift=shift)
    for name in ('memsizer', 'linear'):
        if name in config.model.attention:
            config.model.seq2seq.cross = name
    if config.model.seq2seq.cross == 'memsizer':
        config.model.seq2seq.cross_slots = 32
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
