"""Warm start: a new model begins with the parameters of a trained one.

Parameters with the same path and shape are copied; those that only the new model has keep their initial
values, such as a memory where there was none, or more memory tokens.
"""

import re
from collections.abc import Callable
from typing import Any

import jax

from longmem_jax.errors import UsageError
from longmem_jax.training.optimizer import parameter_path


def warm_start(
    initial: Any,
    trained: Any,
    source: str,
    report: Callable[[str], None],
    growing: tuple[str, ...] = (),
) -> Any:
    """The `initial` parameters, replaced by `trained` ones of the same path and shape.

    Args:
      report: called with a line that names what is new, and what of `trained` is not used.
      growing: suffixes of paths whose parameters may have more rows in `initial`, such as memory
        tokens; the additional rows keep their initial values.

    Returns:
      A tree like `initial`.

    Raises:
      UsageError: a parameter has another shape, or none is in common.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(trained)
    trained_by_name = {parameter_path(path): leaf for path, leaf in flat}
    new, left = [], set(trained_by_name)

    def take(path: Any, leaf: jax.Array) -> jax.Array:
        name = parameter_path(path)
        value = trained_by_name.get(name)
        left.discard(name)
        if value is None:
            new.append(name)
            return leaf
        if name.endswith(growing) and value.shape[0] < leaf.shape[0]:
            new.append(f'rows {value.shape[0]} .. {leaf.shape[0] - 1} of {name}')
            return leaf.at[: value.shape[0]].set(value.astype(leaf.dtype))
        if value.shape != leaf.shape:
            raise UsageError(
                f'config.train.start_from = {source}: its {name} has shape {value.shape}, this '
                f"model's has {leaf.shape}; only what a memory adds may differ."
            )
        return jax.device_put(value.astype(leaf.dtype), leaf.sharding)

    grafted = jax.tree_util.tree_map_with_path(take, initial)
    if len(new) == len(jax.tree.leaves(initial)):
        raise UsageError(f'config.train.start_from = {source}: no parameter in common.')
    added = f'; new: {_listed(new)}' if new else ''
    unused = f'; not used: {_listed(sorted(left))}' if left else ''
    report(f'Began with the parameters of {source}{added}{unused}.')
    return grafted


def _listed(names: list[str]) -> str:
    """Paths, those that differ only in the block as one: 'block_0..11/attention/gate'."""
    blocks: dict[str, list[int]] = {}
    for name in names:
        number = re.match(r'block_(\d+)/', name)
        rest = name[number.end() :] if number else name
        blocks.setdefault(rest if number else f'/{name}', []).extend(
            [int(number[1])] if number else []
        )
    lines = []
    for rest, found in blocks.items():
        numbers = sorted(found)
        first = ','.join(map(str, numbers))
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            first = f'{numbers[0]}..{numbers[-1]}'
        lines.append(f'block_{first}/{rest}' if numbers else rest[1:])
    return ', '.join(lines)
