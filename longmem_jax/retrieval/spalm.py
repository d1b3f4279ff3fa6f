"""SPALM: retrieved tokens gated into the last hidden vector (Yogatama et al., 2021).

As in the paper: the whole model is trained with its neighbours, by the optimizer of the config, and may
have a memory of its own (Transformer-XL); neighbours are found by a separately trained model that never
changes (`keys_from`), never in the document being read, and are looked up once before training
(`spalm_lists.py`: one search per token).

Not the paper's, where the defaults are ours because most users begin with a trained model:
  `keys_from` ''      the keys are of the model that training starts from, as it was then.
  `start` 'trained'   from the run's own checkpoint; 'fresh' is the paper's.
  `learned_scale`     see `gated.py`; off in the paper.
  `frozen`            off, as in the paper; on, only gate and scale are trained.
  search              by squared distances; the paper takes the largest inner products (ScaNN). Final
                      hidden vectors after a LayerNorm are of almost one length, and then the order is
                      the same. The paper's keys are `config.retrieval.key = 'hidden'`.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax.config import saved
from longmem_jax.data.lanes import Cursor
from longmem_jax.data.order import shared_out
from longmem_jax.devices import initial
from longmem_jax.errors import UsageError, number_of
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.evaluation.result import Result
from longmem_jax.evaluation.tables import show
from longmem_jax.experiment import Experiment
from longmem_jax.files import own_folder
from longmem_jax.generation.reader import fresh_state
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.retrieval import gated
from longmem_jax.retrieval.gated import Gate, Scores
from longmem_jax.retrieval.reading import Part, Reader, in_text_order
from longmem_jax.retrieval.spalm_keys import Keys, open_keys
from longmem_jax.retrieval.spalm_lists import Lists, Places, look_up
from longmem_jax.retrieval.spalm_report import Report
from longmem_jax.retrieval.spalm_task import SpalmTask, Trained, describe
from longmem_jax.retrieval.spalm_text import Inputs, Text
from longmem_jax.training import runner
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.identity import GoingOn, differing_fields, settings_of
from longmem_jax.training.optimizer import parameter_path
from longmem_jax.untrusted import json_file, schema, tensor_file


def _require_plain(model_config: Any) -> None:
    """Raises `UsageError` unless the model has one output table of width `d_model`."""
    if model_config.cutoffs or model_config.d_embed != model_config.d_model:
        raise UsageError(
            f'config.model.cutoffs = {tuple(model_config.cutoffs)}, d_embed = {model_config.d_embed}, '
            f'd_model = {model_config.d_model}: SPALM needs one table of output vectors as wide as the '
            'model (cutoffs = (), d_embed = d_model); train one, as spalm_wikitext103.py does.'
        )


def _require_apart(train: Any) -> None:
    """Raises `UsageError` if documents are packed: neighbours are of one document in a segment."""
    if train.packed:
        raise UsageError(
            'config.train.packed = True: --mode=train_spalm reads one document in a segment; use '
            'packed = False'
        )


def _start(experiment: Experiment) -> Any:
    """The parameters that training starts from."""
    if experiment.config.retrieval.spalm.start == 'trained':
        return experiment.restore_parameters()[0]
    return initial.arrays(lambda: experiment.make_state().params, experiment.state_shardings.params)


def _learning(spalm: Any) -> dict[str, Any]:
    """The fields of `config.retrieval.spalm` that may differ where training continues."""
    return dict(learning_rate=spalm.learning_rate, num_steps=spalm.num_steps)


def _keep_config(experiment: Experiment) -> None:
    """Leaves `config.json` for later commands; a folder where a model was trained has one."""
    path = experiment.workdir / 'config.json'
    if jax.process_index() == 0 and not path.exists():
        saved.write(experiment.config.copy_and_resolve_references(), path)


def train(experiment: Experiment, split: str = 'train') -> Path:
    """`--mode=train_spalm`: trains the gate, and the model with it unless it is frozen.

    Looks up the neighbours first, if that was not done. Resumes from the newest checkpoint in
    WORKDIR/spalm/checkpoints, if any. Metrics and the result are in WORKDIR/spalm.

    Raises:
      UsageError: the model has no checkpoint or datastore, the model does not have
        one output table, or training was begun with another model or datastore.
    """
    config = experiment.config
    _require_plain(config.model)
    _require_apart(config.train)
    params, keys = _start(experiment), open_keys(experiment)
    folder = own_folder(experiment.workdir / 'spalm')
    _keep_config(experiment)
    settings = config.retrieval.spalm
    num_steps = settings.num_steps or config.train.num_steps
    progress = Progress(num_steps, log_every=config.train.log_every)
    if config.train.ema_decay:
        progress.say('Note: config.train.ema_decay: SPALM keeps no average of its own parameters.')
    lists = look_up(experiment.workdir, keys, split, settings.k, progress.say)
    task = SpalmTask(experiment, params, keys, lists, split, folder)
    saver = Checkpointer(
        folder / 'checkpoints',
        every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        identity=task.identity,
        report=progress.say,
        going_on=GoingOn(settings=settings_of(config, retrieval=dict(spalm=_learning(settings)))),
        otherwise=f'Delete {folder} to train a gate for this one.',
    )
    ended = runner.run(task, saver=saver, writer=Writer(folder), progress=progress)
    if ended.finished:
        progress.say(f'SPALM after {ended.step:,} steps: {folder}')
    return folder


def load(experiment: Experiment, keys: Keys) -> tuple[Any, Gate]:
    """The parameters and the gate that `train` wrote.

    Raises:
      UsageError: there are none, or they belong to other settings; the message names which.
    """
    folder = experiment.workdir / 'spalm'
    if not (folder / 'about.json').exists():
        raise UsageError(f'{folder}: no trained gate; make one with --mode=train_spalm.')
    parameters = folder / 'parameters.safetensors'
    tensors, _ = tensor_file.read(parameters)
    about = schema.require(
        json_file.read(folder / 'about.json'), schema.fields({}, others=True), folder / 'about.json'
    )
    different = differing_fields(about, dataclasses.asdict(describe(experiment, keys)))
    if different:
        raise UsageError(
            f'{folder}: was trained with other settings:\n  '
            + '\n  '.join(different)
            + '\nGo back to these settings, or delete that folder and run --mode=train_spalm.'
        )

    def take(name: str, like: Any) -> np.ndarray:
        then = f': delete {folder} and run --mode=train_spalm'
        tensor_file.require_shapes(tensors, {name: like}, str(parameters), then)
        return tensors[name]

    weights = jax.ShapeDtypeStruct((experiment.config.model.d_model,), np.float32)
    scale = (
        take('log_scale', jax.ShapeDtypeStruct((), np.float32)) if about['learned_scale'] else None
    )
    gate = Gate(take('gate', weights), scale)
    if about['frozen']:
        return _start(experiment), gate
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(
            take('params/' + parameter_path(path), leaf), leaf.sharding
        ),
        experiment.abstract_state.params,
    )
    return params, gate


def scored(
    experiment: Experiment, trained: Trained, text: Text, limit: int = 0
) -> Iterator[tuple[Inputs, np.ndarray, Scores]]:
    """Scores a text by SPALM, at most `limit` segments per lane as in `Evaluator.evaluate`.

    0 = all. Yields every segment, the rows of its tokens in the lists, and its scores, as numpy
    arrays.
    """
    model, lanes = experiment.evaluation_model, experiment.config.evaluate.num_lanes
    read = jax.jit(
        lambda trained, memory, inputs: gated.read(
            model, trained.params, trained.spalm, memory, inputs
        )
    )
    memory = jax.jit(lambda params: fresh_state(model, params, lanes))(trained.params)
    zeros, limit = np.zeros((lanes,), np.int32), shared_out(text.documents, lanes, limit)[1]
    for number, (inputs, rows, _) in enumerate(text.segments(Cursor(zeros, zeros)), 1):
        memory, (scores, _) = read(trained, memory, inputs)
        yield inputs, rows, jax.tree.map(np.asarray, scores)
        if number == limit:
            return


def parts(experiment: Experiment, keys: Keys, split: str, limit: int = 0) -> Iterator[Part]:
    """What the model of the keys reads, as `Reader.parts`, with the losses of SPALM.

    For mixing SPALM's probabilities with those by neighbours, which need many more of them.
    """
    _require_plain(experiment.config.model)
    config, trained = experiment.config, Trained(*load(experiment, keys))
    lists = look_up(experiment.workdir, keys, split, config.retrieval.spalm.k, print)
    nll = np.zeros((len(lists.numbers),), np.float32)
    for inputs, rows, scores in scored(experiment, trained, _text(experiment, lists, split)):
        counted = inputs.counted > 0
        nll[rows[counted]] = scores.nll[counted]
    context = config.retrieval.context
    reader = Reader(keys.experiment, keys.params, split, context=context, wanted=('keys',))
    places = Places(lists.firsts)
    for part in map(in_text_order, reader.parts(limit)):
        rows = places.rows(part)
        yield part.replace(nll=np.where(rows >= 0, nll[np.maximum(rows, 0)], 0))


def _text(experiment: Experiment, lists: Lists, split: str) -> Text:
    """A split, read once as `config.evaluate` says."""
    reading = experiment.config.evaluate
    return Text(
        experiment.corpus(split),
        lists,
        num_lanes=reading.num_lanes,
        length=reading.segment_length,
        context=reading.context,
    )


def evaluate(experiment: Experiment, split: str = 'test') -> dict[str, Result]:
    """Scores a split by the model of the keys and by SPALM, with and without neighbours.

    Prints a table and writes the gate's values and some tokens with their neighbours, see
    `spalm_report.py`.

    Raises:
      UsageError: there is no gate or no datastore for these settings.
    """
    config, progress = experiment.config, Progress(0, log_every=0)
    _require_plain(config.model)
    keys = open_keys(experiment)
    trained = Trained(*load(experiment, keys))
    settings, reading = config.retrieval.spalm, config.evaluate
    lists = look_up(experiment.workdir, keys, split, settings.k, progress.say)
    limit = reading.max_test_segments
    of_keys = keys.experiment
    base, _ = Evaluator(of_keys.evaluation_model, of_keys.mesh, of_keys.config).evaluate(
        keys.params, of_keys.corpus(split), split, max_segments=limit
    )
    text = _text(experiment, lists, split)
    sums, count, num_bytes = np.zeros(2), 0, 0.0
    report = Report(config.retrieval.report_tokens)
    for inputs, rows, scores in scored(experiment, trained, text, limit):
        counted = inputs.counted > 0
        sums += scores.nll[counted].sum(dtype=float), scores.alone[counted].sum(dtype=float)
        count += int(counted.sum())
        num_bytes += float(inputs.num_bytes.sum())
        report.add(inputs, lists.numbers, rows, scores)
    protocol = (
        f'segment {reading.segment_length}, {number_of(reading.num_lanes, "lane")}, '
        f'{"the first" if limit else "all"} {count:,} tokens of {split}; K {settings.k}'
    )
    names = {f'{split}, SPALM without neighbours': sums[1], f'{split}, SPALM': sums[0]}
    results = {split if of_keys is experiment else f'{split}, model of the keys': base}
    results |= {
        name: Result(split, dict(nll=nll, scored=count, num_bytes=num_bytes), protocol)
        for name, nll in names.items()
    }
    paths = report.write(keys.store, experiment.tokenizer, experiment.workdir, results)
    progress.close()
    show(progress, results, paths)
    return results
