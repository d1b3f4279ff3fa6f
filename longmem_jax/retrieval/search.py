"""The nearest keys of a datastore by squared Euclidean distance: exactly, on one or many devices.

Keys are compared in blocks and only a list of the best is kept, so distances never fill the devices.
Where all keys fit, they are brought there once and stay; else blocks of them are sent for every search.
Distances of the best are then computed again from the stored keys, since the expanded square loses
digits.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.errors import UsageError
from longmem_jax.kernels.cpu.top_k import top_k
from longmem_jax.retrieval.datastore import Datastore

QUERIES = 4096  # per search
SPARE = 8  # additional candidates, so that rounding of the expanded square misses none


class Neighbours(NamedTuple):
    """The nearest keys of some queries.

    Attributes:
      distances: squared distances float32 [n, k], ascending; infinite where nothing was found.
      numbers: of the keys in the datastore, int64 [n, k]; 0 where nothing was found.
      found: bool [n, k]; False where fewer than k keys could be had. Such entries come last, and
        their numbers mean nothing.
    """

    distances: np.ndarray
    numbers: np.ndarray
    found: np.ndarray


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


def nearest_of(
    store: Datastore, queries: np.ndarray, numbers: np.ndarray, found: np.ndarray, k: int
) -> Neighbours:
    """The k nearest of some candidates, int64 [n, m], m at least k, by distances to the stored
    keys; ties by number. `found`, bool [n, m], False = not a candidate; `queries` are float32 [n,
    width].
    """
    numbers = np.where(found, numbers, 0).astype(np.int64)
    squared = np.where(found, distances(store, queries, numbers), np.inf).astype(np.float32)
    order = np.lexsort((numbers, squared), axis=-1)[:, :k]
    return Neighbours(*(np.take_along_axis(array, order, 1) for array in (squared, numbers, found)))


class Exact:
    """Exact search over all keys; see `index.Index`.

    Keys that stay are split over the `memory` axis of the mesh and queries over the others; if a part
    of the keys is then too large for a device, keys are split over all axes, as blocks that are sent.
    """

    def __init__(self, store: Datastore, block_size: int, mesh: Mesh, resident_gib: float):
        """Loads nothing yet.

        `block_size` keys are compared at a time, rounded up to a multiple of the devices; keys stay
        on the devices if they take at most `resident_gib` GiB on each.
        """
        self._store, self._mesh = store, mesh
        devices = mesh.devices.size
        size = min(block_size, len(store))
        self._block = -(-max(size, devices) // devices) * devices
        self._num_blocks = -(-len(store) // self._block)
        entry = store.rows('keys', np.arange(1))
        num_bytes = self._num_blocks * self._block * (entry.nbytes + 4)
        everywhere = tuple(mesh.axis_names)
        fitting = [
            axes
            for axes in (('memory',), everywhere)
            if num_bytes / math.prod(mesh.shape[axis] for axis in axes) <= resident_gib * 2**30
        ]
        self._stays, self._axes = bool(fitting), (*fitting, everywhere)[0]
        self._query_axes = tuple(axis for axis in everywhere if axis not in self._axes)
        self._by_key = NamedSharding(mesh, P(None, self._axes))
        self._by_query = NamedSharding(mesh, P(self._query_axes or None))
        self._resident: tuple[jax.Array, jax.Array] | None = None
        self._step = jax.jit(self._search_blocks, static_argnames='k')

    def _search_blocks(
        self,
        best: tuple[jax.Array, jax.Array, jax.Array],
        queries: jax.Array,
        exclude: jax.Array,
        blocks: tuple[jax.Array, jax.Array],
        first: jax.Array,
        count: jax.Array,
        k: int,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Merges the nearest keys of some blocks into the best so far.

        Args:
          best: scores float32 [q, k], descending, and the block and the row in it of their keys,
            int32 [q, k]; so numbers of keys may be larger than 32 bits hold.
          queries: float32 [q, width].
          exclude: int32 [q], documents to leave out; -1 = none.
          blocks: keys [blocks, rows, width] and their documents int32 [blocks, rows].
          first: int32 scalar, number of the first block.
          count: int32 scalar, keys of the last block; all others are full.
          k: keys to keep.

        Returns:
          As `best`.
        """
        axes, queries_by = self._axes, self._query_axes or None

        def search_shard(
            best: tuple[jax.Array, ...],
            queries: jax.Array,
            exclude: jax.Array,
            keys: jax.Array,
            documents: jax.Array,
            count: jax.Array,
        ) -> tuple[jax.Array, ...]:
            num_blocks, rows, _ = keys.shape
            first_row = jax.lax.axis_index(axes) * rows

            def search_block(
                best: tuple[jax.Array, ...], block: tuple[jax.Array, ...]
            ) -> tuple[tuple[jax.Array, ...], None]:
                number, keys, documents = block
                keys = keys.astype(jnp.float32)
                scores = 2 * queries @ keys.T - jnp.square(keys).sum(axis=1)[None]
                row = first_row + jnp.arange(rows, dtype=jnp.int32)
                mask = (row < count) | (number < first + num_blocks - 1)
                mask = mask[None] & (documents[None] != exclude[:, None])
                scores, index = top_k(jnp.where(mask, scores, -jnp.inf), min(k, rows))
                row = index.astype(jnp.int32) + first_row
                return _merge(best, (scores, jnp.full_like(row, number), row)), None

            numbers = first + jnp.arange(num_blocks, dtype=jnp.int32)
            # Only the first device begins with the best so far, or they would be counted repeatedly.
            start = jnp.where(jax.lax.axis_index(axes) == 0, best[0], -jnp.inf)
            return jax.lax.scan(search_block, (start, *best[1:]), (numbers, keys, documents))[0]

        by_query, by_key = P(queries_by), P(None, axes)
        found = jax.shard_map(
            search_shard,
            mesh=self._mesh,
            in_specs=(by_query, by_query, by_query, by_key, by_key, P()),
            out_specs=P(queries_by, axes),
            check_vma=False,
        )(best, queries, exclude, *blocks, count)
        scores, order = top_k(found[0], k)
        block, row = (jnp.take_along_axis(place, order, axis=1) for place in found[1:])
        return scores, block, row

    def _load(self) -> tuple[jax.Array, jax.Array]:
        """Keys [blocks, rows, width] and their documents on the devices; the last fills its block."""
        store, shape = self._store, (self._num_blocks, self._block)

        def part(name: str, index: tuple[slice, ...]) -> np.ndarray:
            block, row = (np.arange(size)[of] for size, of in zip(shape, index, strict=False))
            numbers = block[:, None] * self._block + row[None]
            return store.rows(name, np.minimum(numbers, len(store) - 1))

        keys, documents = (
            jax.make_array_from_callback(
                (*shape, *store.rows(name, np.arange(1)).shape[1:]),
                self._by_key,
                functools.partial(part, name),
            )
            for name in ('keys', 'documents')
        )
        return keys, documents

    def _sent(self) -> Iterator[tuple[tuple[jax.Array, jax.Array], int, int]]:
        """Blocks one by one: keys and documents as in `_load`, number, and how many keys it has."""
        for number in range(self._num_blocks):
            numbers = number * self._block + np.arange(self._block)
            count = min(self._block, len(self._store) - number * self._block)
            numbers = np.minimum(numbers, len(self._store) - 1)[None]
            rows = (self._store.rows(name, numbers) for name in ('keys', 'documents'))
            yield tuple(jax.device_put(row, self._by_key) for row in rows), number, count

    def _blocks(self) -> Iterator[tuple[tuple[jax.Array, jax.Array], int, int]]:
        """What to search one after another; as `_sent`, or all blocks at once."""
        if not self._stays:
            yield from self._sent()
            return
        if self._resident is None:
            self._resident = self._load()
        yield self._resident, 0, len(self._store) - (self._num_blocks - 1) * self._block

    def search(self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None) -> Neighbours:
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
            return Neighbours(*(np.zeros((0, k), dtype) for dtype in (np.float32, np.int64, bool)))
        return Neighbours(*(np.concatenate(part) for part in zip(*results, strict=True)))

    def _search(self, queries: np.ndarray, k: int, exclude: np.ndarray | None) -> Neighbours:
        num_queries = len(queries)
        padded_size = 1 << max(num_queries - 1, 1).bit_length()
        shards = math.prod(self._mesh.shape[axis] for axis in self._query_axes)
        padded_size = -(-padded_size // shards) * shards
        padded = np.zeros((padded_size, queries.shape[1]), np.float32)
        padded[:num_queries] = queries
        excluded = np.full((padded_size,), -1, np.int32)
        if exclude is not None:
            excluded[:num_queries] = exclude
        num_results, k = k, min(k + SPARE, len(self._store))
        put = functools.partial(jax.device_put, device=self._by_query)
        padded, excluded = put(padded), put(excluded)
        nowhere = np.zeros((padded_size, k), np.int32)
        best = put((np.full((padded_size, k), -np.inf, np.float32), nowhere, nowhere))
        for blocks, first, count in self._blocks():
            before = best
            best = self._step(best, padded, excluded, blocks, np.int32(first), np.int32(count), k=k)
            # At most two blocks wait on the devices.
            jax.block_until_ready(before)
        scores, numbers, rows = (np.asarray(array)[:num_queries] for array in best)
        numbers = numbers.astype(np.int64) * self._block + rows
        return nearest_of(self._store, queries, numbers, np.isfinite(scores), num_results)


def _merge(best: tuple[jax.Array, ...], others: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The best of both; the first array [q, n] of each is the scores, [q, k] are kept."""
    scores, *places = (jnp.concatenate(pair, axis=1) for pair in zip(best, others, strict=True))
    scores, order = top_k(scores, best[0].shape[1])
    return scores, *(jnp.take_along_axis(place, order, axis=1) for place in places)
