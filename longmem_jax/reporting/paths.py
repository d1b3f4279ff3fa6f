"""Names of the arrays in a memory."""

from typing import Any

import jax


def leaf_path(path: tuple[Any, ...]) -> str:
    """The name of a leaf of a memory: 'block_2/attention/rows/count'."""
    names = []
    for key in path:
        if isinstance(key, jax.tree_util.SequenceKey):
            names.append(f'block_{key.idx}')
        else:
            names.append(str(getattr(key, 'name', getattr(key, 'key', key))))
    return '/'.join(names)
