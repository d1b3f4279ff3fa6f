"""Scores that belong to one source of data, by `config.data.source`."""

from collections.abc import Callable
from typing import Any

from longmem_jax.commands import dialogue, superglue
from longmem_jax.evaluation.overlap import require_libraries

# source -> (experiment, parameters, split, progress) -> results by name, as JSON
SCORES: dict[str, Callable[..., dict[str, Any]]] = {
    'cmu_dog': dialogue.respond_split,
    'superglue': superglue.answer_split,
}


def require(config: Any) -> None:
    """Raises `UsageError` if a library is missing that the scores of `config` need."""
    if config.data.source == 'cmu_dog' and config.data.task.respond:
        require_libraries()
