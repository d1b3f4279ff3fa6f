"""A memory as a file: what a model remembers of a text, in safetensors, to be loaded elsewhere.

The file holds the memories at the last segment border and the tokens read since; these are read
again after loading, so that the continuation is the same bit for bit.
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

from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file

FORMAT = 'longmem_jax state 1'
PENDING = 'pending'


def fingerprint(params: Any) -> str:
    """A checksum of all parameters: memories mean something to the model that wrote them only."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    value = 0
    for path, leaf in flat:
        value = zlib.crc32(jax.tree_util.keystr(path).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).tobytes(), value)
    return f'{value:08x}'


def _named(state):
    flat, structure = jax.tree_util.tree_flatten_with_path(state)
    return {'memory' + jax.tree_util.keystr(path): leaf for path, leaf in flat}, structure


def save(path: str, state: Any, pending: jax.Array, model: Any, params: Any) -> int:
    """Writes memories; returns the bytes of the file.

    Args:
      path: file to write, replaced whole.
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
        with whole_file(path) as partial:
            save_file({**named, PENDING: jnp.asarray(pending, jnp.int32)}, partial, metadata)
    except (OSError, SafetensorError) as error:
        raise UsageError(f'--save_state={path}: cannot be written ({error}).') from error
    return Path(path).stat().st_size


def load(path: str, abstract: Any, model: Any, params: Any) -> tuple[Any, np.ndarray]:
    """Reads memories that `save` wrote.

    Args:
      path: the file.
      abstract: memories of the present model, shapes and dtypes, for one lane.
      model: `config.model` as a plain dictionary.
      params: parameters of the present model.

    Returns:
      state, pending.

    Raises:
      UsageError: no such file, not a state, or the state of another model, with what differs.
    """
    try:
        with safe_open(path, framework='flax') as file:
            metadata = file.metadata() or {}
            leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f'--load_state={path}: cannot be read ({error}).') from error
    if metadata.get('format') != FORMAT:
        raise UsageError(f'--load_state={path}: not a state that --save_state wrote.')
    saved = json.loads(metadata['model'])
    given = json.loads(json.dumps(model, sort_keys=True))
    fields = sorted(k for k in {*saved, *given} if saved.get(k) != given.get(k))
    if fields:
        listed = '; '.join(f'{k}: {saved.get(k)} there, {given.get(k)} here' for k in fields)
        raise UsageError(f'--load_state={path}: written by another model: {listed}.')
    if metadata['parameters'] != fingerprint(params):
        raise UsageError(
            f'--load_state={path}: written by a model with other parameters (checksum '
            f'{metadata["parameters"]} there, {fingerprint(params)} here); load the same checkpoint.'
        )
    named, structure = _named(abstract)
    for name, leaf in named.items():
        found = leaves.get(name)
        if found is None or found.shape[1:] != leaf.shape[1:] or found.dtype != leaf.dtype:
            raise UsageError(
                f'--load_state={path}: {name} is {getattr(found, "shape", "missing")}, '
                f'{leaf.shape} is needed.'
            )
    state = jax.tree.unflatten(structure, [leaves[name] for name in named])
    return state, np.asarray(leaves[PENDING])
