"""Scores that belong to one source of data, by `config.data.source`."""

from collections.abc import Callable
from typing import Any

from longmem_jax.commands import superglue

# source -> (experiment, parameters, split, progress) -> results by name, as JSON
SCORES: dict[str, Callable[..., dict[str, Any]]] = {'superglue': superglue.answer_split}
