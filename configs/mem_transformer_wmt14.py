"""Translation, WMT14 German-English, with memory tokens in the encoder (Burtsev et al., 2020).

python -m longmem_jax.main --config=configs/mem_transformer_wmt14.py --config.data.path=FOLDER \
    --workdir=DIR
FOLDER holds train.de, train.en, and so on; or --config.data.name=wmt14_translate/de-en for TFDS.
6 + 6 layers of 512 and 10 memory tokens; `:layers=4`, `:tokens=20`, `:variant=ctrl`,
`:variant=bottleneck`, `:variant=none`, `:shared` (one set of encoder layers). The survey gives neither
width nor optimizer: they are those of the base Transformer. `:tiny` is for two cores.
"""

from configs import memsizer_wmt16
from longmem_jax.config.base import stack
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError, unknown
from longmem_jax.models.encoders.memory_tokens import VARIANTS


def get_config(arg=''):
    config = memsizer_wmt16.get_config('attention=softmax')

    model = config.model
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.dropout = 0.1
    model.seq2seq.encoder, model.seq2seq.num_tokens = 'plain', 10

    config.data.pairs.languages = ('de', 'en')
    config.optimizer.learning_rate = 7e-4
    config.train.num_steps = 100_000
    config.train.num_lanes = 768  # about 25,000 target tokens

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
