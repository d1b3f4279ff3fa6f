"""The position of a pass over a text in a file, so that a later process resumes from it."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from longmem_jax.data.lanes import Cursor
from longmem_jax.errors import UsageError
from longmem_jax.retrieval.reading import Reader
from longmem_jax.untrusted import tensor_file


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
    tensor_file.write(path, saved, {})


def go_on(path: Path, reader: Reader, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Moves a reader, at the beginning of its text, to the position in a file; returns its arrays.

    `like`: other arrays that the file must have, with these shapes and dtypes.

    Raises:
      UsageError: it cannot be read, was changed, or has arrays of other shapes or impossible numbers.
    """
    where = f'{path} (delete {path.parent}, and start again)'
    saved, metadata = tensor_file.read(path, where)
    if tensor_file.CHECKSUM not in metadata:
        raise UsageError(f'{where}: has no checksum.')
    leaves, structure = jax.tree.flatten(reader.memory)
    lanes = np.asarray(reader.cursor.document)
    wanted = {f'memory_{i:05}': leaf for i, leaf in enumerate(leaves)}
    wanted |= {'document': lanes, 'offset': lanes, 'ordinals': reader.ordinals, **like}
    tensor_file.require_shapes(saved, wanted, where)
    tensor_file.require_finite(saved, where)
    cursor = Cursor(saved['document'], saved['offset'])
    reader.require_place(cursor, saved['ordinals'], where)
    reader.memory = jax.tree.unflatten(
        structure,
        [jax.device_put(saved[f'memory_{i:05}'], leaf.sharding) for i, leaf in enumerate(leaves)],
    )
    reader.cursor, reader.ordinals = cursor, saved['ordinals']
    return saved
