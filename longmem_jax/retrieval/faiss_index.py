"""The nearest keys by FAISS on the host: cells and product codes, then distances in full precision.

IVF-PQ as in kNN-LM's code: queries search the `probe` nearest of `centroids` cells, where keys are
compared by codes of `code_size` bytes; the candidates are then sorted by distances to the stored keys.
Where a query finds too few, because its document is left out or its cells are almost empty, more cells
are searched for it, in the end all of them, so that `k` keys are found wherever there are as many.

The index is made once and is a file in the folder of the datastore, named after the keys it holds and
the settings it was made with (`faiss_file.py`); indices of keys that are no longer there are deleted.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import checksum
from longmem_jax.retrieval import faiss_file
from longmem_jax.retrieval.datastore import Datastore, indices
from longmem_jax.retrieval.search import Neighbours, nearest_of, require_k

ADDED = 1 << 18
MADE_WITH = ('centroids', 'code_size', 'train_keys', 'seed')


class Faiss:
    """See `index.Index`; it considers `rerank * k` candidates.

    With `rerank` 0 it takes the first k and trusts FAISS's distances, which are those to the codes.
    """

    def __init__(self, store: Datastore, settings: Any):
        """Reads the index file, or trains and fills one.

        Raises:
          UsageError: FAISS is not installed, the sizes do not fit, or the file is damaged.
        """
        try:
            import faiss
        except ImportError as error:
            raise UsageError(
                "config.retrieval.index = 'faiss' needs FAISS: pip install 'longmem_jax[faiss]'."
            ) from error
        self._faiss: Any = faiss
        self._store, self._settings = store, settings
        size = settings.code_size
        if store.width % size:
            raise UsageError(
                f'config.retrieval.code_size = {size}: must divide the width {store.width} of keys.'
            )
        if settings.centroids > len(store):
            raise UsageError(
                f'config.retrieval.centroids = {settings.centroids}: more than the {len(store):,} '
                'keys of the datastore.'
            )
        if settings.centroids > settings.train_keys:  # FAISS needs a key for each
            raise UsageError(
                f'config.retrieval.train_keys = {settings.train_keys}: fewer than the '
                f'config.retrieval.centroids = {settings.centroids} that are learned from them; raise '
                'train_keys or lower centroids.'
            )
        made_with = json.dumps({name: settings[name] for name in MADE_WITH})
        name = f'index.{store.digest}.{checksum(made_with.encode())[:8]}.safetensors'
        path, self._index = store.folder / name, self._empty()
        if path.exists():
            faiss_file.load(path, faiss, self._index, store.digest, len(store))
        else:
            self._fill(path)

    def _empty(self) -> Any:
        """An index without keys, not trained."""
        faiss, store, settings = self._faiss, self._store, self._settings
        # Codes of eight bits need 256 keys for training.
        bits = min(8, max(1, int(np.log2(max(min(settings.train_keys, len(store)), 2)))))
        return faiss.IndexIVFPQ(
            faiss.IndexFlatL2(store.width),
            store.width,
            settings.centroids,
            settings.code_size,
            bits,
        )

    def _fill(self, path: Path) -> None:
        """Trains the index, fills it, and writes it to `path`; deletes indices of other keys."""
        store, settings = self._store, self._settings
        generator = np.random.default_rng(settings.seed)
        count = min(settings.train_keys, len(store))
        sample = np.sort(generator.choice(len(store), count, replace=False))
        self._index.train(store.rows('keys', sample).astype(np.float32))
        for _, keys in store.blocks(ADDED):
            self._index.add(np.ascontiguousarray(keys, np.float32))
        for other in indices(store.folder):
            if not other.match(f'index.{store.digest}.*.safetensors'):
                other.unlink()
        faiss_file.save(path, self._faiss, self._index, store.digest)

    def search(self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None) -> Neighbours:
        """See `index.Index`."""
        store, settings = self._store, self._settings
        require_k(k, store)
        queries = np.ascontiguousarray(queries, np.float32)
        if exclude is None:
            exclude = np.full((len(queries),), -1)
        count = min(max(int(k * settings.rerank), k), len(store))
        numbers = np.full((len(queries), count), -1, np.int64)
        coded = np.full(numbers.shape, np.inf, np.float32)
        probe = min(settings.probe, settings.centroids)
        missing = np.ones((len(queries),), bool)
        while missing.any():
            for document in np.unique(exclude[missing]):
                rows = np.flatnonzero(missing & (exclude == document))
                coded[rows], numbers[rows] = self._candidates(
                    queries[rows], count, int(document), probe
                )
            if probe == settings.centroids:
                break
            missing = (numbers >= 0).sum(axis=1) < k
            probe = min(2 * probe, settings.centroids)
        found = numbers >= 0
        if settings.rerank:
            return nearest_of(store, queries, numbers, found, k)
        return Neighbours(np.where(found, coded, np.inf), np.where(found, numbers, 0), found)

    def _candidates(
        self, queries: np.ndarray, count: int, document: int, probe: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest keys by their codes, outside of a document (-1 = none), in `probe` cells.

        `queries` are float32 [n, width]. Returns squared distances to the codes of the keys,
        float32 [n, count], and the numbers of the keys, int64 [n, count]; -1 where the cells have
        no more.
        """
        options: dict[str, Any] = {'nprobe': probe}
        if document >= 0:
            # One bit per key: FAISS does not look at those that are not set.
            others = np.packbits(self._store.documents != document, bitorder='little')
            options['sel'] = self._faiss.IDSelectorBitmap(others)
        parameters = self._faiss.SearchParametersIVF(**options)
        return self._index.search(queries, count, params=parameters)
