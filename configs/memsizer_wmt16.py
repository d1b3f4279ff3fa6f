"""Translation, WMT16 English-German, with MemSizer in the decoder (Zhang and Cai, 2022; the script).

python -m longmem_jax.main --config=configs/memsizer_wmt16.py --config.data.path=FOLDER --workdir=DIR
FOLDER holds train.en, train.de, and so on; or --config.data.name=wmt16_translate/de-en for TFDS.
6 layers of 1,024 with 16 heads; the decoder's self-attention has 4 slots, its cross-attention 32; the
encoder is a Transformer's, as in the script. `:attention=softmax`, `:attention=elu`, `:attention=rfa`
and `:attention=t2r` are what it is compared with. Beam 5, length penalty 1, as in the survey.
`:tiny` is for two cores and for 29,000 pairs of captions.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.recipes import linear
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError, unknown

ATTENTIONS = ('memsizer', 'softmax', 'elu', 'rfa', 't2r')


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    model.kind = 'seq2seq'
    model.num_layers = 6
    model.vocab_size = 32_768
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 16, 64
    model.d_feed_forward = 4096
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
    config.evaluate.segment_length = 256
    config.evaluate.num_lanes = 64
    config.translate.num_lanes = 64
    config.checkpoint.every = 2000

    def attention(config, name):
        """The decoder's attention, its cross-attention too where that is softmax."""
        if name not in ATTENTIONS:
            raise UsageError(unknown('attention', name, ATTENTIONS))
        for layer in ('memsizer', 'linear', 'local'):
            if layer in model:
                del model[layer]
        own = name == 'memsizer'
        model.seq2seq.cross, model.seq2seq.cross_slots = ('memsizer', 32) if own else ('softmax', 0)
        if own:
            stack(model, model.num_layers, 'memsizer')
            model.memsizer = dict(num_slots=4, bias=True, chunk=64, carry=False, gradients=True)
        elif name == 'softmax':
            stack(model, model.num_layers, 'local')
            model.local = dict(position='none')
        else:
            stack(model, model.num_layers, 'linear')
            model.linear = linear(name, 64, 64, carry=False)

    attention(config, 'memsizer')
    return variant(config, arg, tiny=tiny, attention=attention)


def tiny(config):
    """3 + 3 layers of 192, captions of at most 40 tokens, a quarter of an hour on two cores."""
    model = config.model
    names = set(model.attention)
    stack(model, 3, names.pop())
    model.vocab_size = 6000
    model.d_model = model.d_embed = 192
    model.num_heads, model.head_dim = 4, 48
    model.d_feed_forward = 512
    model.pre_norm = model.final_norm = True
    model.dropout = 0.1
    model.dtype = 'float32'
    model.seq2seq.num_encoder_layers = 3
    model.seq2seq.max_source = 40
    if 'memsizer' in model:
        model.memsizer.chunk = 40
    if 'linear' in model:
        model.linear.size, model.linear.chunk = 48, 40
    config.data.pairs.max_source = config.data.pairs.max_target = 40
    config.data.tokenizer.size = 6000
    config.optimizer.learning_rate = 1.5e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 1500
    config.train.num_lanes = 64
    config.train.segment_length = config.evaluate.segment_length = 80
    config.train.log_every = 50
    config.train.evaluate_every = 500
    config.translate.num_lanes = 50
    config.checkpoint.every = 250
