"""Safetensors files that others made: their header is checked, and only bytes of the file are read.

A file is eight bytes with the length of the header, the header (JSON: names to dtype, shape and place),
and the tensors one after another, without gaps. `write` adds a checksum of all tensors, which `read`
compares, since the format has none.
"""

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file
from longmem_jax.untrusted import byte_ranges, json_file, schema

CHECKSUM = 'sha256'  # its name in the metadata
DTYPES = {
    'F64': np.float64,
    'F32': np.float32,
    'F16': np.float16,
    'BF16': ml_dtypes.bfloat16,
    'F8_E4M3': ml_dtypes.float8_e4m3fn,
    'F8_E5M2': ml_dtypes.float8_e5m2,
    'I64': np.int64,
    'I32': np.int32,
    'I16': np.int16,
    'I8': np.int8,
    'U64': np.uint64,
    'U32': np.uint32,
    'U16': np.uint16,
    'U8': np.uint8,
    'BOOL': np.bool_,
}
LARGEST_HEADER = 100 << 20  # bytes, as in the format's own library
MOST_AXES = 16
LARGEST_SIZE = 1 << 48  # of an axis, and of all together
_TENSOR = schema.fields(
    {
        'dtype': schema.text(),
        'shape': schema.items(schema.whole(0, LARGEST_SIZE), most=MOST_AXES),
        'data_offsets': schema.items(schema.whole(0, LARGEST_SIZE), 2, 2),
    }
)


class Tensor(NamedTuple):
    """Where a tensor is.

    Attributes:
      dtype: as safetensors calls it ('F32', 'BF16', ...).
      shape: its shape.
      start, end: bytes of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """What a file holds: tensors by name, and texts by name."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def read_header(path: Path, where: str = '') -> Header:
    """The checked header of a file; see `read` for the arguments and errors."""
    with byte_ranges.opened(path, where or str(path)) as file:
        return _header(file, where or str(path))


def read(path: Path, where: str = '') -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """All tensors of a file, and its metadata.

    The checksum in the metadata is compared if there is one; who needs one must look for it.

    Raises:
      UsageError: the file cannot be read, a length, place, dtype or shape in its header is impossible,
        the file ends early, or its tensors do not have the checksum.
    """
    where = where or str(path)
    with byte_ranges.opened(path, where) as file:
        header = _header(file, where)
        arrays = {
            name: _array(file, tensor, name, where) for name, tensor in header.tensors.items()
        }
    wanted = header.metadata.get(CHECKSUM)
    if wanted is not None and wanted != checksum(arrays):
        raise _problem(where, 'its tensors do not have the checksum that was written with them')
    return arrays, header.metadata


def write(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Writes arrays, and metadata with their checksum; errors as in `safetensors.numpy.save_file`."""
    # safetensors writes the buffer of an array as it is, also of a view.
    plain = {name: np.array(array, order='C') for name, array in arrays.items()}
    with whole_file(path) as partial:
        save_file(plain, partial, {**metadata, CHECKSUM: checksum(plain)})


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f'{name}\0{array.dtype.name}\0{array.shape}\0'.encode())
        total.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b'')
    return total.hexdigest()


def require_shapes(
    arrays: Mapping[str, Any], wanted: Mapping[str, Any], where: str, then: str = ''
) -> None:
    """Raises `UsageError` unless there is an array of each name, with the shape and dtype it has in
    `wanted`, which are arrays or `jax.ShapeDtypeStruct`s; `then`: end of the message, what to do.
    """
    for name, like in wanted.items():
        found, shape = arrays.get(name), tuple(like.shape)
        if found is None or found.shape != shape or found.dtype != like.dtype:
            said = 'missing' if found is None else f'{found.dtype} {list(found.shape)}'
            needed = f'{like.dtype} {list(shape)} is needed'
            raise UsageError(f'{where}: {name} is {said}; {needed}{then}.')


def require_finite(arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Raises `UsageError` where a float is not a finite number."""
    for name, array in arrays.items():
        floats = array.dtype.kind == 'f' or array.dtype.name.startswith(('bfloat', 'float8'))
        if floats and not np.isfinite(array).all():
            raise UsageError(f'{where}: {name} has numbers that are not finite.')


def _problem(where: str, why: str) -> UsageError:
    return UsageError(f'{where}: not a whole safetensors file ({why}). Fetch or make it again.')


def _bytes(file: Any, start: int, size: int, where: str) -> bytearray:
    return byte_ranges.read(file, start, size, where, lambda why: _problem(where, why))


def _header(file: Any, where: str) -> Header:
    """The header, after comparing every place in it with the size of the file."""
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise _problem(where, f'{size} bytes')
    length = int.from_bytes(_bytes(file, 0, 8, where), 'little')
    if length > min(size - 8, LARGEST_HEADER):
        raise _problem(where, f'a header of {length:,} bytes in a file of {size:,}')
    named = f'{where}: not a whole safetensors file, header'
    content = json_file.parse(bytes(_bytes(file, 8, length, where)), named, deepest=3)
    metadata = content.pop('__metadata__', {}) if isinstance(content, dict) else {}
    schema.require(metadata, schema.named(schema.text()), named)
    schema.require(content, schema.named(_TENSOR), named)
    first = 8 + length
    tensors, end = {}, 0
    for name, entry in sorted(content.items(), key=lambda item: item[1]['data_offsets']):
        dtype, shape, (start, stop) = entry['dtype'], tuple(entry['shape']), entry['data_offsets']
        shown = schema.shown(name)
        if dtype not in DTYPES:
            raise _problem(where, f'{shown} is of type {schema.shown(dtype)}')
        if math.prod(axis for axis in shape if axis) > LARGEST_SIZE:
            raise _problem(where, f'{shown} has the shape {shape}')
        if start != end or stop - start != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
            raise _problem(where, f'{shown} of {dtype} {list(shape)} is at {start}:{stop}')
        tensors[name] = Tensor(dtype, shape, first + start, first + stop)
        end = stop
    if first + end != size:
        raise _problem(where, f'{size:,} bytes, by its header {first + end:,}')
    return Header(tensors, metadata)


def _array(file: Any, tensor: Tensor, name: str, where: str) -> np.ndarray:
    """One tensor."""
    content = _bytes(file, tensor.start, tensor.end - tensor.start, where)
    if tensor.dtype == 'BOOL' and content.translate(None, b'\0\1'):
        raise _problem(where, f'{schema.shown(name)} has truth values that are neither 0 nor 1')
    return np.frombuffer(content, DTYPES[tensor.dtype]).reshape(tensor.shape)
