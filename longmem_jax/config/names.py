"""Names that a memory of another package cannot have, as every config uses them for something else."""

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


def require_free(name: str) -> None:
    """Raises `UsageError` if a new memory cannot have this name."""
    if (field := taken().get(name)) is not None:
        raise UsageError(f'memory {name!r}: configs have a {field}; choose another name')
