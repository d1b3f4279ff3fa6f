"""Neighbours of test rows by FAISS on the host, for memories too large for exact search.

This is only for reading before an answer. Within the stream the memory changes in every step and is
searched exactly. Keys are split into as many cells as the root of their number, stored with the digits
they have in the memory, and a query is compared to the keys of its nearest cells. A neighbour in another
cell is missed; where the cells have too few keys, more are searched.

There is little to gain. For a million keys of 768, exact search takes 35 ms of one core per row, and
this 25 ms with 8 cells (99 % of the neighbours, of keys made in clusters) after 18 s for the index; to
adapt BERT-base to 32 neighbours in 30 steps takes tens of thousands of times the arithmetic of either.
So exact search is the default at every size.
"""

import zlib
from typing import Any

import jax
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.lifelong.episodic import Memory

SAMPLE = 64  # keys per cell that the cells are learned from
ADDED = 1 << 16  # keys that are added at a time, as float32
SEED = 1234  # of the cells


class CellSearch:
    """Finds the nearest entries of a memory; the index of the last memory is kept for the next call."""

    def __init__(self, probe: int, field: str):
        """Builds nothing yet.

        `probe` cells are searched for a query; as many as there are = exact.

        Raises:
          UsageError: FAISS is not installed.
        """
        try:
            import faiss
        except ImportError as error:
            raise UsageError(
                f"config.lifelong: {field} needs FAISS: pip install -e '.[faiss]', or set it to 0 for "
                'exact search.'
            ) from error
        self._faiss: Any = faiss
        self._probe = probe
        self._known: tuple[Any, Any] = (None, None)

    def _index(self, keys: np.ndarray) -> Any:
        """An index of keys, float16 or float32 [n, width], n at least 1."""
        faiss, (count, width) = self._faiss, keys.shape
        content: Any = np.ascontiguousarray(keys).view(np.uint8)
        mark = (keys.shape, keys.dtype.str, zlib.crc32(content))
        if self._known[0] == mark:
            return self._known[1]
        self._known = (None, None)  # two may not fit
        cells = max(1, round(count**0.5))
        half = keys.dtype == np.float16
        kind = faiss.ScalarQuantizer.QT_fp16
        flat = faiss.IndexFlatL2(width)
        index = (
            faiss.IndexIVFScalarQuantizer(flat, width, cells, kind, faiss.METRIC_L2, False)
            if half
            else faiss.IndexIVFFlat(flat, width, cells, faiss.METRIC_L2)
        )
        index.cp.seed, index.cp.min_points_per_centroid = SEED, 1
        sample = np.random.default_rng(SEED).permutation(count)[: SAMPLE * cells]
        index.train(keys[np.sort(sample)].astype(np.float32))
        for start in range(0, count, ADDED):
            index.add(np.ascontiguousarray(keys[start : start + ADDED], np.float32))
        self._known = (mark, index)
        return index

    def places(self, keys: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
        """Entries whose keys, [entries, width], are nearest to queries, float32 [n, width].

        Returned are int32 [n, k], nearest first; -1 = there are no more.
        """
        found = np.full((len(queries), k), -1, np.int64)
        if not len(keys):
            return found.astype(np.int32)
        index = self._index(keys)
        probe, missing = min(self._probe, index.nlist), np.arange(len(queries))
        while len(missing):
            options = self._faiss.SearchParametersIVF(nprobe=probe)
            asked = np.ascontiguousarray(queries[missing], np.float32)
            found[missing] = index.search(asked, k, params=options)[1]
            missing = missing[(found[missing] >= 0).sum(axis=1) < min(k, len(keys))]
            probe = min(2 * probe, index.nlist)
        return found.astype(np.int32)

    def nearest(self, memory: Memory, queries: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        """As `episodic.nearest` without distances; may be compiled, and waits for the host."""

        def on_host(keys: jax.Array, size: jax.Array, queries: jax.Array) -> np.ndarray:
            return self.places(np.asarray(keys)[: int(size)], np.asarray(queries), k)

        shape = jax.ShapeDtypeStruct((len(queries), k), np.int32)
        places = jax.pure_callback(on_host, shape, memory.keys, memory.size, queries)
        return memory.numbers[places], places >= 0
