"""The nearest keys of a datastore by squared Euclidean distance: exactly, on one or many devices.

Blocks of keys go to the devices one after another and only a list of the best is kept, so neither all
keys nor all distances must fit there. Distances of the best are then computed again from the stored
keys, since the expanded square loses digits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.errors import UsageError
from longmem_jax.layers.nearest import top_k
from longmem_jax.retrieval.datastore import Datastore

QUERIES = 4096  # per search
SPARE = 8  # additional candidates, so that rounding of the expanded square misses none


def require_k(k: int, store: Datastore) -> None:
    """Raises `UsageError` unless 1 <= k <= the number of keys."""
    if not 1 <= k <= len(store):
        raise UsageError(
            f'config.retrieval.k = {k}: the datastore {store.folder} has {len(store):,} keys; '
            f'choose between 1 and {len(store):,}.'
        )


def distances(store: Datastore, queries: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Squared distances of queries [n, width] to the keys `numbers` [n, k]; float32 [n, k]."""
    squared = np.empty(numbers.shape, np.float32)
    # A few million values at a time stay in the CPU cache.
    block = max(1, (1 << 22) // (numbers.shape[1] * store.width))
    for start in range(0, len(queries), block):
        part = slice(start, start + block)
        difference = store.rows('keys', numbers[part]).astype(np.float32)
        difference -= queries[part, None]
        squared[part] = np.einsum('qkd,qkd->qk', difference, difference)
    return squared


def sorted_by_distance(
    squared: np.ndarray, numbers: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of each row, ascending; ties by number.

    Args:
      squared: squared distances [n, m].
      numbers: of the keys, [n, m].
      k: at most m.

    Returns:
      Squared distances and numbers, [n, k].
    """
    order = np.lexsort((numbers, squared), axis=-1)[:, :k]
    return np.take_along_axis(squared, order, axis=1), np.take_along_axis(numbers, order, axis=1)


class Exact:
    """Exact search over all keys; see `index.Index`."""

    def __init__(self, store: Datastore, block_size: int, mesh: Mesh):
        """Loads nothing yet.

        Args:
          store: the keys.
          block_size: keys on all devices at once; rounded up to a multiple of the devices.
          mesh: devices that a block is spread over.
        """
        self._store, self._mesh = store, mesh
        devices = mesh.devices.size
        self._block = -(-max(block_size, devices) // devices) * devices
        by_key = P(tuple(mesh.axis_names))
        self._by_key, self._everywhere = NamedSharding(mesh, by_key), NamedSharding(mesh, P())
        self._step = jax.jit(self._search_block, static_argnames='k')

    def _search_block(
        self,
        best: tuple[jax.Array, jax.Array],
        queries: jax.Array,
        exclude: jax.Array,
        block: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
        k: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Merges the nearest keys of a block into the best so far.

        Args:
          best: scores float32 [q, k], descending, and the numbers of their keys int32 [q, k].
          queries: float32 [q, width].
          exclude: int32 [q], documents to leave out; -1 = none.
          block: keys [n, width], their documents int32 [n], the number of the first key, and how
            many keys there are (int32 scalars).
          k: keys to keep.

        Returns:
          As `best`.
        """
        axes = tuple(self._mesh.axis_names)
        keys, documents, base, count = block

        def search_shard(
            keys: jax.Array,
            documents: jax.Array,
            queries: jax.Array,
            exclude: jax.Array,
            base: jax.Array,
            count: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            keys = keys.astype(jnp.float32)
            first = jax.lax.axis_index(axes) * keys.shape[0]
            scores = 2 * queries @ keys.T - jnp.square(keys).sum(axis=1)[None]
            position = first + jnp.arange(keys.shape[0], dtype=jnp.int32)
            mask = (position < count)[None] & (documents[None] != exclude[:, None])
            scores, index = top_k(jnp.where(mask, scores, -jnp.inf), min(k, keys.shape[0]))
            return scores, (index.astype(jnp.int32) + first + base)

        nearest = jax.shard_map(
            search_shard,
            mesh=self._mesh,
            in_specs=(P(axes), P(axes), P(), P(), P(), P()),
            out_specs=P(None, axes),
            check_vma=False,
        )(keys, documents, queries, exclude, base, count)
        scores, numbers = (jnp.concatenate(pair, 1) for pair in zip(best, nearest, strict=True))
        scores, order = jax.lax.top_k(scores, k)
        return scores, jnp.take_along_axis(numbers, order, axis=1)

    def search(
        self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `index.Index`."""
        store = self._store
        require_k(k, store)
        queries = np.asarray(queries, np.float32)
        results = [
            self._search(
                queries[start : start + QUERIES],
                k,
                None if exclude is None else exclude[start : start + QUERIES],
            )
            for start in range(0, len(queries), QUERIES)
        ]
        if not results:
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int64)
        return tuple(np.concatenate(part) for part in zip(*results, strict=True))

    def _search(
        self, queries: np.ndarray, k: int, exclude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        num_queries, padded_size = len(queries), 1 << max(len(queries) - 1, 1).bit_length()
        padded = np.zeros((padded_size, queries.shape[1]), np.float32)
        padded[:num_queries] = queries
        excluded = np.full((padded_size,), -1, np.int32)
        if exclude is not None:
            excluded[:num_queries] = exclude
        num_results, k = k, min(k + SPARE, len(self._store))
        put = functools.partial(jax.device_put, device=self._everywhere)
        padded, excluded = put(padded), put(excluded)
        best = put(
            (np.full((padded_size, k), -np.inf, np.float32), np.zeros((padded_size, k), np.int32))
        )
        for base, keys in self._store.blocks(self._block):
            count = len(keys)
            documents = self._store.rows('documents', np.arange(base, base + count))
            if count < self._block:
                spare = self._block - count
                keys = np.concatenate([keys, np.zeros((spare, keys.shape[1]), keys.dtype)])
                documents = np.concatenate([documents, np.full((spare,), -2, np.int32)])
            block = (
                jax.device_put(np.ascontiguousarray(keys), self._by_key),
                jax.device_put(documents, self._by_key),
                np.int32(base),
                np.int32(count),
            )
            best = self._step(best, padded, excluded, block, k=k)
        scores, numbers = (
            np.asarray(best[0])[:num_queries],
            np.asarray(best[1])[:num_queries].astype(np.int64),
        )
        exact = distances(self._store, queries, numbers)
        exact = np.where(np.isfinite(scores), exact, np.inf)
        return sorted_by_distance(exact, numbers, num_results)
