"""The nearest keys of a datastore by squared Euclidean distance: exactly, on one or many devices.

Blocks of keys go to the devices one after the other and a list of the best is kept, so that neither
the keys nor the distances need fit there. Distances of what was found are computed again from the
stored keys: the expanded square loses digits.
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

QUERIES = 4096  # searched at once
SPARE = 8  # more than asked for, so that rounding of the expanded square leaves none out


def require_k(k: int, store: Datastore) -> None:
    """Raises `UsageError` where there are not so many keys."""
    if not 1 <= k <= len(store):
        raise UsageError(
            f'config.retrieval.k = {k}: the datastore {store.folder} has {len(store):,} keys; '
            'choose at least 1 and at most so many.'
        )


def distances(store: Datastore, queries: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Squared distances of queries [n, width] to keys by number [n, k], float32."""
    found = np.empty(numbers.shape, np.float32)
    # A few million numbers at a time: they stay in the cache.
    some = max(1, (1 << 22) // (numbers.shape[1] * store.width))
    for at in range(0, len(queries), some):
        part = slice(at, at + some)
        away = store.rows('keys', numbers[part]).astype(np.float32)
        away -= queries[part, None]
        found[part] = np.einsum('qkd,qkd->qk', away, away)
    return found


def sorted_by_distance(found: np.ndarray, numbers: np.ndarray, k: int):
    """The k least of each row, rising; equal distances by number."""
    order = np.lexsort((numbers, found), axis=-1)[:, :k]
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(numbers, order, axis=1)


class Exact:
    """Every key is looked at."""

    def __init__(self, store: Datastore, block_size: int, mesh: Mesh):
        """Nothing is loaded yet.

        Args:
          store: the keys.
          block_size: keys on all devices at once; rounded up to their number.
          mesh: devices that a block is spread over.
        """
        self._store, self._mesh = store, mesh
        devices = mesh.devices.size
        self._block = -(-max(block_size, devices) // devices) * devices
        axes = tuple(mesh.axis_names)
        self._rows, self._whole = NamedSharding(mesh, P(axes)), NamedSharding(mesh, P())

        @functools.partial(jax.jit, static_argnames='k')
        def step(best, queries, keys, documents, exclude, base, count, k):
            def own(keys, documents, queries, exclude, base, count):
                keys = keys.astype(jnp.float32)
                place = jax.lax.axis_index(axes) * keys.shape[0]
                scores = 2 * queries @ keys.T - jnp.square(keys).sum(axis=1)[None]
                number = place + jnp.arange(keys.shape[0], dtype=jnp.int32)
                seen = (number < count)[None] & (documents[None] != exclude[:, None])
                scores = jnp.where(seen, scores, -jnp.inf)
                take = min(k, keys.shape[0])
                scores, at = top_k(scores, take)
                return scores, (at.astype(jnp.int32) + place + base)

            scores, at = jax.shard_map(
                own,
                mesh=mesh,
                in_specs=(P(axes), P(axes), P(), P(), P(), P()),
                out_specs=P(None, axes),
                check_vma=False,
            )(keys, documents, queries, exclude, base, count)
            scores, at = (jnp.concatenate(pair, 1) for pair in zip(best, (scores, at), strict=True))
            scores, order = jax.lax.top_k(scores, k)
            return scores, jnp.take_along_axis(at, order, axis=1)

        self._step = step

    def search(self, queries, k, exclude=None):
        """See `index.Index`."""
        store = self._store
        require_k(k, store)
        queries = np.asarray(queries, np.float32)
        found = [
            self._search(
                queries[at : at + QUERIES],
                k,
                None if exclude is None else exclude[at : at + QUERIES],
            )
            for at in range(0, len(queries), QUERIES)
        ]
        if not found:
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int64)
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))

    def _search(self, queries, k, exclude):
        number, room = len(queries), 1 << max(len(queries) - 1, 1).bit_length()
        padded = np.zeros((room, queries.shape[1]), np.float32)
        padded[:number] = queries
        outside = np.full((room,), -1, np.int32)
        if exclude is not None:
            outside[:number] = exclude
        wanted, k = k, min(k + SPARE, len(self._store))
        put = functools.partial(jax.device_put, device=self._whole)
        padded, outside = put(padded), put(outside)
        best = put((np.full((room, k), -np.inf, np.float32), np.zeros((room, k), np.int32)))
        for base, keys in self._store.blocks(self._block):
            count = len(keys)
            documents = self._store.rows('documents', np.arange(base, base + count))
            if count < self._block:
                spare = self._block - count
                keys = np.concatenate([keys, np.zeros((spare, keys.shape[1]), keys.dtype)])
                documents = np.concatenate([documents, np.full((spare,), -2, np.int32)])
            best = self._step(
                best,
                padded,
                jax.device_put(np.ascontiguousarray(keys), self._rows),
                jax.device_put(documents, self._rows),
                outside,
                np.int32(base),
                np.int32(count),
                k=k,
            )
        scores, numbers = (
            np.asarray(best[0])[:number],
            np.asarray(best[1])[:number].astype(np.int64),
        )
        exact = distances(self._store, queries, numbers)
        exact = np.where(np.isfinite(scores), exact, np.inf)
        return sorted_by_distance(exact, numbers, wanted)
