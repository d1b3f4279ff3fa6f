"""Memory files: a model's memory of a text, saved as safetensors.

A file holds the memories at the last segment border and the tokens read since. These are read again
after loading, so that the continuation is the same bit for bit.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from longmem_jax import files
from longmem_jax.config import earlier
from longmem_jax.errors import UsageError

FORMAT = 'longmem_jax state 1'
PENDING = 'pending'


def fingerprint(params: Any) -> str:
    """A checksum of all parameters, since memories are only valid for the model that wrote them."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    value = 0
    for path, leaf in flat:
        value = zlib.crc32(jax.tree_util.keystr(path).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).tobytes(), value)
    return f'{value:08x}'


def require_writable(path: str) -> None:
    """Raises `UsageError` where `path` cannot become a file: before hours of reading."""
    files.require_writable(path, f'--save_state={path}')


def _named(state: Any) -> tuple[dict[str, Any], Any]:
    """The leaves by name, and the tree structure."""
    flat, structure = jax.tree_util.tree_flatten_with_path(state)
    return {'memory' + jax.tree_util.keystr(path): leaf for path, leaf in flat}, structure


def save(path: str, state: Any, pending: jax.Array, model: Any, params: Any) -> int:
    """Writes memories to a file; returns its size in bytes.

    Args:
      path: file to write; it is replaced only once the new one is complete.
      state: memories, every leaf [batch, ...].
      pending: int32 [batch, n], tokens of the open segment.
      model: `config.model` as a plain dictionary.
      params: parameters of the model, for the fingerprint.

    Raises:
      UsageError: the file cannot be written.
    """
    named, _ = _named(state)
    metadata = {
        'format': FORMAT,
        'model': json.dumps(model, sort_keys=True),
        'parameters': fingerprint(params),
    }
    try:
        with files.whole_file(path) as partial:
            save_file({**named, PENDING: jnp.asarray(pending, jnp.int32)}, partial, metadata)
    except (OSError, SafetensorError) as error:
        raise UsageError(f'--save_state={path}: cannot be written ({error}).') from error
    return Path(path).stat().st_size


def load(path: str, abstract: Any, model: Any, params: Any) -> tuple[Any, np.ndarray]:
    """Reads memories that `save` wrote.

    Args:
      path: the file.
      abstract: shapes and dtypes of the memories of the current model, for one lane.
      model: `config.model` as a plain dictionary.
      params: parameters of the current model.

    Returns:
      The memories, and the tokens of the open segment, int32 [batch, n]; see `save`.

    Raises:
      UsageError: there is no such file, it is not a state, or it is of another model; the message
        names what differs.
    """
    try:
        with safe_open(path, framework='flax') as file:
            metadata = file.metadata() or {}
            leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f'--load_state={path}: cannot be read ({error}).') from error
    if metadata.get('format') != FORMAT:
        raise UsageError(f'--load_state={path}: not a state written by --save_state.')
    current = json.loads(json.dumps(model, sort_keys=True))
    saved = json.loads(json.dumps(earlier.completed(json.loads(metadata['model']), current)))
    fields = sorted(k for k in {*saved, *current} if saved.get(k) != current.get(k))
    if fields:
        listed = '; '.join(f'{k}: {saved.get(k)} there, {current.get(k)} here' for k in fields)
        raise UsageError(f'--load_state={path}: written by another model: {listed}.')
    if metadata['parameters'] != fingerprint(params):
        raise UsageError(
            f'--load_state={path}: written by a model with other parameters (checksum '
            f'{metadata["parameters"]} there, {fingerprint(params)} here); load the same checkpoint.'
        )
    named, structure = _named(abstract)
    for name, leaf in named.items():
        saved_leaf = leaves.get(name)
        if (
            saved_leaf is None
            or saved_leaf.shape[1:] != leaf.shape[1:]
            or saved_leaf.dtype != leaf.dtype
        ):
            found = 'missing'
            if saved_leaf is not None:
                found = f'{saved_leaf.dtype} {list(saved_leaf.shape)}'
            raise UsageError(
                f'--load_state={path}: {name} is {found}, this model needs {leaf.dtype} '
                f'{list(leaf.shape)}.'
            )
    state = jax.tree.unflatten(structure, [leaves[name] for name in named])
    return state, np.asarray(leaves[PENDING])
