"""Scores that belong to one source of data, by `config.data.source`."""

from collections.abc import Callable
from typing import Any

import jax

from longmem_jax.experiment import Experiment
from longmem_jax.generation import translator
from longmem_jax.hosts.commands import dialogue, superglue
from longmem_jax.hosts.evaluation import overlap
from longmem_jax.reporting.progress import Progress

# source -> (experiment, parameters, split, progress) -> results by name, as JSON
SCORES: dict[str, Callable[..., dict[str, Any]]] = {
    'cmu_dog': dialogue.respond_split,
    'superglue': superglue.answer_split,
    'superglue_pairs': superglue.classify_split,
}


def score(experiment: Experiment, params: Any, split: str, progress: Progress) -> dict[str, Any]:
    """The scores of the source of `experiment`, by name, as JSON; also printed and written to files.

    {} if it has none, and with several processes, which cannot make them: that is said.
    """
    source = experiment.config.data.source
    if source not in SCORES:
        return {}
    if jax.process_count() > 1:
        progress.say(
            f'Not scored: the answers of {source} are written by one process; use --mode=evaluate '
            'without --distributed.'
        )
        return {}
    return SCORES[source](experiment, params, split, progress)


def require(config: Any) -> None:
    """Raises `UsageError` if a library is missing that the scores of `config` need."""
    if config.data.source == 'cmu_dog' and config.data.task.respond:
        overlap.require_libraries()
    if config.model.kind == 'seq2seq':
        translator.require_libraries()
