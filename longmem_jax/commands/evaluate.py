"""`--mode=evaluate`: scores a split with the newest checkpoint, with memory and with memory reset."""

import contextlib

import jax
import numpy as np

from longmem_jax.commands import by_source
from longmem_jax.commands.floors import show_beside
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.commands.task_series import by_value, named
from longmem_jax.data.documents import require_split
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator, passes
from longmem_jax.evaluation.result import Result
from longmem_jax.evaluation.tables import show
from longmem_jax.experiment import Experiment
from longmem_jax.generation import cache
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation.reader import Reader
from longmem_jax.models.kinds import KINDS
from longmem_jax.models.stack import has_table, is_plain
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.waiting import Waiting


def evaluate(
    experiment: Experiment, split: str = 'test', *, save_state: str = '', load_state: str = ''
) -> dict[str, Result]:
    """Scores a split and prints the table.

    Args:
      save_state: file for the memory of the last document (needs a single lane).
      load_state: file with the memory that every document starts from; what the task or the source
        adds to the table, such as scores by length, is left out.

    Returns:
      'SPLIT' and 'SPLIT, memory reset' to their results; with `config.evaluate.context` only the
      first, without memory.

    Raises:
      UsageError: an unknown split, no checkpoint, a memory of another model, or `save_state` with
        several lanes or overlapping windows.
    """
    config = experiment.config.evaluate
    require_split(split)
    if save_state:
        state_file.require_writable(save_state)
    if save_state and config.num_lanes != 1:
        raise UsageError(
            f'--save_state with config.evaluate.num_lanes = {config.num_lanes}: saving needs a '
            'single lane; set --config.evaluate.num_lanes=1.'
        )
    if save_state and config.context:
        raise UsageError(
            f'--save_state with config.evaluate.context = {config.context}: overlapping windows are '
            'read without a memory, so there is none to save; set --config.evaluate.context=0.'
        )
    progress = Progress(0, log_every=0)
    params, step = newest_parameters(experiment, progress.say)
    average = ', the average of the parameters' if experiment.config.train.ema_decay else ''
    progress.say(f'Evaluating step {step:,} of {experiment.workdir}{average}.')
    model = experiment.evaluation_model
    about = state_file.described(model)
    evaluator = Evaluator(model, experiment.mesh, experiment.config)
    if cache.has_cache(model.config):
        progress.say(cache.in_words(model, config.num_lanes))
        if is_plain(model.config) and has_table(model.config):
            progress.say(
                f'texts of more than {model.config.num_positions:,} tokens are read in windows of whole '
                'segments, each with an empty cache'
            )
    corpus, results = experiment.corpus(split), {}
    initial = evaluator.initial_state(params, config.num_lanes)
    if load_state:
        one = jax.tree.map(lambda leaf: leaf[:1], initial)
        state, pending = state_file.load(load_state, one, about, params)
        # The tokens of an open segment are written as a short segment.
        state = Reader(model, params, state, pending).close()
        initial = jax.tree.map(
            lambda leaf, like: jax.device_put(
                np.broadcast_to(np.asarray(leaf), like.shape), like.sharding
            ),
            state,
            initial,
        )
    for name, reset in passes(experiment.config, split).items():
        waiting = Waiting(f'Scoring {name}', 0, 'tokens')

        def advance(_: int, tokens: int, waiting: Waiting = waiting) -> None:
            waiting.update(tokens)

        with contextlib.closing(waiting):
            results[name], memory = evaluator.evaluate(
                params,
                corpus,
                split,
                reset=reset,
                initial=None if reset else initial,
                max_segments=config.max_test_segments,
                report=advance,
            )
        if save_state and not reset:
            size = state_file.save(save_state, memory, np.zeros((1, 0), np.int32), about, params)
            progress.say(f'memory saved: {save_state}, {size:,} bytes')
    paths = {}
    source = experiment.config.data.source
    if source in TASKS and TASKS[source].series and load_state:
        progress.say(f'not scored by {named(source)}: --load_state is the memory of one text')
    elif source in TASKS and TASKS[source].series:
        figure = by_value(experiment, evaluator, params, split, progress)
        paths = {f'by {named(source)}': figure}
    if load_state and by_source.has_scores(source):
        progress.say(f'no answers of {source} are written: --load_state is the memory of one text')
    else:
        by_source.score(experiment, params, split, progress)
    progress.close()
    show(progress, results, paths)
    if not KINDS[experiment.config.model.kind].by_example:  # rules read texts
        show_beside(progress, experiment, split)
    return results
