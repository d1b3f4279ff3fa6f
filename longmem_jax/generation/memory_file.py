"""Memory files: a model's memory of a text, saved as safetensors.

A file holds the memories at the last segment border and the tokens read since. These are read again
after loading, so that the continuation is the same bit for bit.
"""

import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError

from longmem_jax import files
from longmem_jax.config import earlier
from longmem_jax.errors import UsageError
from longmem_jax.in_place import readable_state
from longmem_jax.training.identity import NO_NUMBER
from longmem_jax.untrusted import json_file, schema, tensor_file

FORMAT = 'longmem_jax state 2'
PENDING = 'pending'
SHOWN = 8  # fields in a message
_METADATA = schema.fields(
    {
        'format': schema.one_of(FORMAT),
        'model': schema.text(),
        'parameters': schema.text(),
        tensor_file.CHECKSUM: schema.text(),
    }
)


def fingerprint(params: Any) -> str:
    """A checksum of all parameters, since memories are only valid for the model that wrote them."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    value = 0
    for path, leaf in flat:
        value = zlib.crc32(jax.tree_util.keystr(path).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).tobytes(), value)
    return f'{value:08x}'


def _target(path: str | Path) -> Path:
    """The file to write: where a link leads; a device or a pipe would be replaced, so `UsageError`."""
    try:
        target = Path(path).expanduser().resolve()
        if target.is_symlink():  # a circle of links, which `resolve` of Python 3.13 does not report
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        regular = target.is_file() or target.is_dir() or not target.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a circle, a name with NUL
        raise UsageError(f'--save_state={path}: cannot be written ({error}).') from error
    if not regular:
        raise UsageError(
            f'--save_state={path}: this exists and is not a regular file; give another name.'
        )
    return target


def require_writable(path: str) -> None:
    """Raises `UsageError` where `save` could not write to `path`: before hours of reading."""
    files.require_writable(_target(path), f'--save_state={path}')


def _named(state: Any) -> tuple[dict[str, Any], Any]:
    """The leaves by name, and the tree structure."""
    flat, structure = jax.tree_util.tree_flatten_with_path(state)
    return {'memory' + jax.tree_util.keystr(path): leaf for path, leaf in flat}, structure


def described(model: Any) -> dict[str, Any]:
    """The model of texts as a memory file describes it: `config.model` and its segment length."""
    return model.config.to_dict() | {'segment_length': model.segment_length}


def save(path: str, state: Any, pending: np.ndarray, model: Any, params: Any) -> int:
    """Writes memories to a file; returns its size in bytes.

    Args:
      path: file to write; it is replaced only once the new one is complete. A link stays, and the
        file that it leads to is replaced.
      state: memories, every leaf [batch, ...].
      pending: int32 [batch, n], tokens of the open segment.
      model: of it, as from `described`.
      params: parameters of the model, for the fingerprint.

    Raises:
      UsageError: the file cannot be written, or is not a regular one.
    """
    target = _target(path)
    named, _ = _named(readable_state(state))
    metadata = {
        'format': FORMAT,
        'model': json.dumps(model, sort_keys=True),
        'parameters': fingerprint(params),
    }
    try:
        arrays = {**named, PENDING: np.asarray(pending, np.int32)}
        tensor_file.write(target, arrays, metadata)
    except (OSError, SafetensorError) as error:
        raise UsageError(f'--save_state={path}: cannot be written ({error}).') from error
    return target.stat().st_size


def load(path: str, abstract: Any, model: Any, params: Any) -> tuple[Any, np.ndarray]:
    """Reads memories that `save` wrote.

    Args:
      abstract: shapes and dtypes of the memories of the current model, for one lane.
      model: the current one, as from `described`.
      params: parameters of the current model.

    Returns:
      The memories, and the tokens of the open segment, int32 [1, n]; see `save`.

    Raises:
      UsageError: no such file, it is not a state, was changed, has numbers that no memory
        has, or is of another model; the message names what differs.
    """
    where = f'--load_state={path}'
    leaves, metadata = tensor_file.read(Path(path).expanduser(), where)
    if metadata.get('format') != FORMAT:
        raise UsageError(f'{where}: not a state written by --save_state.')
    schema.require(metadata, _METADATA, f'{where}, metadata')
    _require_model(where, metadata, model, params)
    named, structure = _named(abstract)
    given, length = leaves.get(PENDING), model['segment_length']
    size = min(given.shape[-1], length) if given is not None and given.ndim else 0
    tokens = {PENDING: jax.ShapeDtypeStruct((1, size), np.int32)}
    then = ' by this model: write the file again with --save_state'
    tensor_file.require_shapes(leaves, named | tokens, where, then)
    pending = leaves[PENDING]
    if unknown := set(leaves) - {*named, PENDING}:
        raise UsageError(
            f'{where}: has {schema.shown(min(unknown))}, which this model does not have.'
        )
    tensor_file.require_finite(leaves, where)
    for name, leaf in leaves.items():
        # Counts, distances and tokens; int8 are the digits of stored vectors.
        if leaf.dtype == np.int32 and (leaf < 0).any():
            raise UsageError(f'{where}: {name} has {leaf.min()}; the least is 0.')
    if (pending >= model['vocab_size']).any():
        raise UsageError(
            f'{where}: {PENDING} has token {pending.max()}, the vocabulary has '
            f'{model["vocab_size"]}.'
        )
    state = jax.tree.unflatten(structure, [jnp.asarray(leaves[name]) for name in named])
    return state, pending


def _require_model(where: str, metadata: dict[str, str], model: Any, params: Any) -> None:
    """Raises `UsageError` if the metadata are of another model or of other parameters."""
    current = json.loads(json.dumps(model, sort_keys=True))
    given = json_file.parse(metadata['model'], f'{where}, model')
    schema.require(given, schema.fields({}, others=True), f'{where}, model')
    saved = json.loads(json.dumps(earlier.completed(given, current)))
    compared = {*saved, *current}.difference(NO_NUMBER)  # as checkpoints are
    fields = sorted(k for k in compared if saved.get(k) != current.get(k))
    if fields:
        listed = '; '.join(
            f'{schema.shown(k)[1:-1]}: {schema.shown(saved.get(k))} there, '
            f'{schema.shown(current.get(k))} here'
            for k in fields[:SHOWN]
        )
        raise UsageError(f'{where}: written by another model: {listed}.')
    if metadata['parameters'] != fingerprint(params):
        raise UsageError(
            f'{where}: written by a model with other parameters (checksum '
            f'{schema.shown(metadata["parameters"])[1:-1]} there, {fingerprint(params)} here); load the '
            'same checkpoint.'
        )
