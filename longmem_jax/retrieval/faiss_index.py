"""The nearest keys by FAISS on the host: cells and product codes, then distances in full precision.

IVF-PQ as in kNN-LM's code: queries search the `probe` nearest of `centroids` cells, where keys are
compared by codes of `code_size` bytes; the candidates are then sorted by distances to the stored keys.
Keys are never removed. The index is made once and is a file in the folder of the datastore.
"""

from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file
from longmem_jax.retrieval.datastore import Datastore
from longmem_jax.retrieval.search import distances, require_k, sorted_by_distance

ADDED = 1 << 18


class Faiss:
    """See `index.Index`; it considers `rerank * k` candidates."""

    def __init__(self, store: Datastore, settings: Any):
        """Reads the index file, or trains and fills one.

        Args:
          store: the keys.
          settings: `config.retrieval`.

        Raises:
          UsageError: FAISS is not installed, or the sizes do not fit.
        """
        try:
            import faiss
        except ImportError as error:
            raise UsageError(
                "config.retrieval.index = 'faiss' needs FAISS: pip install -e '.[faiss]'."
            ) from error
        self._faiss, self._store, self._settings = faiss, store, settings
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
        path = store.folder / f'index.{settings.centroids}.{size}.faiss'
        if path.exists():
            try:
                self._index = faiss.read_index(str(path))
            except RuntimeError as error:
                raise UsageError(
                    f'{path}: cannot be read ({error}); delete it, and it will be rebuilt.'
                ) from error
            if self._index.ntotal != len(store):
                raise UsageError(
                    f'{path}: holds {self._index.ntotal:,} keys, the datastore {len(store):,}; '
                    'delete it; it will be rebuilt.'
                )
        else:
            self._index = self._make(path)
        self._index.nprobe = settings.probe

    def _make(self, path: Path) -> Any:
        """Trains the index, fills it, and writes it to `path`."""
        faiss, store, settings = self._faiss, self._store, self._settings
        # Codes of eight bits need 256 keys for training.
        bits = min(8, max(1, int(np.log2(max(len(store), 2)))))
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatL2(store.width),
            store.width,
            settings.centroids,
            settings.code_size,
            bits,
        )
        generator = np.random.default_rng(settings.seed)
        count = min(settings.train_keys, len(store))
        sample = np.sort(generator.choice(len(store), count, replace=False))
        index.train(store.rows('keys', sample).astype(np.float32))
        for _, keys in store.blocks(ADDED):
            index.add(np.ascontiguousarray(keys, np.float32))
        with whole_file(path) as partial:
            faiss.write_index(index, str(partial))
        return index

    def search(
        self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `index.Index`; if fewer than k are found, the rest have infinite distances."""
        store = self._store
        require_k(k, store)
        queries = np.ascontiguousarray(queries, np.float32)
        num_candidates = min(max(int(k * self._settings.rerank), k), len(store))
        _, numbers = self._index.search(queries, num_candidates)
        missing = numbers < 0
        numbers = np.where(missing, 0, numbers)
        exact = distances(store, queries, numbers)
        if exclude is not None:
            missing |= store.rows('documents', numbers) == exclude[:, None]
        return sorted_by_distance(np.where(missing, np.inf, exact), numbers, k)
