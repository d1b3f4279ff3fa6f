"""Warm start: a new model begins with the parameters of a trained one.

What has the same path and shape is taken over; what only the new model has stays as it was drawn, such
as a memory where there was none, or more memory tokens.
"""

from collections.abc import Callable
from typing import Any

import jax

from longmem_jax.errors import UsageError
from longmem_jax.training.optimizer import parameter_path


def graft(
    own: Any,
    other: Any,
    source: str,
    report: Callable[[str], None],
    growing: tuple[str, ...] = (),
) -> Any:
    """`own` parameters with those of `other` that have the same path and shape.

    Args:
      own: parameters of the run that begins.
      other: of the run that it begins with.
      source: where those are from, for messages.
      report: gets a line that names what is new.
      growing: endings of paths whose parameters may have more rows in `own`, such as memory tokens;
        the rows added begin as they would in a new model.

    Raises:
      UsageError: a parameter of another shape, or none in common.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(other)
    known = {parameter_path(path): leaf for path, leaf in flat}
    new: list[str] = []

    def take(path, leaf):
        name = parameter_path(path)
        found = known.get(name)
        if found is None:
            new.append(name)
            return leaf
        if name.endswith(growing) and found.shape[0] < leaf.shape[0]:
            new.append(f'rows {found.shape[0]} .. {leaf.shape[0] - 1} of {name}')
            return leaf.at[: found.shape[0]].set(found.astype(leaf.dtype))
        if found.shape != leaf.shape:
            raise UsageError(
                f'config.train.start_from = {source}: its {name} is {found.shape}, that of this '
                f'model {leaf.shape}; only what a memory adds may differ.'
            )
        return jax.device_put(found.astype(leaf.dtype), leaf.sharding)

    grafted = jax.tree_util.tree_map_with_path(take, own)
    if len(new) == len(jax.tree.leaves(own)):
        raise UsageError(f'config.train.start_from = {source}: no parameter in common.')
    added = f'; new: {", ".join(new)}' if new else ''
    report(f'Began with the parameters of {source}{added}.')
    return grafted
