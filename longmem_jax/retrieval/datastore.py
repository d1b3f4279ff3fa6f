"""Keys and the tokens that followed, on disk: written in shards, restartable, checked when opened.

manifest.json                 what it belongs to, its shards with sizes and checksums
keys.00000.bin  ...           [n, width], float16 or float32
values.00000.bin ...          int32 [n], the token that followed
documents.00000.bin ...       int32 [n], ordinal of the document it is from
contexts.00000.bin ...        int32 [n, CONTEXT], the tokens before it, -1 where there are none
progress-00001.safetensors    memories behind the last shard, until all are written
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from longmem_jax.data.lanes import Cursor
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.memory_file import fingerprint
from longmem_jax.reporting.progress import Progress
from longmem_jax.retrieval.reading import Part, Reader

FORMAT = 'longmem_jax datastore 1'
CONTEXT = 8


def _parts(width: int, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name to type and row shape of the files of a shard."""
    return {
        'keys': (dtype, (width,)),
        'values': ('int32', ()),
        'documents': ('int32', ()),
        'contexts': ('int32', (CONTEXT,)),
    }


def identity(experiment: Experiment, params: Any) -> dict[str, Any]:
    """What a datastore must agree on with the model that uses it."""
    return {
        'parameters': fingerprint(params),
        'width': experiment.config.model.d_model,
        'tokenizer': experiment.tokenizer.fingerprint(),
    }


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    partial = folder / 'manifest.json.partial'
    partial.write_text(json.dumps(manifest, indent=1) + '\n')
    partial.replace(folder / 'manifest.json')


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a datastore.

    Raises:
      UsageError: there is none, or it is not one.
    """
    path = folder / 'manifest.json'
    if not path.exists():
        raise UsageError(
            f'config.retrieval.datastore = {folder}: no datastore there; make one with '
            '--mode=build_datastore.'
        )
    try:
        manifest = json.loads(path.read_text())
        if manifest['format'] != FORMAT:
            raise ValueError(f'format {manifest["format"]!r}')
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{path}: not a manifest of a datastore ({error}).') from error
    return manifest


def require_same(folder: Path, manifest: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises `UsageError` where a datastore belongs to another model."""
    own = manifest['identity']
    different = [
        f'{name}: {own.get(name)} there, {wanted[name]} here'
        for name in wanted
        if own.get(name) != wanted[name]
    ]
    if different:
        raise UsageError(
            f'{folder}: this datastore was made by another model ({"; ".join(different)}). Keys of '
            'one model mean nothing to another; make one with --mode=build_datastore.'
        )


def _digest(path: Path) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


class Datastore:
    """A finished datastore, memory-mapped.

    Attributes:
      folder: where it lies.
      width: of the keys.
      shards: per shard the arrays `keys`, `values`, `documents`, `contexts`.
    """

    def __init__(self, folder: Path, wanted: dict[str, Any] | None, verify: bool):
        """Opens the files.

        Args:
          folder: where the manifest lies.
          wanted: `identity` that it must have; None = any.
          verify: compute all checksums, not only compare sizes.

        Raises:
          UsageError: not a whole datastore of this model; which file is wrong, and how.
        """
        self.folder, manifest = folder, read_manifest(folder)
        if wanted is not None:
            require_same(folder, manifest, wanted)
        if not manifest['complete']:
            raise UsageError(
                f'{folder}: this datastore is not finished ({len(manifest["shards"])} shards so '
                'far); run --mode=build_datastore again, it goes on.'
            )
        self.width = manifest['identity']['width']
        self.shards = []
        for number, shard in enumerate(manifest['shards']):
            arrays = {}
            for name, (dtype, shape) in _parts(self.width, manifest['dtype']).items():
                path = folder / f'{name}.{number:05}.bin'
                whole = (shard['count'], *shape)
                size = int(np.prod(whole)) * np.dtype(dtype).itemsize
                found = path.stat().st_size if path.exists() else -1
                if found != size:
                    raise UsageError(
                        f'{path}: {"missing" if found < 0 else f"{found:,} bytes"}, {size:,} bytes '
                        'were written. The shard is damaged; make the datastore anew.'
                    )
                if verify and _digest(path) != shard['sha256'][name]:
                    raise UsageError(f'{path}: its bytes were changed; make the datastore anew.')
                arrays[name] = np.memmap(path, dtype, 'r', shape=whole)
            self.shards.append(arrays)
        self._ends = np.cumsum([len(shard['values']) for shard in self.shards])
        self._values = np.concatenate([np.asarray(shard['values']) for shard in self.shards])
        self._documents = np.concatenate([np.asarray(s['documents']) for s in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Rows of one of the arrays by their numbers, int [...]."""
        if name in ('values', 'documents'):
            return (self._values if name == 'values' else self._documents)[numbers]
        flat = np.asarray(numbers).reshape(-1)
        shards = np.searchsorted(self._ends, flat, side='right')
        starts = np.concatenate([[0], self._ends[:-1]])
        first = self.shards[0][name]
        found = np.empty((len(flat), *first.shape[1:]), first.dtype)
        for shard in np.unique(shards):
            own = shards == shard
            found[own] = self.shards[shard][name][flat[own] - starts[shard]]
        return found.reshape(*np.shape(numbers), *first.shape[1:])

    def blocks(self, size: int):
        """(number of its first row, keys [<= size, width] as stored) of all rows, in order."""
        start = 0
        for shard in self.shards:
            for at in range(0, len(shard['keys']), size):
                yield start + at, shard['keys'][at : at + size]
            start += len(shard['keys'])


def _contexts(part: Part, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens read up to each place, [segments, lanes, length, CONTEXT], and those to go on from."""
    segments, lanes, length = part.tokens.shape
    found = np.empty((segments, lanes, length, CONTEXT), np.int32)
    for number in range(segments):
        before = np.where(part.start[number][:, None], -1, before)
        row = np.concatenate([before, part.tokens[number]], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(row, CONTEXT, axis=1)
        found[number] = windows[:, 1:]
        before = row[:, -CONTEXT:]
    return found, before


class _Builder:
    """Writes shards and keeps the manifest right after every one of them."""

    def __init__(self, folder, manifest):
        self.folder, self.manifest = folder, manifest
        self._rows = {name: [] for name in _parts(1, 'float32')}
        self.waiting = 0

    def add(self, part: Part, contexts) -> None:
        own = part.counted
        shape = own.shape
        documents = np.broadcast_to(part.documents[:, :, None], shape)
        for name, rows in (
            ('keys', part.keys),
            ('values', part.targets),
            ('documents', documents),
            ('contexts', contexts),
        ):
            self._rows[name].append(rows[own])
        self.waiting += int(own.sum())

    def write(self, reader: Reader, contexts, complete: bool) -> None:
        """A shard of all that waits, then the memories, then the manifest, each whole."""
        number = len(self.manifest['shards'])
        shard = {'count': self.waiting, 'sha256': {}}
        kinds = _parts(self.manifest['identity']['width'], self.manifest['dtype'])
        if self.waiting:
            for name, (dtype, _) in kinds.items():
                rows = np.concatenate(self._rows[name]).astype(dtype)
                if dtype == 'float16' and not np.isfinite(rows).all():
                    raise UsageError(
                        "config.retrieval.dtype = 'float16': keys are too large for it; use "
                        "'float32'."
                    )
                path = self.folder / f'{name}.{number:05}.bin'
                rows.tofile(path)
                shard['sha256'][name] = _digest(path)
            self.manifest['shards'].append(shard)
        self._rows = {name: [] for name in self._rows}
        self.waiting = 0
        old = self.manifest.get('progress')
        self.manifest['complete'] = complete
        if complete:
            self.manifest.pop('progress', None)
        else:
            name = f'progress-{number:05}.safetensors'
            leaves = jax.tree.leaves(reader.memory)
            saved = {f'memory_{i:05}': np.asarray(leaf) for i, leaf in enumerate(leaves)}
            saved |= {
                'document': np.asarray(reader.cursor.document),
                'offset': np.asarray(reader.cursor.offset),
                'ordinals': reader.ordinals,
                'contexts': contexts,
            }
            # safetensors writes the memory of an array as it lies, views included.
            saved = {key: np.ascontiguousarray(array) for key, array in saved.items()}
            save_file(saved, self.folder / name)
            self.manifest['progress'] = name
        _write_manifest(self.folder, self.manifest)
        if old and old != self.manifest.get('progress'):
            (self.folder / old).unlink(missing_ok=True)


def build(experiment: Experiment, split: str) -> Datastore:
    """Writes the keys and values of a split, or goes on where an earlier call was stopped.

    Args:
      experiment: a trained model; `config.retrieval` says where to and how.
      split: 'train', 'validation' or 'test' of `config.data`, which may be any corpus.

    Raises:
      UsageError: no folder given, a folder with the datastore of another model or split, or a
        progress file that cannot be read.
    """
    settings = experiment.config.retrieval
    if not settings.datastore:
        raise UsageError('config.retrieval.datastore is missing: the folder to write to.')
    folder = Path(settings.datastore).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    params, step = experiment.restore_parameters()
    progress = Progress(0, log_every=0)
    reader = Reader(experiment, params, split)
    given = {
        'format': FORMAT,
        'identity': identity(experiment, params),
        'dtype': settings.dtype,
        'source': {
            'split': split,
            'path': experiment.config.data.path,
            'source': experiment.config.data.source,
            'lanes': experiment.config.evaluate.num_lanes,
            'segment_length': experiment.config.evaluate.segment_length,
        },
    }
    manifest = given | {'shards': [], 'complete': False}
    contexts = np.full((experiment.config.evaluate.num_lanes, CONTEXT), -1, np.int32)
    if (folder / 'manifest.json').exists():
        manifest = read_manifest(folder)
        require_same(folder, manifest, given['identity'])
        other = [name for name in ('dtype', 'source') if manifest[name] != given[name]]
        if other:
            raise UsageError(
                f'{folder}: holds a datastore with another {" and ".join(other)} '
                f'({[manifest[name] for name in other]}); use another folder.'
            )
        if not manifest['complete']:
            contexts = _go_on(folder, manifest, reader)
            progress.say(f'Going on behind shard {len(manifest["shards"])}.')
    if not manifest['complete']:
        builder = _Builder(folder, manifest)
        for part in reader.parts():
            found, contexts = _contexts(part, contexts)
            builder.add(part, found)
            if builder.waiting >= settings.shard_tokens:
                builder.write(reader, contexts, False)
                written = sum(shard['count'] for shard in manifest['shards'])
                progress.say(f'{written:,} keys written.')
        builder.write(reader, contexts, True)
    store = Datastore(folder, given['identity'], verify=False)
    progress.say(f'{folder}: {len(store):,} keys of step {step:,}, {len(store.shards)} shards.')
    progress.close()
    return store


def _go_on(folder, manifest, reader):
    """Puts a reader behind the last shard; returns the tokens before it."""
    name = manifest.get('progress')
    if not name:
        return np.full((len(reader.ordinals), CONTEXT), -1, np.int32)
    try:
        saved = load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise UsageError(f'{folder / name}: cannot be read ({error}); build anew.') from error
    leaves, structure = jax.tree.flatten(reader.memory)
    for i, leaf in enumerate(leaves):
        found = saved.get(f'memory_{i:05}')
        if found is None or found.shape != leaf.shape:
            raise UsageError(f'{folder / name}: memories of another shape; build anew.')
        leaves[i] = jax.device_put(found)
    reader.memory = jax.tree.unflatten(structure, leaves)
    reader.cursor = Cursor(saved['document'], saved['offset'])
    reader.ordinals = saved['ordinals']
    return saved['contexts']
