"""Names that no field or memory of another package can have: configs use them for something else."""

import ml_collections

from longmem_jax.config.base import base
from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS


def taken() -> dict[str, str]:
    """Names to what has them: 'num_heads' to 'config.model.num_heads'; without those of memories."""
    ours = {*LAYERS.own}
    fields = {*base().model, *KINDS} - ours
    recipes = {name for own in ours for name in LAYERS[own].recipe.by_name} - ours
    return {name: f'config.model.{name}' for name in fields} | {
        name: f'memory={name}' for name in recipes
    }


def is_name(field: str) -> bool:
    """Whether a field can have this name: no method of a config, and without dots, which part a path."""
    return bool(field) and '.' not in field and not hasattr(ml_collections.ConfigDict, field)


def require_free(name: str) -> None:
    """Raises `UsageError` if a new memory cannot have this name."""
    if (field := taken().get(name)) is not None:
        raise UsageError(f'memory {name!r}: configs have a {field}; choose another name')
