"""Configurations that earlier versions saved, with the fields that were added after."""

from typing import Any

from longmem_jax.config.base import base
from longmem_jax.config.sections import sections
from longmem_jax.memory.registry import LAYERS


def completed(saved: Any, current: Any) -> Any:
    """`saved`, a `config.model`, with the fields that it lacks and `current` has, at the defaults
    that change nothing. Sections of layers that it lacks stay missing, and so do fields without a
    default in `config.base` or in their layer.
    """
    return _completed(saved, current, defaults_of(saved))


def completed_config(saved: dict[str, Any]) -> dict[str, Any]:
    """A whole saved configuration with the fields of `config.base` and of its layers that it lacks."""
    defaults = base(*(name for name in sections() if name in saved)).to_dict()
    defaults['model'] = defaults_of(saved.get('model', {}))
    return _completed(saved, defaults, defaults)


def defaults_of(model: Any) -> dict[str, Any]:
    """Defaults of the general fields of `config.model`, and of the layers that `model` has."""
    general = {name: value for name, value in base().model.to_dict().items() if name not in LAYERS}
    return general | {name: LAYERS[name].defaults() for name in LAYERS if name in model}


def _completed(saved: Any, current: Any, defaults: Any) -> Any:
    if not all(isinstance(part, dict) for part in (saved, current, defaults)):
        return saved
    added = {name: defaults[name] for name in current if name in defaults and name not in saved}
    inside = {
        name: _completed(value, current.get(name), defaults.get(name))
        for name, value in saved.items()
    }
    return added | inside
