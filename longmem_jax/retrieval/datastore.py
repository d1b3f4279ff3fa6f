"""Keys and the tokens that followed, on disk in shards that are checked when opened.

manifest.json                 the model it belongs to, and its shards with sizes and checksums
keys.00000.bin  ...           [n, width], float16 or float32
values.00000.bin ...          int32 [n], the token that followed
documents.00000.bin ...       int32 [n], number of the document in its corpus
contexts.00000.bin ...        int32 [n, CONTEXT], the tokens before it, -1 if there are none
progress-00001.safetensors    memories after the last shard, until all are written

`build_datastore.py` writes them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import checksum, whole_file
from longmem_jax.generation.memory_file import fingerprint

FORMAT = 'longmem_jax datastore 1'
CONTEXT = 8


def shard_arrays(width: int, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays of a shard: name to dtype and shape of one entry."""
    return {
        'keys': (dtype, (width,)),
        'values': ('int32', ()),
        'documents': ('int32', ()),
        'contexts': ('int32', (CONTEXT,)),
    }


def identity(experiment: Experiment, params: Any) -> dict[str, Any]:
    """What a datastore and the model that uses it must have in common."""
    return {
        'parameters': fingerprint(params),
        'width': experiment.config.model.d_model,
        'tokenizer': experiment.tokenizer.fingerprint(),
        'key': experiment.config.retrieval.key,
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replaces the manifest of a datastore."""
    with whole_file(folder / 'manifest.json') as partial:
        partial.write_text(json.dumps(manifest, indent=1) + '\n')


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a datastore.

    Raises:
      UsageError: there is none, or it is not valid.
    """
    path = folder / 'manifest.json'
    if not path.exists():
        given = f'{folder}: no datastore there' if folder.parts else "'': a folder is needed"
        raise UsageError(
            f'config.retrieval.datastore = {given}; make one with --mode=build_datastore.'
        )
    try:
        manifest = json.loads(path.read_text())
        if manifest['format'] != FORMAT:
            raise ValueError(f'format {manifest["format"]!r}')
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{path}: not a manifest of a datastore ({error}).') from error
    return manifest


def require_same(folder: Path, manifest: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises `UsageError` if a datastore belongs to another model."""
    actual = manifest['identity']
    different = [
        f'{name}: {actual.get(name)} there, {expected[name]} here'
        for name in expected
        if actual.get(name) != expected[name]
    ]
    if different:
        raise UsageError(
            f'{folder}: this datastore was made by another model ({"; ".join(different)}). Keys '
            'are only valid for the model that made them; build new ones in another folder.'
        )


class Datastore:
    """A finished datastore, memory-mapped.

    Attributes:
      folder: where its files are.
      width: of the keys.
      digest: short checksum of its content, from the checksums in the manifest.
      source: the text it was made from, as in the manifest.
      shards: for each shard the arrays `keys`, `values`, `documents`, `contexts`.
      documents: int32 [n], of all shards, in memory.
    """

    def __init__(self, folder: Path, expected: dict[str, Any] | None, verify: bool):
        """Opens the files.

        Args:
          folder: where the manifest is.
          expected: `identity` that it must have; None = any.
          verify: also compare checksums, not only sizes.

        Raises:
          UsageError: not a complete datastore of this model; the message names the file and fault.
        """
        self.folder, manifest = folder, read_manifest(folder)
        if expected is not None:
            require_same(folder, manifest, expected)
        if not manifest['complete']:
            raise UsageError(
                f'{folder}: this datastore is not finished ({len(manifest["shards"])} shards so '
                'far); run --mode=build_datastore again to resume.'
            )
        self.width = manifest['identity']['width']
        self.source = manifest.get('source', {})
        content = {name: manifest[name] for name in ('identity', 'dtype', 'shards')}
        self.digest = checksum(json.dumps(content, sort_keys=True).encode())[:16]
        self.shards = []
        for i, shard in enumerate(manifest['shards']):
            arrays = {}
            for name, (dtype, shape) in shard_arrays(self.width, manifest['dtype']).items():
                path = folder / f'{name}.{i:05}.bin'
                full_shape = (shard['count'], *shape)
                size = int(np.prod(full_shape)) * np.dtype(dtype).itemsize
                actual = path.stat().st_size if path.exists() else -1
                if actual != size:
                    raise UsageError(
                        f'{path}: {"missing" if actual < 0 else f"{actual:,} bytes"}, {size:,} bytes '
                        f'were written. The shard is damaged: delete {folder}, and build it again.'
                    )
                if verify and checksum(path) != shard['sha256'][name]:
                    raise UsageError(
                        f'{path}: its bytes were changed; delete {folder}, and build it again.'
                    )
                arrays[name] = np.memmap(path, dtype, 'r', shape=full_shape)
            self.shards.append(arrays)
        self._ends = np.cumsum([len(shard['values']) for shard in self.shards])
        self._values = np.concatenate([np.asarray(shard['values']) for shard in self.shards])
        self.documents = np.concatenate([np.asarray(s['documents']) for s in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Entries `numbers`, int [...], of the array `name`: [..., *entry shape]."""
        if name in ('values', 'documents'):
            return (self._values if name == 'values' else self.documents)[numbers]
        flat = np.asarray(numbers).reshape(-1)
        shards = np.searchsorted(self._ends, flat, side='right')
        starts = np.concatenate([[0], self._ends[:-1]])
        first = self.shards[0][name]
        entries = np.empty((len(flat), *first.shape[1:]), first.dtype)
        for shard in np.unique(shards):
            in_shard = shards == shard
            entries[in_shard] = self.shards[shard][name][flat[in_shard] - starts[shard]]
        return entries.reshape(*np.shape(numbers), *first.shape[1:])

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """All keys in order: (number of the first, keys [<= size, width] as stored)."""
        start = 0
        for shard in self.shards:
            for at in range(0, len(shard['keys']), size):
                yield start + at, shard['keys'][at : at + size]
            start += len(shard['keys'])
