"""SPALM: retrieved tokens gated into the last hidden vector (Yogatama et al., 2021).

Neighbours are looked up in a datastore of the model, and in training never in the document being read.
The gate starts at one half; the model may be frozen.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.flax import load_file

from longmem_jax.errors import UsageError
from longmem_jax.evaluation.result import Result
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import show
from longmem_jax.reporting.writers import Writer
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.gated import inputs_of, losses, retrieved
from longmem_jax.retrieval.index import Index, make_index
from longmem_jax.retrieval.reading import SEGMENTS, Reader
from longmem_jax.retrieval.search import require_k
from longmem_jax.retrieval.spalm_task import SpalmTask
from longmem_jax.training import runner
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.optimizer import parameter_path


def _require_plain(model_config: Any) -> None:
    """Raises `UsageError` unless the model has one output table of width `d_model`."""
    if model_config.cutoffs or model_config.d_embed != model_config.d_model:
        raise UsageError(
            "config.retrieval.kind = 'spalm': needs one table of output vectors as wide as the "
            'model (config.model.cutoffs = (), d_embed = d_model).'
        )


def _lookup(experiment: Experiment, params: Any) -> tuple[Datastore, Index]:
    """Opens the datastore of the model and its index."""
    settings = experiment.config.retrieval
    store = Datastore(
        Path(settings.datastore).expanduser(), identity(experiment, params), settings.verify
    )
    require_k(settings.spalm.k, store)
    return store, make_index(settings, store, experiment.mesh)


def train(experiment: Experiment, split: str = 'train') -> Path:
    """`--mode=train_spalm`: trains the gate, and the model with it where it is not frozen.

    Resumes from the newest checkpoint in WORKDIR/spalm/checkpoints, if any. Metrics and the result
    are in WORKDIR/spalm.

    Returns:
      That folder; it has the result unless a signal stopped the run.

    Raises:
      UsageError: there is no checkpoint of a model or no datastore of it, the model does not have
        one output table, or the gate was begun for another model or datastore.
    """
    config = experiment.config
    _require_plain(config.model)
    params, _ = experiment.restore_parameters()
    store, index = _lookup(experiment, params)
    folder = experiment.workdir / 'spalm'
    folder.mkdir(exist_ok=True)
    task = SpalmTask(experiment, params, store, index, split, folder)
    progress = Progress(task.plan.num_steps, log_every=task.plan.log_every)
    saver = Checkpointer(
        folder / 'checkpoints',
        every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        identity=task.identity,
        report=progress.say,
        otherwise=f'Delete {folder} to train a gate for this one.',
    )
    ended = runner.run(task, saver=saver, writer=Writer(folder), progress=progress)
    if ended.finished:
        progress.say(f'Gate after {ended.step:,} steps: {folder}')
    return folder


def evaluate(experiment: Experiment, split: str) -> dict[str, Result]:
    """Scores a split by the model alone and with the trained gate; prints a table.

    Raises:
      UsageError: there is no gate or no datastore for this checkpoint.
    """
    _require_plain(experiment.config.model)
    params, step = experiment.restore_parameters()
    folder = experiment.workdir / 'spalm'
    try:
        saved = load_file(folder / 'parameters.safetensors')
        about = json.loads((folder / 'about.json').read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(
            f'{folder}: no trained gate ({error}); make one with --mode=train_spalm.'
        ) from error
    if {name: about.get(name) for name in identity(experiment, params)} != identity(
        experiment, params
    ):
        raise UsageError(
            f'{folder}: the gate of another model; delete that folder and run --mode=train_spalm.'
        )
    store, index = _lookup(experiment, params)
    gated_params = params
    if not about['frozen']:
        gated_params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: saved['params/' + parameter_path(path)], params
        )
    model, progress = experiment.evaluation_model, Progress(0, log_every=0)
    score = jax.jit(
        lambda memory, inputs: losses(model, gated_params, saved['gate'], memory, inputs)
    )
    reader, memory = Reader(experiment, params, split), None
    limit = experiment.config.evaluate.max_test_segments
    sums, count, num_bytes = np.zeros(3), 0, 0.0
    for part in reader.parts(limit):
        neighbours = retrieved(part, store, index, about['k'], split == 'train')
        if memory is None:
            memory = jax.tree.map(jnp.zeros_like, reader.memory)
        for segment in range(SEGMENTS):
            gated, alone, memory = score(memory, inputs_of(part, neighbours, segment))
            sums[0] += float(gated)
            sums[1] += float(alone)
        sums[2] += float(part.nll[part.counted].sum())
        count += int(part.counted.sum())
        num_bytes += float(part.num_bytes.sum())
    lanes = experiment.config.evaluate.num_lanes
    protocol = (
        f'step {step:,}, segment {experiment.config.evaluate.segment_length}, {lanes} lanes, '
        f'{count:,} tokens of {split}; K {about["k"]}'
    )
    names = {split: sums[2], f'{split}, SPALM': sums[0]}
    results = {
        name: Result(split, nll, count, num_bytes, protocol, right=None, answers=0, exact=0)
        for name, nll in names.items()
    }
    progress.close()
    show(progress, results, {})
    return results
