r"""Translation, WMT14 German-English, with memory tokens in the encoder (Burtsev et al., 2020).

python -m longmem_jax.main --config=configs/mem_transformer_wmt14.py --config.data.path=FOLDER \
    --workdir=DIR
FOLDER contains train.de, train.en, and so on; or --config.data.name=wmt14_translate/de-en for TFDS. Six
layers on each side, 512 wide, and 10 memory tokens; `:layers=4`, `:tokens=20`, `:variant=ctrl`,
`:variant=bottleneck`, `:variant=none`, `:shared` (all encoder layers share their parameters). `:tiny`
is for two cores. The tokens are parameters, so their number cannot differ in evaluation alone:
`:tokens=20` with `--config.train.start_from=WORKDIR` adds some to a trained model and trains on, which
is what helped in the paper; a change without training made it worse.

Not the paper's: the source gives neither width nor optimizer. `d_model`, `num_heads`, `d_feed_forward`,
`dropout`, `learning_rate`, `b2`, `schedule`, `warmup_steps`, `num_steps`, `num_lanes` and
`label_smoothing` are those of the base Transformer (Vaswani et al., 2017), as recalled.
`data.tokenizer.size` and `vocab_size` are ours, and so are `max_source` and `max_target`: longer
sentences are left out. `dtype` bfloat16 is ours.
"""

from longmem_jax.config.base import size
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.configs.memsizer_wmt16 import tiny, translation


def get_config(arg=''):
    config = translation()

    model = config.model
    size(config, layers=6, width=512, heads=8, feed_forward=2048)
    model.dropout = 0.1
    model.seq2seq.encoder, model.seq2seq.num_tokens = 'plain', 10
    memories = dict(local=given(position='none'))

    config.data.pairs.languages = ('de', 'en')
    config.optimizer.learning_rate = 7e-4
    config.train.num_steps = 100_000
    config.train.num_lanes = 768  # about 25,000 target tokens

    def kind(config, name):
        """Another encoder: 'plain', 'ctrl', 'bottleneck' or 'none'."""
        model.seq2seq.encoder = name
        model.seq2seq.num_tokens = 0 if name == 'none' else model.seq2seq.num_tokens or 10

    def tokens(config, number):
        """Another number of memory tokens."""
        model.seq2seq.num_tokens = whole_number('tokens', number)

    def layers(config, number):
        """Another number of encoder and decoder layers."""
        model.num_layers = model.seq2seq.num_encoder_layers = whole_number('layers', number)

    def shared(config):
        """All encoder layers share their parameters."""
        model.seq2seq.shared_layers = True

    return variant(
        config,
        arg,
        memory='local',
        memories=memories,
        tiny=tiny,
        variant=kind,
        tokens=tokens,
        layers=layers,
        shared=shared,
    )
