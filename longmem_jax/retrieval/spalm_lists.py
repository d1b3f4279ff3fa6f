"""The neighbours of all tokens of a split, looked up once and kept on disk.

The keys never change, so neither do a token's neighbours, however long a model is trained on them. The
cost is one search per token of the split, and eight bytes per neighbour.

WORKDIR/spalm_neighbours/SPLIT-DIGEST/, the digest over all that the lists depend on:
numbers.bin            int64 [tokens, K], numbers of keys in the datastore, nearest first; -1 = none
progress.safetensors   where the search is, until all are found; another call resumes from it
lists.json             what the lists depend on, and a checksum; written at the end
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, open_own, own_folder, sync, write_json
from longmem_jax.retrieval import verified
from longmem_jax.retrieval.datastore import Datastore
from longmem_jax.retrieval.own_document import is_own_text, source_of
from longmem_jax.retrieval.progress_file import go_on, save_position
from longmem_jax.retrieval.reading import Part, Reader, in_text_order
from longmem_jax.retrieval.spalm_keys import Keys
from longmem_jax.untrusted import json_file, schema

SEARCH = (
    'index', 'key', 'context', 'centroids', 'code_size', 'probe', 'rerank', 'train_keys', 'seed',
)  # fmt: skip
SAVED_EVERY = 16  # parts
ABOUT = schema.fields({'sha256': schema.text('[0-9a-f]{64}', 'a SHA-256')}, others=True)


class Lists:
    """The neighbours of the tokens of a split.

    Attributes:
      folder: where they are.
      numbers: int64 [tokens, K], memory-mapped; -1 = none. Documents follow each other in the order
        of the split.
      firsts: int64 [documents], row of each document's first token.
    """

    def __init__(self, folder: Path, numbers: np.ndarray, firsts: np.ndarray, store: Datastore):
        """Arguments as the attributes, and the datastore."""
        self.folder, self.numbers, self.firsts, self._store = folder, numbers, firsts, store

    def first(self, document: int) -> int:
        """The row of a document's first token."""
        return int(self.firsts[document])

    def tokens(self, rows: np.ndarray) -> np.ndarray:
        """The tokens that followed the neighbours of rows, int64 [...], -1 = none.

        Returns int32 [..., K]; -1 where there is no neighbour.
        """
        numbers = np.where(rows[..., None] >= 0, self.numbers[np.maximum(rows, 0)], -1)
        values = self._store.rows('values', np.maximum(numbers, 0))
        return np.where(numbers >= 0, values, -1).astype(np.int32)


class Places:
    """The row of every token of the parts of a pass, which come in the order of the text.

    `seen`, int64 [documents], are tokens read so far of every document.
    """

    def __init__(self, firsts: np.ndarray):
        """`firsts`: int64 [documents], row of each document's first token."""
        self._firsts = firsts
        self.seen = np.zeros(len(firsts), np.int64)

    def rows(self, part: Part) -> np.ndarray:
        """The row of every new token, int64 [segments, lanes, length]; -1 for all others."""
        new = np.array(part.valid)
        new[~part.begins, : part.context] = False  # read before
        rows = np.full(new.shape, -1, np.int64)
        for segment, lane in np.argwhere(new.any(axis=2)):
            document, count = part.documents[segment, lane], int(new[segment, lane].sum())
            first = self._firsts[document] + self.seen[document]
            rows[segment, lane, new[segment, lane]] = first + np.arange(count)
            self.seen[document] += count
        return rows


def firsts_of(lengths: np.ndarray) -> np.ndarray:
    """The row of every document's first token, int64 [documents]."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def look_up(workdir: Path, keys: Keys, split: str, k: int, report: Callable[[str], None]) -> Lists:
    """Opens the lists of a split; looks up what is missing.

    Args:
      split: what to look up. Where it is the text of the datastore, a token's own document is left
        out.

    Raises:
      UsageError: a token's own document is not known or the only one, or files are damaged.
    """
    experiment, store = keys.experiment, keys.store
    settings, reading = experiment.config.retrieval, experiment.config.evaluate
    text = source_of(experiment, split)
    own_text = is_own_text(store, text)
    if own_text:
        _require_others(store, split)
    about = {
        'text': text['documents'],
        'datastore': store.digest,
        'own_document_left_out': own_text,
        'k': k,
        'reading': {'segment_length': reading.segment_length, 'model': reading.model.to_dict()},
        'search': {name: settings[name] for name in SEARCH},
    }
    digest = checksum(json.dumps(about, sort_keys=True).encode())[:12]
    folder = workdir / 'spalm_neighbours' / f'{split}-{digest}'
    own_folder(folder.parent)
    own_folder(folder)
    lengths = experiment.corpus(split).lengths()
    firsts, shape = firsts_of(lengths), (int(lengths.sum()), k)
    finished, path = folder / 'lists.json', folder / 'numbers.bin'
    if not finished.exists():
        if own_text:
            report(f'Neighbours of {split} are from other documents than the token itself.')
        report(f'Looking up {k} neighbours of {shape[0]:,} tokens of {split}: {folder}')
        _search(folder, keys, split, own_text, firsts, shape)
        sync(path)
        write_json(finished, about | {'sha256': checksum(path)})
        (folder / 'progress.safetensors').unlink(missing_ok=True)
    size = path.stat().st_size if path.exists() else 0
    if size != 8 * shape[0] * k:
        raise UsageError(
            f'{path}: {size:,} bytes, {8 * shape[0] * k:,} are needed. Delete {folder}, and start '
            'again.'
        )
    saved = schema.require(json_file.read(finished), ABOUT, finished)
    sums = {path.name: saved['sha256']}
    verified.require(folder, sums, 'int64', again=settings.verify, report=report)
    return Lists(folder, np.memmap(path, np.int64, 'r', shape=shape), firsts, store)


def _require_others(store: Datastore, split: str) -> None:
    """Raises `UsageError` if a datastore has a single document, which is left out for all its tokens."""
    if store.documents.min() == store.documents.max():
        raise UsageError(
            f'{store.folder}: holds {split} as a single document, and neighbours are never of the '
            "token's own document, so no token would have any. Divide the text, by "
            '--config.data.documents=line or --config.data.pieces=16, train the model of the keys and '
            'build its datastore again.'
        )


def _search(
    folder: Path, keys: Keys, split: str, own_text: bool, firsts: np.ndarray, shape: Any
) -> None:
    """Fills `numbers.bin` from the beginning, or from where an earlier call stopped."""
    path, progress = folder / 'numbers.bin', folder / 'progress.safetensors'
    context = keys.experiment.config.retrieval.context
    reader = Reader(keys.experiment, keys.params, split, context=context, wanted=('keys',))
    resuming = progress.exists() and path.exists()
    places = Places(firsts)
    if resuming:
        places.seen = go_on(progress, reader, {'seen': places.seen})['seen']
        _require_seen(places.seen, firsts, shape[0], progress)
    mode: Any = 'r+' if resuming else 'w+'
    with open_own(path, f'{mode}b') as file:
        numbers = np.memmap(file, np.int64, mode, shape=shape)
    if not resuming:
        numbers[:] = -1
    for count, part in enumerate(map(in_text_order, reader.parts()), 1):
        rows, counted = places.rows(part), part.counted
        documents = np.broadcast_to(part.documents[:, :, None], counted.shape)[counted]
        found = keys.index.search(part.keys[counted], shape[1], documents if own_text else None)
        numbers[rows[counted]] = np.where(found.found, found.numbers, -1)
        if count % SAVED_EVERY == 0:
            numbers.flush()
            save_position(progress, reader, seen=places.seen)
    numbers.flush()


def _require_seen(seen: np.ndarray, firsts: np.ndarray, tokens: int, path: Path) -> None:
    """Raises `UsageError` if more tokens of a document were read than it has: its rows are others'."""
    if (seen < 0).any() or (seen > np.diff(firsts, append=tokens)).any():
        raise UsageError(
            f'{path}: more tokens of a document were read than it has; delete {path.parent}, and '
            'start again.'
        )
