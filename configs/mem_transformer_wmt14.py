"""Translation, WMT14 German-English, with memory tokens in the encoder (Burtsev et al., 2020).

python -m longmem_jax.main --config=configs/mem_transformer_wmt14.py --config.data.path=FOLDER \
    --workdir=DIR
FOLDER holds train.de, train.en, and so on; or --config.data.name=wmt14_translate/de-en for TFDS.
6 + 6 layers of 512 and 10 memory tokens; `:layers=4`, `:tokens=20`, `:variant=ctrl`,
`:variant=bottleneck`, `:variant=none`, `:shared` (one set of encoder layers). The survey gives neither
width nor optimizer: they are those of the base Transformer. `:tiny` is for two cores.
"""

from configs import memsizer_wmt16
from longmem_jax.config import base, stack
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.memory_encoder import VARIANTS
from longmem_jax.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    model.kind = 'seq2seq'
    model.local = dict(position='none')
    stack(model, 6, 'local')
    model.vocab_size = 32_768
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.position = 'sinusoidal'
    model.pre_norm, model.final_norm = False, False
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    model.seq2seq = dict(
        max_source=128,
        encoder='plain',
        num_encoder_layers=6,
        num_tokens=10,
        shared_layers=False,
        cross='softmax',
        cross_slots=0,
    )

    config.data.source = 'parallel'
    config.data.pairs = dict(languages=('de', 'en'), max_source=128, max_target=128)
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_768

    config.optimizer.learning_rate = 7e-4
    config.optimizer.b2 = 0.98
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 4000
    config.optimizer.clip_norm = 0.0

    config.train.num_steps = 100_000
    config.train.num_lanes = 768  # about 25,000 target tokens
    config.train.segment_length = 256
    config.train.log_every = 100
    config.train.evaluate_every = 2000
    config.train.loss_weights = dict(label_smoothing=0.1)
    config.evaluate.segment_length = 256
    config.evaluate.num_lanes = 64
    config.translate.num_lanes = 64
    config.checkpoint.every = 2000

    def kind(config, name):
        if name not in VARIANTS:
            raise UsageError(unknown('variant', name, VARIANTS))
        model.seq2seq.encoder = name
        model.seq2seq.num_tokens = 0 if name == 'none' else model.seq2seq.num_tokens or 10

    def tokens(config, number):
        model.seq2seq.num_tokens = whole_number('tokens', number)

    def layers(config, number):
        model.seq2seq.num_encoder_layers = whole_number('layers', number)
        stack(model, model.seq2seq.num_encoder_layers, 'local')

    def shared(config):
        """All encoder layers have the same parameters."""
        model.seq2seq.shared_layers = True

    changes = dict(variant=kind, tokens=tokens, layers=layers, shared=shared)
    return variant(config, arg, tiny=memsizer_wmt16.tiny, **changes)
