"""Scores that belong to one source of data, see `data.sources.DataSource`."""

from typing import Any

import jax

from longmem_jax.data.sources import SOURCES
from longmem_jax.experiment import Experiment
from longmem_jax.generation import translator
from longmem_jax.registry import load
from longmem_jax.reporting.progress import Progress


def has_scores(source: str) -> bool:
    """Whether a value of `config.data.source` has scores of its own."""
    return source in SOURCES and bool(SOURCES[source].scores)


def score(experiment: Experiment, params: Any, split: str, progress: Progress) -> dict[str, Any]:
    """The scores of the source of `experiment`, by name, as JSON; also printed and written to files.

    {} if it has none, and with several processes, which cannot make them: that is said.
    """
    source = experiment.config.data.source
    if not has_scores(source):
        return {}
    if jax.process_count() > 1:
        progress.say(
            f'Not scored: the answers of {source} are written by one process; use --mode=evaluate '
            'without --distributed.'
        )
        return {}
    return load(SOURCES[source].scores)(experiment, params, split, progress)


def require(config: Any) -> None:
    """Raises `UsageError` if a library or data are missing that the scores of `config` need."""
    source = config.data.source
    if source in SOURCES and SOURCES[source].require:
        load(SOURCES[source].require)(config)
    if config.model.kind == 'seq2seq':
        translator.require_libraries()
