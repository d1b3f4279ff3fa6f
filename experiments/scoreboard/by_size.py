"""Accuracy of a trained run by distance (recall tasks), or by length and pairs (MQAR), as JSON.

python -m experiments.scoreboard.by_size --config=configs/NAME.py[:variant] --workdir=DIR \
    --output=FILE.json [--noreset] [--config.data.task.distances='(64, 4096)']

`kept` is the share of right answers on the test split; `reset` is that with the memory reset before
every segment, unless `--noreset`.
"""

import json
from pathlib import Path
from typing import Any

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.data.tasks.mqar import as_sizes
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'by_size.json', 'JSON file for the results.')
    _RESET = flags.DEFINE_bool('reset', True, 'Also score with the memory reset.')


def settings_by_size(data: Any) -> dict[str, dict[str, Any]]:
    """The fields of the task for every size: its label to `config.data.task` with this size only.

    Raises:
      UsageError: a source without distances or sizes.
    """
    task = data.task.to_dict()
    if data.source == 'recall':
        return {f'{int(n)}': task | {'distances': (int(n),)} for n in task['distances']}
    if data.source == 'mqar':
        sizes = as_sizes(task['sizes'])
        return {
            f'{length} x {pairs}': task | {'sizes': ((length, pairs),)} for length, pairs in sizes
        }
    raise UsageError(
        f'config.data.source = {data.source!r}: has no sizes; allowed are recall and mqar.'
    )


def by_size(experiment: Experiment, reset: bool) -> list[dict[str, Any]]:
    """For every size: `size`, `answers`, and shares of right answers `kept` and, if asked, `reset`.

    Raises:
      UsageError: there is no checkpoint, or the source has no sizes.
    """
    data = experiment.config.data
    settings = settings_by_size(data)
    params, _ = experiment.restore_parameters()
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)
    rows = []
    for label, task in settings.items():
        corpus = TASKS[data.source].corpus(task, 'test', data.seed)
        result, _ = evaluator.evaluate(params, corpus, 'test')
        rows.append({'size': label, 'answers': result.answers, 'kept': result.exact_match})
        if reset:
            result, _ = evaluator.evaluate(params, corpus, 'test', reset=True)
            rows[-1]['reset'] = result.exact_match
    return rows


def _main(experiment: Experiment) -> None:
    rows = by_size(experiment, _RESET.value)
    Path(_OUTPUT.value).write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    entry.command(_main)
