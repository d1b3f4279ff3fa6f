"""The authors' weights as a checkpoint of ours, to be evaluated, continued or fine-tuned.

python -m longmem_jax.commands.import_checkpoint --weights=model.safetensors --settings=args.json \
    --config=configs/wikitext103.py --config.model.vocab_size=267735 --workdir=DIR

`args.json` holds the authors' arguments by their names. Which format is read depends on the layers of
the config: 'transformer_xl' is the authors' Transformer-XL (n_token, n_layer, n_head, d_model, ...);
'expire_span', 'adaptive_span' and 'compressive' are models of transformer-sequential, the released code
of Expire-Span (vocab_sz, nlayers, nheads, hid_sz, ...). Their model, once loaded in PyTorch, becomes a
file by `safetensors.torch.save_file(tensors, FILE)` with `tensors = {name: tensor.clone() for name,
tensor in model.state_dict().items()}`.
"""

import functools
import json
from pathlib import Path
from typing import Any

import jax
from absl import flags
from safetensors import SafetensorError
from safetensors.numpy import load_file

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.memory.registry import LAYERS
from longmem_jax.pretrained import transformer_sequential, transformer_xl
from longmem_jax.training.checkpoint import differing_fields
from longmem_jax.training.optimizer import parameter_path

# Layer type of the config -> (our `config.model` from their arguments, our parameters from theirs).
FORMATS = {
    'transformer_xl': (transformer_xl.model_config, transformer_xl.import_parameters),
    **{
        ours: (
            functools.partial(transformer_sequential.model_config, system=system),
            transformer_sequential.import_parameters,
        )
        for system, (ours, _) in transformer_sequential.LAYERS.items()
    },
}
# Fields that weights do not depend on: they may be chosen freely.
FREE = (
    'dropout',
    'attention_dropout',
    'residual_dropout',
    'embedding_dropout',
    'layer_drop',
    'dtype',
    'init_std',
    'transformer_xl',
    'expire_span.capacity',
    'expire_span.initial_share',
    'expire_span.num_sizes',
    'expire_span.shorten',
    'adaptive_span.initial_share',
    'adaptive_span.num_sizes',
    'adaptive_span.trim_memory',
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
      UsageError: layers of which no format is known, files that cannot be read, another model (its
        fields or parameters are named), a workdir that has checkpoints already.
    """
    layers = tuple(experiment.config.model.attention)
    if len(set(layers)) != 1 or layers[0] not in FORMATS:
        raise UsageError(
            f'config.model.attention = {layers}: weights can be imported where all layers are one of '
            f'{", ".join(FORMATS)}'
        )
    make_config, import_parameters = FORMATS[layers[0]]
    try:
        # Models that were trained on several GPUs carry a prefix.
        theirs = {n.removeprefix('module.'): array for n, array in load_file(weights).items()}
        arguments = json.loads(settings.read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f'{weights}, {settings}: cannot be read ({error}).') from error
    try:
        model = make_config(arguments)
    except KeyError as error:
        raise UsageError(f'{settings}: the argument {error} is missing.') from error
    _require_same_model(model, experiment.config.model)
    params = import_parameters(theirs, model)
    _require_same_parameters(params, experiment.abstract_state.params)
    saver = experiment.checkpointer(print)
    if saver.steps():
        raise UsageError(f'{experiment.workdir}: has checkpoints already; use another --workdir.')
    state = jax.jit(experiment.make_state, out_shardings=experiment.state_shardings)()
    params = jax.device_put(params, experiment.state_shardings.params)
    saver.maybe_save(0, state.replace(params=params), force=True)
    saver.close()


def _require_same_model(theirs: Any, ours: Any) -> None:
    """Raises `UsageError` with the fields that differ, apart from `FREE` and unused sections."""
    unused = set(LAYERS) - {*ours.attention, *ours.feed_forward}
    plain = [json.loads(json.dumps(model.to_dict())) for model in (theirs, ours)]
    fields = [
        line
        for line in differing_fields(*plain)
        if not any(f'{line}.'.startswith((f'{name}.', f'{name}:')) for name in (*FREE, *unused))
    ]
    if fields:
        raise UsageError('config.model is another model:\n  ' + '\n  '.join(fields))


def _require_same_parameters(given: Any, wanted: Any) -> None:
    """Raises `UsageError` where parameters are missing, not known, or of another shape."""
    shapes = [
        {
            parameter_path(path): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (given, wanted)
    ]
    faults = [
        f'{name}: {shapes[0].get(name, "nothing")} in the file, {shapes[1].get(name, "nothing")} in '
        'this model'
        for name in sorted({*shapes[0], *shapes[1]})
        if shapes[0].get(name) != shapes[1].get(name)
    ]
    if faults:
        raise UsageError('the weights belong to another model:\n  ' + '\n  '.join(faults))


def _import(experiment):
    if not _WEIGHTS.value or not _SETTINGS.value:
        raise UsageError('--weights= and --settings= are needed.')
    import_checkpoint(experiment, Path(_WEIGHTS.value), Path(_SETTINGS.value))
    print(f'imported {_WEIGHTS.value} to {experiment.workdir}')


if __name__ == '__main__':
    entry.command(_import)
