"""Building a datastore: one pass over a split that writes shards and can be resumed after each."""

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax import files
from longmem_jax.data import content
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import checksum
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.waiting import Waiting
from longmem_jax.retrieval import verified
from longmem_jax.retrieval.datastore import (
    CONTEXT,
    FORMAT,
    Datastore,
    damaged,
    identity,
    indices,
    read_manifest,
    require_same,
    shard_arrays,
    write_manifest,
)
from longmem_jax.retrieval.own_document import source_of
from longmem_jax.retrieval.progress_file import go_on, save_position
from longmem_jax.retrieval.reading import Part, Reader, in_text_order
from longmem_jax.workdir import Hold


def _contexts(part: Part, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last tokens read at each position of a part, [segments, lanes, length].

    Returns int32 [segments, lanes, length, CONTEXT]; and those of the part, as `before`. `before`, int32
    [lanes, CONTEXT], are the last tokens before it; -1 if there are none.
    """
    segments, lanes, length = part.tokens.shape
    contexts = np.empty((segments, lanes, length, CONTEXT), np.int32)
    after = length - part.context  # where the next segment begins
    for segment in range(segments):
        before = np.where(part.begins[segment][:, None], -1, before)
        tokens = np.concatenate([before, part.tokens[segment]], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT, axis=1)
        contexts[segment] = windows[:, 1:]
        before = tokens[:, after : after + CONTEXT]
    return contexts, before


class _Builder:
    """Writes entries to the files of a shard as they come; the manifest is valid after each shard.

    Attributes:
      folder, manifest: of the datastore.
      waiting: entries of the shard that is being written.
      total: entries added so far, in this call.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.manifest = folder, manifest
        self._arrays = shard_arrays(manifest['identity']['width'], manifest['dtype'])
        self._files: dict[str, Any] = {}
        self.waiting = self.total = 0

    def add(self, part: Part, contexts: np.ndarray) -> None:
        """Appends the counted tokens of a part."""
        counted = part.counted
        count = int(counted.sum())
        if not count:
            return
        if not self._files:  # files of a shard that was never finished are overwritten
            self._files = {name: self._new(name) for name in self._arrays}
        documents = np.broadcast_to(part.documents[:, :, None], counted.shape)
        for name, array in (
            ('keys', part.keys),
            ('values', part.targets),
            ('documents', documents),
            ('contexts', contexts),
        ):
            dtype, _ = self._arrays[name]
            entries = array[counted].astype(dtype, copy=False)
            if name == 'keys' and not np.isfinite(entries).all():
                raise UsageError(
                    "config.retrieval.dtype = 'float16': keys are too large for it; use 'float32'."
                    if np.isfinite(array[counted]).all() and dtype == 'float16'
                    else "the model's keys are not finite numbers; build from an earlier checkpoint."
                )
            # `tofile` does not say why it fails, so that a full disk would look like a fault of ours.
            with files.naming(self._path(name)):
                self._files[name].write(entries.data)
        self.waiting += count
        self.total += count

    def _path(self, name: str, shard: int = -1) -> Path:
        """The file of an array of a shard; -1 = the current one."""
        shard = len(self.manifest['shards']) if shard < 0 else shard
        return self.folder / f'{name}.{shard:05}.bin'

    def _new(self, name: str) -> Any:
        """Opens the file of an array of the current shard, empty; never one that a link leads to."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        return files.open_own(path, 'xb')

    def close(self) -> None:
        """Closes the files of the current shard, so that nothing is written to them any more."""
        for name, file in self._files.items():
            with files.naming(self._path(name)):  # what it held back is written here
                file.close()
        self._files = {}

    def write(self, reader: Reader, contexts: np.ndarray, complete: bool) -> None:
        """Ends a shard: its files, then the memories, then the manifest."""
        index = len(self.manifest['shards'])
        self.close()
        if self.waiting:
            for name in self._arrays:
                files.sync(self._path(name))
            sums = {name: checksum(self._path(name)) for name in self._arrays}
            self.manifest['shards'].append({'count': self.waiting, 'sha256': sums})
            verified.remember(
                self.folder, {self._path(name, index).name: value for name, value in sums.items()}
            )
        self.waiting = 0
        self.manifest['complete'] = complete
        if complete:
            self.manifest.pop('progress', None)
        else:
            name = f'progress-{index:05}.safetensors'
            save_position(self.folder / name, reader, contexts=contexts)
            self.manifest['progress'] = name
        write_manifest(self.folder, self.manifest)
        # Also those of earlier calls, which may have ended before they could.
        _forget_progress(self.folder, but=self.manifest.get('progress'))


def build(experiment: Experiment, split: str = 'train') -> Datastore:
    """Writes the keys and values of a split, or resumes where an earlier call stopped.

    All devices of the mesh read; what waits for the disk is one part of the text, not a shard.

    Args:
      split: 'train', 'validation' or 'test' of `config.data`, which may be any corpus.

    Raises:
      UsageError: no folder was given, or one that is a file, is among the texts, or has the datastore
        of another model or split; another process writes there; its progress file cannot be read.
    """
    settings = experiment.config.retrieval
    if not settings.datastore:
        raise UsageError('config.retrieval.datastore is missing: the folder to write to.')
    field = 'config.retrieval.datastore'
    content.require_outside(experiment.config.data, settings.datastore, field, 'keys')
    folder = Path(settings.datastore).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UsageError(
            f'{field} = {settings.datastore}: is a file; give the folder to write to.'
        ) from error
    # Two that write the same shards would leave neither whole.
    with contextlib.closing(Hold(folder, print, field)):
        return _build(experiment, split, folder)


def _build(experiment: Experiment, split: str, folder: Path) -> Datastore:
    """`build`, in a folder that nobody else writes to."""
    settings = experiment.config.retrieval
    params, step = experiment.restore_parameters()
    progress = Progress(0, log_every=0)
    context = settings.context
    # Without the losses, which with a large vocabulary are most of the work.
    reader = Reader(
        experiment, params, split, context=context, wanted=('keys',), dtype=settings.dtype
    )
    expected = {
        'format': FORMAT,
        'identity': identity(experiment, params),
        'dtype': settings.dtype,
        'source': source_of(experiment, split)
        | {
            'lanes': experiment.config.evaluate.num_lanes,
            'segment_length': experiment.config.evaluate.segment_length,
            'context': context,
        },
    }
    manifest = expected | {'shards': [], 'complete': False}
    # Windows are put into one lane, see `in_text_order`.
    lanes = 1 if context else experiment.config.evaluate.num_lanes
    contexts = np.full((lanes, CONTEXT), -1, np.int32)
    if (folder / 'manifest.json').exists():
        manifest = read_manifest(folder)
        require_same(folder, manifest, expected['identity'])
        _require_alike(folder, manifest, expected)
        if problem := _problem(folder, manifest):
            progress.say(f'{problem}: all shards are written again.')
            manifest = expected | {'shards': [], 'complete': False}
        elif not manifest['complete']:
            contexts = _resume(folder, manifest, reader, contexts)
            progress.say(f'Resuming after shard {len(manifest["shards"])}.')
    if not manifest['shards']:
        _clear(folder)
    elif manifest['complete']:
        _forget_progress(folder)  # of a call that ended before it could
    if not manifest['complete']:
        began, before = None, 0
        waiting = Waiting(f'Reading {split}', 0, 'keys')
        with (
            contextlib.closing(_Builder(folder, manifest)) as builder,
            contextlib.closing(waiting),
        ):
            for part in map(in_text_order, reader.parts()):
                part_contexts, contexts = _contexts(part, contexts)
                builder.add(part, part_contexts)
                at = min(int(part.documents.max()) + 1, reader.num_documents)
                waiting.update(builder.total, f' (document {at:,} of {reader.num_documents:,})')
                if builder.waiting >= settings.shard_tokens:
                    builder.write(reader, contexts, False)
                    written = sum(shard['count'] for shard in manifest['shards'])
                    progress.say(f'{written:,} keys written.')
                if began is None:  # the first part also compiles
                    began, before = time.perf_counter(), builder.total
            builder.write(reader, contexts, True)
        if began is not None and builder.total > before:
            rate = (builder.total - before) / (time.perf_counter() - began)
            progress.say(f'{rate:,.0f} keys per second.')
    vocab_size = experiment.tokenizer.vocab_size
    store = Datastore(
        folder, expected['identity'], False, vocab_size=vocab_size, report=progress.say
    )
    progress.say(f'{folder}: {len(store):,} keys of step {step:,}, {len(store.shards)} shards.')
    progress.close()
    return store


def _require_alike(folder: Path, manifest: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises `UsageError` if a datastore is of another text, or its keys were made otherwise."""
    there, here = ({'dtype': m['dtype']} | m.get('source', {}) for m in (manifest, expected))
    different = [
        f'{name}: {there.get(name)} there, {here.get(name)} here'
        for name in here | there
        if there.get(name) != here.get(name)
    ]
    if different:
        raise UsageError(
            f'{folder}: holds a datastore that was made otherwise ({"; ".join(different)}); use '
            'another folder.'
        )


def _resume(
    folder: Path, manifest: dict[str, Any], reader: Reader, contexts: np.ndarray
) -> np.ndarray:
    """Moves a reader to the end of the last shard.

    Returns the last tokens there, int32 [lanes, CONTEXT].
    """
    name = manifest.get('progress')
    if not name:
        return contexts
    path = folder / name
    found = go_on(path, reader, {'contexts': contexts})['contexts']
    if (found < -1).any():
        raise UsageError(f'{path}: has contexts below -1; delete {folder}, and start again.')
    return found


def _problem(folder: Path, manifest: dict[str, Any]) -> str:
    """Why a datastore cannot be opened or resumed; '' if it can."""
    missing = manifest['shards'] and not manifest['complete'] and 'progress' not in manifest
    return damaged(folder, manifest) or (missing and f'{folder}: has no progress file') or ''


def _forget_progress(folder: Path, but: str | None = None) -> None:
    """Deletes the positions after shards, except the one of the name `but`."""
    for path in files.named(folder, 'progress-*.safetensors'):
        if path.name != but:
            path.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Deletes what was made of earlier shards: indices, positions, and which files were compared."""
    for path in indices(folder):
        path.unlink()
    _forget_progress(folder)
    verified.forget(folder)
