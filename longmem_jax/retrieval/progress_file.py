"""The position of a pass over a text in a file, so that a later process resumes from it."""

from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from longmem_jax.data.lanes import Cursor
from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file
from longmem_jax.retrieval.reading import Reader


def save_position(path: Path, reader: Reader, **arrays: np.ndarray) -> None:
    """Writes memories and position after the last part, and `arrays`, to a file."""
    leaves = jax.tree.leaves(reader.memory)
    saved = {f'memory_{i:05}': np.asarray(leaf) for i, leaf in enumerate(leaves)}
    saved |= {
        'document': np.asarray(reader.cursor.document),
        'offset': np.asarray(reader.cursor.offset),
        'ordinals': reader.ordinals,
        **arrays,
    }
    # safetensors writes the buffer of an array as it is, also of a view.
    saved = {key: np.ascontiguousarray(array) for key, array in saved.items()}
    with whole_file(path) as partial:
        save_file(saved, partial)


def go_on(path: Path, reader: Reader) -> dict[str, np.ndarray]:
    """Moves a reader to the position in a file.

    Returns:
      All arrays of the file.

    Raises:
      UsageError: it cannot be read, or its memories have other shapes.
    """
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f'{path}: cannot be read ({error}); delete {path.parent}, and start again.'
        ) from error
    leaves, structure = jax.tree.flatten(reader.memory)
    for i, leaf in enumerate(leaves):
        saved_leaf = saved.get(f'memory_{i:05}')
        if saved_leaf is None or saved_leaf.shape != leaf.shape:
            raise UsageError(
                f'{path}: memories of another shape; delete {path.parent}, and start again.'
            )
        leaves[i] = jax.device_put(saved_leaf, leaf.sharding)
    reader.memory = jax.tree.unflatten(structure, leaves)
    reader.cursor = Cursor(saved['document'], saved['offset'])
    reader.ordinals = saved['ordinals']
    return saved
