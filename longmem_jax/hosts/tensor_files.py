"""The safetensors files of a folder: names, shapes, and parts of tensors. Nothing else is ever opened.

A pickle can run any program when it is loaded, so `pytorch_model.bin` and the like are refused.
"""

import math
import re
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import safe_open

from longmem_jax.errors import UsageError
from longmem_jax.hosts.pieces import Pieces
from longmem_jax.untrusted import json_file, schema, tensor_file
from longmem_jax.untrusted.library import library_errors

WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.pickle')
# Bytes at the start of pickles, and of the archives that PyTorch keeps them in.
PICKLE_STARTS = (b'\x80\x02', b'\x80\x03', b'\x80\x04', b'\x80\x05', b'PK\x03\x04')
DTYPES = {'F64': 8, 'F32': 4, 'F16': 2, 'BF16': 2}
OWN = 'longmem.'  # begins the names of tensors that no family has: memories
SHOWN = 8  # names in a message
_INDEX = schema.fields({'weight_map': schema.named(schema.text())}, others=True)


def some(names: Any) -> str:
    """The first few names, for a message."""
    names = sorted(names)
    more = len(names) - SHOWN
    return ', '.join(names[:SHOWN]) + (f' and {more} more' if more > 0 else '')


class TensorFiles:
    """The tensors of a folder.

    Attributes:
      folder: the folder.
      shapes: name to shape.
      dtypes: name to dtype, as safetensors calls it ('F32', 'BF16', ...).
      bytes_read: bytes of tensors read so far.
      pieces: names that `join` made to what lies in the files.
      threads: as many parameters are in memory at a time, besides those on devices.
      at_once: bytes of a parameter that are read at a time.
    """

    threads, at_once = 8, 1 << 24

    def __init__(self, folder: Path):
        """Opens all files of `folder`; raises `UsageError` if they are not whole safetensors."""
        self.folder, self.bytes_read = folder, 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.pieces: dict[str, Pieces] = {}
        self._places: dict[str, tuple[BinaryIO, tensor_file.Tensor]] = {}
        self._lock = threading.Lock()
        placed = _placed(folder)
        for file in sorted(set(placed.values())) if placed else [WHOLE]:
            self._open(folder / file, placed)
        if missing := set(placed) - set(self._places):
            raise UsageError(f'{folder / INDEX}: names tensors that no file has: {some(missing)}.')

    def _open(self, path: Path, placed: Mapping[str, str]) -> None:
        """Opens one file; `placed` is the index, or empty."""
        try:
            with path.open('rb') as file:
                start = file.read(4)
        except OSError as error:
            raise UsageError(f'{path}: cannot be read ({error.strerror}).') from error
        if start.startswith(PICKLE_STARTS):
            raise UsageError(f'{path}: {_PICKLE}')
        header = tensor_file.read_header(path)
        with library_errors(f'{path}: not a whole safetensors file'):
            safe_open(path, framework='numpy')
        opened = path.open('rb', buffering=0)  # this file, also if another takes its place
        weakref.finalize(self, opened.close)
        for name, tensor in header.tensors.items():
            if placed and placed.get(name) != path.name:
                raise UsageError(f'{path}: has {schema.shown(name)}, which {INDEX} does not list.')
            self._places[name] = opened, tensor
            self.shapes[name], self.dtypes[name] = tensor.shape, tensor.dtype

    def join(self, name: str, pieces: Pieces) -> None:
        """Makes one tensor of several, which then are there no more.

        Raises:
          UsageError: their dtypes or shapes differ.
        """
        dtypes = [self.dtypes[piece] for piece in pieces.names]
        shape = pieces.shape([self.shapes[piece] for piece in pieces.names])
        if shape is None or len({*dtypes}) > 1:
            raise UsageError(
                f'{self.folder}: {some(pieces.names)} differ in shape or dtype, and are parts of one '
                'parameter.'
            )
        for piece in pieces.names:
            del self.shapes[piece], self.dtypes[piece]
        self.pieces[name], self.shapes[name], self.dtypes[name] = pieces, shape, dtypes[0]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor, in the dtype of the file; `index` has a slice of step 1 per axis.

        What lies in one file is a view of it, read as it is used.

        Raises:
          UsageError: its numbers are not floats, or the file became shorter since it was opened.
        """
        dtype = self.dtypes[name]
        if dtype not in DTYPES:
            raise UsageError(
                f'{self.folder}: {name} is of type {dtype}; weights are read as {", ".join(DTYPES)}. '
                'A quantised model must be converted first.'
            )
        if name in self.pieces:
            return self.pieces[name].read(self._read, index)
        return self._read(name, index)

    def _read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor of the files."""
        part = self._mapped(name)[index]
        with self._lock:
            self.bytes_read += part.nbytes
        return part

    def _mapped(self, name: str) -> np.ndarray:
        """A tensor of the files, by a mapping of its own: pages that were read go with the array."""
        opened, tensor = self._places[name]
        dtype, size = tensor_file.DTYPES[tensor.dtype], tensor.end - tensor.start
        if not size:
            return np.zeros(tensor.shape, dtype)
        try:
            mapped = np.memmap(opened, np.uint8, 'r', tensor.start, (size,))
        except (OSError, ValueError) as error:
            raise UsageError(f'{opened.name}: {name} cannot be read any more ({error}).') from error
        return np.asarray(mapped).view(dtype).reshape(tensor.shape)

    def whole(self, name: str) -> np.ndarray:
        """A whole tensor of any dtype."""
        if name in self.pieces:
            return self.read(name, tuple(slice(0, size) for size in self.shapes[name]))
        return np.array(self._mapped(name))

    def num_bytes(self, names: Any) -> int:
        """Bytes of the tensors of these names."""
        return sum(
            math.prod(self.shapes[name]) * DTYPES.get(self.dtypes[name], 1) for name in names
        )


_PICKLE = (
    'a pickle, which can run any program when it is loaded; only safetensors are read. Convert it where '
    "you trust it: model.save_pretrained(FOLDER) with transformers' current version."
)


def _placed(folder: Path) -> dict[str, str]:
    """Name of every tensor to its file by the index; {} if there is one file without an index."""
    index = folder / INDEX
    if not index.is_file():
        if (folder / WHOLE).is_file():
            return {}
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        if pickles:
            raise UsageError(f'{folder / pickles[0]}: {_PICKLE}')
        raise UsageError(f'{folder}: has neither {WHOLE} nor {INDEX}.')
    given = schema.require(json_file.read(index), _INDEX, f'{index}: not an index of safetensors')
    placed = given['weight_map']
    for name, file in placed.items():
        if not re.fullmatch(r'[^/\0]+\.safetensors', file) or not (folder / file).is_file():
            raise UsageError(
                f'{index}: {schema.shown(name)} is in {schema.shown(file)}, which is not a safetensors '
                'file here.'
            )
    if not placed:
        raise UsageError(f'{index}: names no tensors.')
    return placed
