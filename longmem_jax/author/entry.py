"""The `Entry` of a recurrent memory, made from its class."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author.fields import documented, problems, require_names
from longmem_jax.author.recurrent import RecurrentMemory
from longmem_jax.contract import Entry, Fields, Graft, LayerType, Recipe, Recipes, Scale
from longmem_jax.errors import UsageError, require_type
from longmem_jax.host_layer import HostLayer
from longmem_jax.views import Seen, Series, View

WRITTEN = ('parts', 'state', 'inputs', 'step', 'output')  # what every author writes
Check = Callable[[Any, Any, int], list[str]]


def memory(
    name: str,
    module: type,
    *,
    check: Check | None = None,
    recipe: Recipes | Callable[[Scale], dict[str, Any]] | None = None,
    graft: Graft | None = None,
    hosts: Mapping[str, HostLayer] | None = None,
    view: View | None = None,
    toy: dict[str, Any] | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
    **others: Any,
) -> Entry:
    """The entry of a `RecurrentMemory` that stands in place of attention.

    Args:
      name: in configs.
      module: the class; its docstring gets the list of its fields.
      check: rules beyond those that the fields declare.
      recipe: fields for a model of any size, beyond `chunk`; or `contract.Recipes`.
      graft: how it takes the place of attention in a pretrained decoder; None = by the projections,
        tuned afterwards.
      hosts: as in `contract.Entry`.
      view: None = the series of its arrays and of what it logs.
      toy: fields of a small layer, beyond `chunk`.
      variants: as in `contract.Entry`.
      **others: further attributes of `contract.LayerType`.

    Raises:
      UsageError: no class of that kind, a field's `divides` or `share` is no setting of models, a method
        is missing, or `setup` is written in place of `parts`.
    """
    require_type('name', name, str, "memory('gated_sums', GatedSums, ...): a name, then the class")
    if not (isinstance(module, type) and issubclass(module, RecurrentMemory)):
        what = getattr(module, '__name__', repr(module))
        raise UsageError(
            f'{name}: {what} is no RecurrentMemory; derive a class from it, or make a contract.Entry '
            'of a MemoryLayer'
        )
    if module.setup.__qualname__ != RecurrentMemory.setup.__qualname__:
        raise UsageError(f'{name}: {module.__name__} has a setup; call it parts, which setup calls')
    require_names(module)
    written = {each: getattr(module, each).__qualname__.partition('.')[0] for each in WRITTEN}
    missing = [each for each, owner in written.items() if owner == 'RecurrentMemory']
    if missing:
        raise UsageError(
            f'{name}: {module.__name__} has no {", ".join(missing)}; see RecurrentMemory for what each '
            'must return.'
        )
    if 'Attributes:' not in (module.__doc__ or ''):
        module.__doc__ = documented(module)

    def all_problems(fields: Fields, model: Any, segment_length: int) -> list[str]:
        found = problems(module, fields, model)
        return found or (check(fields, model, segment_length) if check else [])

    def made(scale: Scale) -> Recipe:
        return Recipe(
            {name: dict(chunk=min(scale.segment, 64)) | (recipe(scale) if callable(recipe) else {})}
        )

    return Entry(
        name=name,
        layer=LayerType(module, check=all_problems, **others),
        recipe=recipe if isinstance(recipe, Recipes) else Recipes({name: made}),
        graft=graft or REPLACED,
        hosts=hosts or {},
        view=view or View(series=series),
        toy=dict(chunk=3) | (toy or {}),
        variants=variants or {},
    )


REPLACED = Graft(
    lambda scale, position: {},
    exact=False,
    how='projections and embeddings are kept; the memory replaces the softmax, so it must be tuned',
    positions="those in the host's embeddings; rotary ones are lost",
)


def series(seen: Seen) -> Series:
    """Sizes of the memory's arrays and what the segment changed; by token what `inputs` logs."""
    by_segment: dict[str, jax.Array] = {}
    paths = jax.tree_util.tree_leaves_with_path(seen.state.memory)
    for (path, old), new in zip(paths, jax.tree.leaves(seen.new.memory), strict=True):
        name = str(getattr(path[-1], 'name', getattr(path[-1], 'key', 'S'))) if path else 'S'
        if jnp.issubdtype(old.dtype, jnp.floating) and not _is_rest(path):
            by_segment |= {f'size of {name}': _norms(new), f'change of {name}': _norms(new - old)}
    return Series(logged(seen), by_segment)


def logged(seen: Seen) -> dict[str, jax.Array]:
    """What the memory logs by token, `Series.by_token`."""
    found = seen.layer.logged(seen.x, seen.state, seen.segment)
    return {name.replace('_', ' '): lines for name, lines in found.items()}


def _is_rest(path: Any) -> bool:
    """Whether a leaf is what rounding has cut off a sum."""
    return any(getattr(key, 'name', '') == 'rest' for key in path)


def _norms(leaf: jax.Array) -> jax.Array:
    """Norms over all axes but those of the batch and the heads, float32 [batch, heads]."""
    return jnp.sqrt(jnp.square(leaf.astype(jnp.float32)).sum(axis=tuple(range(2, leaf.ndim))))
