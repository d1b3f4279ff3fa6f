"""The authors' weights as a checkpoint of ours, to be evaluated, continued or fine-tuned.

python -m longmem_jax.commands.import_checkpoint --weights=model.safetensors --settings=args.json \
    --config=configs/wikitext103.py --config.model.vocab_size=267735 --workdir=DIR

`args.json` holds the authors' arguments by their names (n_token, n_layer, n_head, d_model, ...). Their
model, once loaded in PyTorch, becomes a file by `safetensors.torch.save_file(tensors, FILE)` with
`tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}`.
"""

import json
from pathlib import Path

import jax
from absl import flags
from safetensors import SafetensorError
from safetensors.numpy import load_file

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.pretrained import transformer_xl
from longmem_jax.training.checkpoint import differing_fields

# Fields that weights do not depend on: they may be chosen anew.
FREE = (
    'dropout',
    'attention_dropout',
    'residual_dropout',
    'embedding_dropout',
    'layer_drop',
    'dtype',
    'init_std',
    'transformer_xl',
)

if __name__ == '__main__':
    _WEIGHTS = flags.DEFINE_string('weights', None, 'The state_dict as safetensors.')
    _SETTINGS = flags.DEFINE_string('settings', None, 'JSON of the arguments it was trained with.')


def import_checkpoint(experiment: Experiment, weights: Path, settings: Path) -> None:
    """Writes a checkpoint of step 0 with imported parameters to the experiment's workdir.

    Args:
      experiment: whose `config.model` describes the same model.
      weights: safetensors with the names of the authors' `state_dict`.
      settings: JSON with their arguments.

    Raises:
      UsageError: files that cannot be read, another model (its fields are named), a workdir that
        has checkpoints already.
    """
    try:
        theirs = load_file(weights)
        arguments = json.loads(settings.read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f'{weights}, {settings}: cannot be read ({error}).') from error
    model = transformer_xl.model_config(arguments)
    fixed = [
        {
            name: value
            for name, value in json.loads(json.dumps(m.to_dict())).items()
            if name not in FREE
        }
        for m in (model, experiment.config.model)
    ]
    fields = differing_fields(*fixed)
    if fields:
        raise UsageError('config.model is another model:\n  ' + '\n  '.join(fields))
    params = transformer_xl.import_parameters(theirs, model)
    saver = experiment.checkpointer(print)
    if saver.steps():
        raise UsageError(f'{experiment.workdir}: has checkpoints already; use another --workdir.')
    state = jax.jit(experiment.make_state, out_shardings=experiment.state_shardings)()
    params = jax.device_put(params, experiment.state_shardings.params)
    saver.maybe_save(0, state.replace(params=params), force=True)
    saver.close()


def _import(experiment):
    if not _WEIGHTS.value or not _SETTINGS.value:
        raise UsageError('--weights= and --settings= are needed.')
    import_checkpoint(experiment, Path(_WEIGHTS.value), Path(_SETTINGS.value))
    print(f'imported {_WEIGHTS.value} to {experiment.workdir}')


if __name__ == '__main__':
    entry.command(_import)
