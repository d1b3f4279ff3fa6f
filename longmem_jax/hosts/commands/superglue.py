"""Metrics of a SuperGLUE task after training, and in `--mode=evaluate`."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.experiment import Experiment
from longmem_jax.files import write, write_json
from longmem_jax.hosts.data.superglue import TASKS, read
from longmem_jax.hosts.evaluation.classes import classify
from longmem_jax.hosts.evaluation.superglue import answer, majority, scores
from longmem_jax.reporting.progress import Progress


def answer_split(
    experiment: Experiment, params: Any, split: str, progress: Progress
) -> dict[str, Any]:
    """Answers the questions of a split with the words of the classes, and reports the metrics.

    See `_report`.
    """
    config = experiment.config
    name = config.data.task.name
    examples = read(config.data.path, name, split)
    progress.say(f'Answering {len(examples):,} examples of {name}, {split} ...')
    likelihood = Likelihood(
        experiment.evaluation_model,
        params,
        experiment.mesh,
        config.evaluate.num_lanes,
        progress.say,
    )
    found = answer(
        likelihood, experiment.tokenizer, experiment.conventions(), examples, TASKS[name].answers
    )
    return _report(experiment, split, examples, found, progress)


def classify_split(
    experiment: Experiment, params: Any, split: str, progress: Progress
) -> dict[str, Any]:
    """The same of a classifier, with `config.data.source = 'superglue_pairs'`."""
    corpus: Any = experiment.corpus(split)
    model: Any = experiment.evaluation_model
    name = experiment.config.data.task.name
    progress.say(f'Classifying {len(corpus):,} examples of {name}, {split} ...')
    found = classify(model, params, experiment.mesh, corpus, experiment.config.evaluate.num_lanes)
    return _report(experiment, split, corpus.examples, found, progress)


def _report(
    experiment: Experiment,
    split: str,
    examples: Sequence[Any],
    found: np.ndarray,
    progress: Progress,
) -> dict[str, Any]:
    """Metrics of the classes `found`, int64 [examples], and those of the most frequent class.

    Prints them; writes the answers to `WORKDIR/answers.SPLIT.jsonl`, under the labels of the original
    files, and the result to `WORKDIR/superglue.SPLIT.json`.

    Returns:
      'superglue': name of the task, its metrics and their mean 'score', the same for the most frequent
      class ('majority'), number of examples.
    """
    name = experiment.config.data.task.name
    result = {
        'task': name,
        'split': split,
        'examples': len(examples),
        **scores(name, examples, found),
        'majority': scores(name, examples, majority(examples)),
    }
    if jax.process_index() == 0:
        lines = (
            json.dumps({'idx': index, 'label': TASKS[name].labels[label]}) + '\n'
            for index, label in enumerate(found)
        )
        write(experiment.workdir / f'answers.{split}.jsonl', ''.join(lines))
        path = experiment.workdir / f'superglue.{split}.json'
        write_json(path, result)
    columns = list(result['majority'])
    progress.table(
        f'{name}, {split}',
        ('', *columns),
        [
            ('model', *(f'{result[metric]:.2%}' for metric in columns)),
            ('most frequent class', *(f'{result["majority"][metric]:.2%}' for metric in columns)),
        ],
    )
    return {'superglue': result}
