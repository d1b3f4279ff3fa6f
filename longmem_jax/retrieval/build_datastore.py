"""Building a datastore: one pass over a split that writes shards and can be resumed after each."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from longmem_jax.data.lanes import Cursor
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import checksum
from longmem_jax.reporting.progress import Progress
from longmem_jax.retrieval.datastore import (
    CONTEXT,
    FORMAT,
    Datastore,
    identity,
    read_manifest,
    require_same,
    shard_arrays,
    write_manifest,
)
from longmem_jax.retrieval.reading import Part, Reader


def _contexts(part: Part, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last tokens read at each position.

    Args:
      part: what was read, [segments, lanes, length].
      before: int32 [lanes, CONTEXT], the last tokens before it; -1 if there are none.

    Returns:
      int32 [segments, lanes, length, CONTEXT], and the last tokens of the part, as `before`.
    """
    segments, lanes, length = part.tokens.shape
    contexts = np.empty((segments, lanes, length, CONTEXT), np.int32)
    for segment in range(segments):
        before = np.where(part.start[segment][:, None], -1, before)
        tokens = np.concatenate([before, part.tokens[segment]], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT, axis=1)
        contexts[segment] = windows[:, 1:]
        before = tokens[:, -CONTEXT:]
    return contexts, before


class _Builder:
    """Collects entries and writes them in shards; the manifest is valid after each shard."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.manifest = folder, manifest
        self._arrays = {name: [] for name in shard_arrays(1, 'float32')}
        self.waiting = 0

    def add(self, part: Part, contexts: np.ndarray) -> None:
        """Adds the counted tokens of a part."""
        counted = part.counted
        documents = np.broadcast_to(part.documents[:, :, None], counted.shape)
        for name, array in (
            ('keys', part.keys),
            ('values', part.targets),
            ('documents', documents),
            ('contexts', contexts),
        ):
            self._arrays[name].append(array[counted])
        self.waiting += int(counted.sum())

    def write(self, reader: Reader, contexts: np.ndarray, complete: bool) -> None:
        """Writes a shard of all waiting entries, then the memories, then the manifest."""
        index = len(self.manifest['shards'])
        shard = {'count': self.waiting, 'sha256': {}}
        arrays = shard_arrays(self.manifest['identity']['width'], self.manifest['dtype'])
        if self.waiting:
            for name, (dtype, _) in arrays.items():
                entries = np.concatenate(self._arrays[name]).astype(dtype)
                if dtype == 'float16' and not np.isfinite(entries).all():
                    raise UsageError(
                        "config.retrieval.dtype = 'float16': keys are too large for it; use "
                        "'float32'."
                    )
                path = self.folder / f'{name}.{index:05}.bin'
                entries.tofile(path)
                shard['sha256'][name] = checksum(path)
            self.manifest['shards'].append(shard)
        self._arrays = {name: [] for name in self._arrays}
        self.waiting = 0
        old = self.manifest.get('progress')
        self.manifest['complete'] = complete
        if complete:
            self.manifest.pop('progress', None)
        else:
            name = f'progress-{index:05}.safetensors'
            leaves = jax.tree.leaves(reader.memory)
            saved = {f'memory_{i:05}': np.asarray(leaf) for i, leaf in enumerate(leaves)}
            saved |= {
                'document': np.asarray(reader.cursor.document),
                'offset': np.asarray(reader.cursor.offset),
                'ordinals': reader.ordinals,
                'contexts': contexts,
            }
            # safetensors writes the buffer of an array as it is, also of a view.
            saved = {key: np.ascontiguousarray(array) for key, array in saved.items()}
            save_file(saved, self.folder / name)
            self.manifest['progress'] = name
        write_manifest(self.folder, self.manifest)
        if old and old != self.manifest.get('progress'):
            (self.folder / old).unlink(missing_ok=True)


def build(experiment: Experiment, split: str) -> Datastore:
    """Writes the keys and values of a split, or resumes where an earlier call stopped.

    Args:
      experiment: a trained model; `config.retrieval` sets the folder and how to write.
      split: 'train', 'validation' or 'test' of `config.data`, which may be any corpus.

    Raises:
      UsageError: no folder was given, it has the datastore of another model or split, or its
        progress file cannot be read.
    """
    settings = experiment.config.retrieval
    if not settings.datastore:
        raise UsageError('config.retrieval.datastore is missing: the folder to write to.')
    folder = Path(settings.datastore).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    params, step = experiment.restore_parameters()
    progress = Progress(0, log_every=0)
    reader = Reader(experiment, params, split)
    expected = {
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
    manifest = expected | {'shards': [], 'complete': False}
    contexts = np.full((experiment.config.evaluate.num_lanes, CONTEXT), -1, np.int32)
    if (folder / 'manifest.json').exists():
        manifest = read_manifest(folder)
        require_same(folder, manifest, expected['identity'])
        different = [name for name in ('dtype', 'source') if manifest[name] != expected[name]]
        if different:
            raise UsageError(
                f'{folder}: holds a datastore with another {" and ".join(different)} '
                f'({[manifest[name] for name in different]}); use another folder.'
            )
        if not manifest['complete']:
            contexts = _resume(folder, manifest, reader)
            progress.say(f'Resuming after shard {len(manifest["shards"])}.')
    if not manifest['complete']:
        builder = _Builder(folder, manifest)
        for part in reader.parts():
            part_contexts, contexts = _contexts(part, contexts)
            builder.add(part, part_contexts)
            if builder.waiting >= settings.shard_tokens:
                builder.write(reader, contexts, False)
                written = sum(shard['count'] for shard in manifest['shards'])
                progress.say(f'{written:,} keys written.')
        builder.write(reader, contexts, True)
    store = Datastore(folder, expected['identity'], verify=False)
    progress.say(f'{folder}: {len(store):,} keys of step {step:,}, {len(store.shards)} shards.')
    progress.close()
    return store


def _resume(folder: Path, manifest: dict[str, Any], reader: Reader) -> np.ndarray:
    """Moves a reader to the end of the last shard; returns the last tokens, [lanes, CONTEXT]."""
    name = manifest.get('progress')
    if not name:
        return np.full((len(reader.ordinals), CONTEXT), -1, np.int32)
    try:
        saved = load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f'{folder / name}: cannot be read ({error}); build again in another folder.'
        ) from error
    leaves, structure = jax.tree.flatten(reader.memory)
    for i, leaf in enumerate(leaves):
        saved_leaf = saved.get(f'memory_{i:05}')
        if saved_leaf is None or saved_leaf.shape != leaf.shape:
            raise UsageError(
                f'{folder / name}: memories of another shape; build again in another folder.'
            )
        leaves[i] = jax.device_put(saved_leaf)
    reader.memory = jax.tree.unflatten(structure, leaves)
    reader.cursor = Cursor(saved['document'], saved['offset'])
    reader.ordinals = saved['ordinals']
    return saved['contexts']
