r"""Imports the authors' weights as a checkpoint, to evaluate, continue or fine-tune.

python -m longmem_jax.commands.import_checkpoint --weights=model.safetensors --settings=args.json \
    --config=configs/wikitext103.py --config.model.vocab_size=267735 --workdir=DIR

`args.json` holds the authors' arguments under their own names. The layers of the config decide which
format of `longmem_jax/hosts/` is read; each module there names its layers and arguments. To
export their model, load it in PyTorch and call `safetensors.torch.save_file(tensors, FILE)` with
`tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}`.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from absl import flags

from longmem_jax.commands import entry
from longmem_jax.devices import initial
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.memory.registry import LAYERS
from longmem_jax.released import transformer_sequential, transformer_xl
from longmem_jax.training.identity import differing_fields
from longmem_jax.training.optimizer import parameter_path
from longmem_jax.untrusted import json_file, schema, tensor_file
from longmem_jax.untrusted.library import library_errors

# Layer type of the config -> (arguments to `config.model`, their tensors to our parameters).
FORMATS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    transformer_xl.LAYER: (transformer_xl.model_config, transformer_xl.import_parameters),
    **{
        name: (
            functools.partial(transformer_sequential.model_config, name=name),
            transformer_sequential.import_parameters,
        )
        for name in transformer_sequential.LAYERS
    },
}
# Fields that the weights do not depend on: the config may set them freely.
FREE = (
    'dropout', 'attention_dropout', 'residual_dropout', 'embedding_dropout', 'layer_drop', 'dtype',
    'init', 'init_std', 'embedding_std', 'scale_residual_init', 'kernels', 'remat', 'loss_blocks',
    *transformer_xl.FREE, *transformer_sequential.FREE,
)  # fmt: skip
# What the authors' programs take: sizes must be possible, the others are compared with the config.
_SIZE, _LAYERS = schema.whole(0, 1 << 30), schema.whole(1, 4096)
_ONE = schema.either(
    schema.one_of(None), schema.flag, schema.text(), schema.number(-(2**40), 2**40)
)
ARGUMENTS = schema.fields(
    {},
    dict.fromkeys(
        """
        n_token n_head d_model d_head d_inner mem_len vocab_sz hid_sz nheads head_dim inner_hid_sz
        attn_lim mem_sz expire_span_ramp adapt_span_len compress_size compress_rate
        """.split(),
        _SIZE,
    )
    | dict(n_layer=_LAYERS, nlayers=_LAYERS)
    | dict.fromkeys(('cutoffs', 'tie_projs'), schema.items(_ONE, most=64)),
    others=True,
)

if __name__ == '__main__':
    _WEIGHTS = flags.DEFINE_string('weights', None, 'The state_dict as safetensors.')
    _SETTINGS = flags.DEFINE_string('settings', None, 'JSON of the arguments it was trained with.')


def import_checkpoint(experiment: Experiment, weights: Path, settings: Path) -> None:
    """Writes a checkpoint of step 0 with imported parameters to the experiment's workdir.

    Args:
      weights: safetensors with the names of the authors' `state_dict`.
      settings: JSON with their arguments.

    Raises:
      UsageError: layers without a known format, unreadable files, another model (the error lists its
        fields or parameters), or a workdir that already has checkpoints.
    """
    layers = tuple(experiment.config.model.attention)
    if len(set(layers)) != 1 or layers[0] not in FORMATS:
        raise UsageError(
            f'config.model.attention = {layers}: weights can be imported where all layers are one of '
            f'{", ".join(FORMATS)}'
        )
    make_config, import_parameters = FORMATS[layers[0]]
    # Models trained on several GPUs have a prefix.
    tensors, _ = tensor_file.read(weights)
    theirs = {name.removeprefix('module.'): array for name, array in tensors.items()}
    arguments = schema.require(json_file.read(settings), ARGUMENTS, settings)
    try:
        with library_errors(f'{settings}: not arguments of such a model'):
            model = make_config(arguments)
    except UsageError as error:
        if isinstance(error.__cause__, KeyError):
            raise UsageError(f'{settings}: the argument {error.__cause__} is missing.') from error
        raise
    _require_same_model(model, experiment.config.model)
    with library_errors(f'{weights}: its tensors have other shapes than {settings} says'):
        params = import_parameters(theirs, model)
    _require_same_parameters(params, experiment.abstract_state.params)
    if experiment.checkpoint_steps():
        raise UsageError(f'{experiment.workdir}: already has checkpoints; use another --workdir.')
    saver = experiment.checkpointer(print, experiment.going_on())
    state = initial.arrays(experiment.make_state, experiment.state_shardings)
    params = jax.device_put(params, experiment.state_shardings.params)
    saver.maybe_save(0, state.starting_from(params), force=True)
    saver.close()


def _require_same_model(theirs: Any, ours: Any) -> None:
    """Raises `UsageError` with the fields that differ, except `FREE` and unused sections."""
    unused = set(LAYERS) - {*ours.attention, *ours.feed_forward}
    plain = [json.loads(json.dumps(model.to_dict())) for model in (theirs, ours)]
    fields = [
        line
        for line in differing_fields(*plain)
        if not any(f'{line}.'.startswith((f'{name}.', f'{name}:')) for name in (*FREE, *unused))
    ]
    if fields:
        raise UsageError('config.model is another model:\n  ' + '\n  '.join(fields))


def _require_same_parameters(imported: Any, expected: Any) -> None:
    """Raises `UsageError` with the parameters that are missing, unknown, or of another shape."""
    in_file, in_model = (
        {parameter_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (imported, expected)
    )
    problems = [
        f'{name}: {in_file.get(name, "nothing")} in the file, {in_model.get(name, "nothing")} in '
        'this model'
        for name in sorted({*in_file, *in_model})
        if in_file.get(name) != in_model.get(name)
    ]
    if problems:
        raise UsageError('the weights belong to another model:\n  ' + '\n  '.join(problems))


def _import(experiment: Experiment) -> None:
    if not _WEIGHTS.value or not _SETTINGS.value:
        raise UsageError('--weights=FILE.safetensors and --settings=FILE.json are needed.')
    import_checkpoint(experiment, Path(_WEIGHTS.value), Path(_SETTINGS.value))
    print(f'imported {_WEIGHTS.value} to {experiment.workdir}')


if __name__ == '__main__':
    entry.command(_import)
