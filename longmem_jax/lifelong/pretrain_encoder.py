r"""Pretrains a small encoder on the texts of a stream, without their answers, as the folder of a BERT.

python -m longmem_jax.lifelong.pretrain_encoder --config=configs/lifelong_classification.py:tiny \
    --config.data.path=FOLDER --folder=BERT [--steps=20000]

All methods of a comparison begin with it, `path=BERT`, and so does the frozen key network.
"""

from typing import Any

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.lifelong import encoders, pretrain, settings
from longmem_jax.lifelong.data.labelled import LABELLED


def run(config: Any, folder: str, *, steps: int, batch: int) -> list[str]:
    """Pretrains an encoder of the sizes of a configuration for lifelong learning, and writes it to
    `folder`, which must not exist, or be empty. Rows that the configuration holds out are not read.
    Returns the names of the files.

    Raises:
      UsageError: problems of the configuration, no folder, or as `pretrain.pretrain`.
    """
    if not folder:
        raise UsageError('--folder= is missing: where the encoder is written.')
    settings.require(config)
    read, model = LABELLED[config.data.source].read(config.data), config.model
    sizes = encoders.SMALL | dict(
        hidden_size=model.d_model,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.d_feed_forward,
    )
    given = pretrain.SETTINGS | dict(
        vocab_size=config.data.tokenizer.size,
        max_length=config.train.segment_length,
        num_steps=steps,
        batch=batch,
        seed=config.train.seed,
    )
    return pretrain.pretrain(read.texts(), folder, given, sizes)


def _main() -> None:
    if _CONFIG.value is None:
        raise UsageError(entry.MISSING)
    names = run(_CONFIG.value, _FOLDER.value, steps=_STEPS.value, batch=_BATCH.value)
    print(f'Wrote {", ".join(names)} to {_FOLDER.value}.')


if __name__ == '__main__':
    _CONFIG = entry.define_config()
    _FOLDER = flags.DEFINE_string('folder', '', 'The folder to write.')
    _STEPS = flags.DEFINE_integer('steps', 20_000, 'Training steps.', lower_bound=1)
    _BATCH = flags.DEFINE_integer('batch', 64, 'Texts of a step.', lower_bound=1)
    entry.run(_main)
