"""A graft: what a run added to a host, as one small file that is put onto an untouched host again.

The file is safetensors: the parameters of the memory and the low-rank parts, under the names that
exported folders have for them. Its metadata say how the model is built, and which host it belongs to.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.hosts.attributes import HARMLESS
from longmem_jax.hosts.gguf_tensors import GgufFile
from longmem_jax.hosts.pieces import Pieces
from longmem_jax.hosts.tensor_files import DTYPES, OWN, TensorFiles
from longmem_jax.untrusted import json_file, schema, tensor_file

DESCRIPTION = 'longmem_graft'  # its name in the metadata
FILE = 'memory.safetensors'  # its name on the hub
AND = ' + '  # between the names of a host and of a graft
_DESCRIPTION = schema.fields(
    {
        'model': schema.fields({}, others=True),
        'segment_length': schema.whole(1, 1 << 30),
        'host': schema.text(),
        'fingerprint': schema.text('[0-9a-f]{64}'),
    }
)


def fingerprint(attributes: Mapping[str, Any], files: 'Files') -> str:
    """SHA-256 of what a host computes: its attributes, and the first row of each of its tensors."""
    used = {name: value for name, value in attributes.items() if name not in HARMLESS}
    total = hashlib.sha256(json.dumps(used, sort_keys=True).encode())
    for name, shape in sorted(files.shapes.items()):
        if name.startswith(OWN) or files.dtypes[name] not in DTYPES:
            continue
        first = tuple(slice(0, 1 if axis < len(shape) - 1 else n) for axis, n in enumerate(shape))
        row = np.ascontiguousarray(files.read(name, first), np.float32)
        total.update(f'\0{name}\0{shape}\0'.encode() + row.tobytes())
    return total.hexdigest()


def write(path: Path, params: Mapping[str, np.ndarray], description: Mapping[str, Any]) -> None:
    """Writes a graft.

    Args:
      path: the file.
      params: path of a parameter to its array.
      description: 'model' (`config.model`), 'segment_length', 'host' (a name), 'fingerprint'.
    """
    tensors = {OWN + name.replace('/', '.'): array for name, array in params.items()}
    tensor_file.write(path, tensors, {DESCRIPTION: json.dumps(description)})


def read(
    path: Path, attributes: Mapping[str, Any], files: 'Files'
) -> tuple[dict[str, Any], 'Grafted']:
    """The description of a graft, and the tensors of a host with it.

    Raises:
      UsageError: the file is damaged, is no graft, or belongs to another host.
    """
    tensors, metadata = tensor_file.read(path)
    if DESCRIPTION not in metadata:
        raise UsageError(f'{path}: is not a graft, as --mode=export --graft writes it.')
    where = f'{path}: {DESCRIPTION}'
    given = schema.require(json_file.parse(metadata[DESCRIPTION], where), _DESCRIPTION, where)
    if given['fingerprint'] != fingerprint(attributes, files):
        raise UsageError(
            f'{path}: was trained with another host, {schema.shown(given["host"])}: {files.folder} '
            'differs from it in its attributes or its weights. Give the same host, of the same revision.'
        )
    wrong = [name for name in tensors if not name.startswith(OWN)]
    if wrong:
        raise UsageError(f'{path}: {schema.shown(wrong[0])} is not a parameter of a graft.')
    return given, Grafted(files, tensors)


class Grafted:
    """The tensors of a host and of a graft; see `TensorFiles` for attributes and methods."""

    def __init__(self, files: 'Files', tensors: Mapping[str, np.ndarray]):
        """`tensors`: those of the graft."""
        self._files, self._tensors = files, dict(tensors)
        self.folder: Path = files.folder
        self.threads: int = files.threads
        self.at_once: int = files.at_once
        self.pieces: dict[str, Pieces] = files.pieces
        self.shapes: dict[str, tuple[int, ...]] = files.shapes | {
            name: array.shape for name, array in tensors.items()
        }
        self.dtypes: dict[str, str] = files.dtypes | dict.fromkeys(tensors, 'F32')

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor."""
        own = self._tensors.get(name)
        return self._files.read(name, index) if own is None else own[index]

    def whole(self, name: str) -> np.ndarray:
        """A whole tensor."""
        own = self._tensors.get(name)
        return self._files.whole(name) if own is None else own

    def num_bytes(self, names: Any) -> int:
        """Bytes of the tensors of these names."""
        own = [name for name in names if name in self._tensors]
        return self._files.num_bytes(set(names) - {*own}) + sum(
            self._tensors[name].nbytes for name in own
        )


Files = TensorFiles | GgufFile | Grafted  # of a host
