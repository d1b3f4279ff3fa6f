"""The names of `:memory=` that are one layer with other fields, and what tells them apart."""

import functools
from typing import Any

from longmem_jax.config.base import base
from longmem_jax.config.recipes import scale_of
from longmem_jax.memory.registry import LAYERS


@functools.cache
def told_apart(layer: str) -> dict[str, dict[str, Any]]:
    """Every name of a layer, with the fields in which its names differ; {} if it has one name."""
    scale, defaults = scale_of(base()), LAYERS[layer].defaults()
    by_name = {
        name: defaults | dict(recipe(scale).sections).get(layer, {})
        for name, recipe in LAYERS[layer].recipe.by_name.items()
    }
    differ = [f for f in defaults if len({repr(fields[f]) for fields in by_name.values()}) > 1]
    return {name: {f: fields[f] for f in differ} for name, fields in by_name.items()}


def called(layer: str, model: Any) -> str:
    """The name whose choices a layer of `config.model` has, sizes aside; its own if there is none."""
    for name, fields in told_apart(layer).items():
        chosen = {f: value for f, value in fields.items() if isinstance(value, str | bool)}
        if chosen and all(model[layer][f] == value for f, value in chosen.items()):
            return name
    return layer
