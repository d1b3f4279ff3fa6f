"""Pretrains a small encoder on the texts of a stream, without their answers, as the folder of a BERT.

python -m longmem_jax.commands.pretrain_encoder --config=configs/lifelong_classification.py:tiny \
    --config.data.path=FOLDER --folder=BERT [--steps=20000]

All methods of a comparison begin with it, `path=BERT`, and so does the frozen key network.
"""

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.lifelong import encoders, pretrain, settings
from longmem_jax.lifelong.data.registry import LABELLED

_CONFIG = entry.define_config()
_FOLDER = flags.DEFINE_string('folder', '', 'The folder to write.')
_STEPS = flags.DEFINE_integer('steps', 20_000, 'Training steps.', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch', 64, 'Texts of a step.', lower_bound=1)


def _run() -> None:
    config = _CONFIG.value
    if config is None:
        raise UsageError(entry.MISSING)
    if not _FOLDER.value:
        raise UsageError('--folder= is missing: where the encoder is written.')
    settings.require(config)
    read = LABELLED[config.data.source].read(config.data)
    model = config.model
    sizes = encoders.SMALL | dict(
        hidden_size=model.d_model,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.d_feed_forward,
    )
    given = pretrain.SETTINGS | dict(
        vocab_size=config.data.tokenizer.size,
        max_length=config.train.segment_length,
        num_steps=_STEPS.value,
        batch=_BATCH.value,
        seed=config.train.seed,
    )
    names = pretrain.pretrain(read.texts, _FOLDER.value, given, sizes)
    print(f'Wrote {", ".join(names)} to {_FOLDER.value}.')


def main() -> None:
    """Entry point of the command."""
    entry.run(_run)


if __name__ == '__main__':
    main()
