"""Keys and the tokens that followed, on disk in shards that are checked when opened.

manifest.json                 the model it belongs to, and its shards with sizes and checksums
keys.00000.bin  ...           [n, width], float16 or float32
values.00000.bin ...          int32 [n], the token that followed
documents.00000.bin ...       int32 [n], number of the document in its corpus
contexts.00000.bin ...        int32 [n, CONTEXT], the tokens before it, -1 if there are none
progress-00001.safetensors    memories after the last shard, until all are written
verified.json                 files whose checksums were compared; see `verified.py`

`build_datastore.py` writes them.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax import files
from longmem_jax.errors import UsageError, say
from longmem_jax.experiment import Experiment
from longmem_jax.files import checksum, looked_for, write_json
from longmem_jax.generation.memory_file import fingerprint
from longmem_jax.retrieval import verified
from longmem_jax.retrieval.settings import KEY_TYPES
from longmem_jax.untrusted import json_file, schema

FORMAT = 'longmem_jax datastore 1'
CONTEXT = 8
_SUM = schema.text('[0-9a-f]{64}', 'a SHA-256 in hexadecimal')
_SHARD = schema.fields(
    {
        'count': schema.whole(1, 1 << 40),
        'sha256': schema.fields(dict.fromkeys(('keys', 'values', 'documents', 'contexts'), _SUM)),
    }
)
# numpy would take other dtypes, even pointers, from a manifest, and names of other files be deleted.
MANIFEST = schema.fields(
    {
        'format': schema.one_of(FORMAT),
        'identity': schema.fields({'width': schema.whole(1, 1 << 20)}, others=True),
        'dtype': schema.one_of(*KEY_TYPES),
        'shards': schema.items(_SHARD),
        'complete': schema.flag,
    },
    {
        'source': schema.fields({}, {'path': schema.text()}, others=True),
        'progress': schema.text(r'progress-\d{5}\.safetensors', 'progress-NUMBER.safetensors'),
    },
)


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
    write_json(folder / 'manifest.json', manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a datastore.

    Raises:
      UsageError: there is none, or it is not valid; the message names the field.
    """
    path = folder / 'manifest.json'
    if not path.exists():
        given = f'{folder}{looked_for(folder)}: no datastore there'
        given = given if folder.parts else "'': a folder is needed"
        raise UsageError(
            f'config.retrieval.datastore = {given}; make one with --mode=build_datastore.'
        )
    where = f'{path}: not a manifest of a datastore (build one in another folder)'
    return schema.require(json_file.read(path, where), MANIFEST, where)


def damaged(folder: Path, manifest: dict[str, Any]) -> str:
    """The first file of a shard that is missing or of another size, and why; '' where there is none."""
    arrays = shard_arrays(manifest['identity']['width'], manifest['dtype'])
    for i, shard in enumerate(manifest['shards']):
        for name, (dtype, shape) in arrays.items():
            path = folder / f'{name}.{i:05}.bin'
            size = math.prod((shard['count'], *shape)) * np.dtype(dtype).itemsize
            actual = path.stat().st_size if path.is_file() else -1
            if actual != size:
                found = 'missing' if actual < 0 else f'{actual:,} bytes'
                return f'{path}: {found}, {size:,} bytes were written'
    return ''


def indices(folder: Path) -> list[Path]:
    """The indices that were made of a datastore; other files that begin like them are the user's."""
    return [*files.named(folder, 'index.*.safetensors'), *files.named(folder, 'index.*.faiss')]


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

    def __init__(
        self,
        folder: Path,
        expected: dict[str, Any] | None,
        verify: bool,
        *,
        vocab_size: int = 1 << 31,
        report: Callable[[str], None] = say,
    ):
        """Opens the files; compares checksums, unless that was done since they were last changed.

        Args:
          expected: `identity` that it must have; None = any.
          verify: compare checksums in any case.
          vocab_size: all values must be below it.
          report: called with a line where reading all files takes long.

        Raises:
          UsageError: not a complete datastore of this model; the message names the file and problem.
        """
        self.folder, manifest = folder, read_manifest(folder)
        if expected is not None:
            require_same(folder, manifest, expected)
        if not manifest['complete']:
            raise UsageError(
                f'{folder}: this datastore is not finished ({len(manifest["shards"])} shards so '
                'far); run --mode=build_datastore again to resume.'
            )
        if not manifest['shards']:
            raise UsageError(f'{folder}: this datastore has no keys; build one from another text.')
        if problem := damaged(folder, manifest):
            raise UsageError(f'{problem}. --mode=build_datastore writes the shards again.')
        sums = {
            f'{name}.{i:05}.bin': value
            for i, shard in enumerate(manifest['shards'])
            for name, value in shard['sha256'].items()
        }
        verified.require(folder, sums, manifest['dtype'], again=verify, report=report)
        self.width = manifest['identity']['width']
        self.source = manifest.get('source', {})
        content = {name: manifest[name] for name in ('identity', 'dtype', 'shards')}
        self.digest = checksum(json.dumps(content, sort_keys=True).encode())[:16]
        self.shards = [
            {
                name: np.memmap(
                    folder / f'{name}.{i:05}.bin', dtype, 'r', shape=(shard['count'], *shape)
                )
                for name, (dtype, shape) in shard_arrays(self.width, manifest['dtype']).items()
            }
            for i, shard in enumerate(manifest['shards'])
        ]
        self._ends = np.cumsum([len(shard['values']) for shard in self.shards])
        self._values = np.concatenate([np.asarray(shard['values']) for shard in self.shards])
        self.documents = np.concatenate([np.asarray(s['documents']) for s in self.shards])
        if self._values.min() < 0 or self._values.max() >= vocab_size:
            raise UsageError(
                f'{folder}: has values from {self._values.min()} to {self._values.max()}, the '
                f'vocabulary has {vocab_size} tokens; build the datastore again in another folder.'
            )
        if self.documents.min() < 0:
            raise UsageError(
                f'{folder}: has documents of number {self.documents.min()}; build the datastore '
                'again in another folder.'
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Entries `numbers`, int [...], of the array `name`: [..., *entry shape].

        Raises:
          UsageError: numbers that no key has: an index or a list is of another datastore.
        """
        numbers = np.asarray(numbers)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise UsageError(
                f'{self.folder}: has {len(self):,} keys; keys {numbers.min()} to '
                f'{numbers.max()} were requested. Delete its index.* and the spalm_neighbours of '
                'the run; both will be rebuilt.'
            )
        if name in ('values', 'documents'):
            return (self._values if name == 'values' else self.documents)[numbers]
        flat = numbers.reshape(-1)
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
