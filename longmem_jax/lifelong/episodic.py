"""An episodic memory: numbers of rows of the stream, and their keys, in a ring of static capacity.

Rows themselves stay where they are: a memory of 575,000 rows of BERT is 0.9 GB of keys and 2.3 MB of
numbers. When it is full, the oldest entry is overwritten.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.kernels.cpu.top_k import top_k
from longmem_jax.lifelong.chunks import in_chunks

DTYPES = ('float16', 'float32')  # of keys
BLOCK = 1 << 14  # keys that are compared at a time
QUERIES = 256  # queries that are compared at a time
SPARE = 8  # additional candidates, so that rounding of the expanded square misses none


class Memory(flax.struct.PyTreeNode):
    """What was written, in order; entries [0, min(count, capacity)) are there.

    Attributes:
      numbers: rows of the stream, int32 [capacity].
      keys: float16 or float32 [capacity, width]; width 0 = the method reads at random.
      count: int32 scalar, rows written since the start.
    """

    numbers: jax.Array
    keys: jax.Array
    count: jax.Array

    @property
    def capacity(self) -> int:
        return self.numbers.shape[0]

    @property
    def size(self) -> jax.Array:
        """Entries that are there, int32 scalar."""
        return jnp.minimum(self.count, self.capacity)


def empty(capacity: int, width: int = 0, dtype: str = 'float16') -> Memory:
    """A memory without entries; `dtype` of its keys is one of `DTYPES`."""
    return Memory(
        numbers=jnp.zeros((capacity,), jnp.int32),
        keys=jnp.zeros((capacity, width), dtype),
        count=jnp.zeros((), jnp.int32),
    )


def write(memory: Memory, numbers: jax.Array, keys: jax.Array, chosen: jax.Array) -> Memory:
    """The memory after n rows were written in order.

    `numbers` int32 [n], `keys` [n, width], those `chosen`, bool [n]. Of more rows than there is
    room for, the last ones are kept. Keys are cut off at the range of their dtype.
    """
    if not memory.capacity:
        return memory
    limit = jnp.finfo(memory.keys.dtype).max.astype(keys.dtype)
    keys = jnp.clip(keys, -limit, limit).astype(memory.keys.dtype)
    order = jnp.cumsum(chosen) - 1
    kept = chosen & (order >= chosen.sum() - memory.capacity)
    # Places outside are dropped.
    place = jnp.where(kept, (memory.count + order) % memory.capacity, memory.capacity)
    return Memory(
        numbers=memory.numbers.at[place].set(numbers, mode='drop'),
        keys=memory.keys.at[place].set(keys, mode='drop'),
        count=memory.count + chosen.sum().astype(jnp.int32),
    )


def draw(memory: Memory, key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Rows drawn uniformly, with replacement.

    Returns:
      Row numbers int32 `shape`, and bool scalar, whether the memory had any; else they mean nothing.
    """
    place = jax.random.randint(key, shape, 0, jnp.maximum(memory.size, 1))
    if not memory.capacity:
        return jnp.zeros(shape, jnp.int32), jnp.zeros((), bool)
    return memory.numbers[place], memory.size > 0


def nearest(
    memory: Memory,
    queries: jax.Array,
    k: int,
    own: jax.Array | None = None,
    block: int = BLOCK,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The nearest entries by Euclidean distance, nearest first; exact.

    Keys are compared in blocks and a list of the best is kept, so the distances of all keys never exist
    at once.

    Args:
      k: of more than the memory holds, the last are not found.
      own: row numbers of the queries int32 [n], which are no neighbours of themselves; None = they
        may be.

    Returns:
      Row numbers int32 [n, k], squared distances float32 [n, k], infinite where nothing was found, and
      bool [n, k], which were found; the other numbers mean nothing.
    """
    number = len(queries)
    if not memory.capacity or not number:
        shape = (number, k)
        return jnp.zeros(shape, jnp.int32), jnp.full(shape, jnp.inf), jnp.zeros(shape, bool)
    own = jnp.full((number,), -1, jnp.int32) if own is None else own

    def search(queries: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        scores, place = _best(memory, queries, own, k + SPARE, min(block, memory.capacity))
        # The expanded square loses digits; the order is that of the differences.
        differences = queries[:, None] - memory.keys[place].astype(jnp.float32)
        squared = jnp.square(differences).sum(axis=-1)
        squared = jnp.where(jnp.isfinite(scores), squared, jnp.inf)
        order = jnp.argsort(squared, axis=1, stable=True)[:, :k]
        place, squared = (jnp.take_along_axis(part, order, axis=1) for part in (place, squared))
        return memory.numbers[place], squared, jnp.isfinite(squared)

    return in_chunks(search, QUERIES, queries, own)


def _best(
    memory: Memory, queries: jax.Array, own: jax.Array, k: int, block: int
) -> tuple[jax.Array, jax.Array]:
    """Scores float32 [n, k], largest first and -inf = nothing, and places int32 [n, k] of entries.

    A score is `q.k - |k|^2 / 2`: the largest is of the nearest.
    """

    def compare(best: tuple[jax.Array, jax.Array], number: jax.Array) -> tuple[Any, None]:
        # The last block begins early, so that no copy of the keys need be filled up.
        start = jnp.minimum(number * block, memory.capacity - block)
        keys = jax.lax.dynamic_slice_in_dim(memory.keys, start, block).astype(jnp.float32)
        rows = jax.lax.dynamic_slice_in_dim(memory.numbers, start, block)
        place = start + jnp.arange(block, dtype=jnp.int32)
        there = (place < memory.size) & (place >= number * block) & (rows != own[:, None])
        products = jnp.matmul(queries, keys.T, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(there, products - 0.5 * jnp.square(keys).sum(axis=1), -jnp.inf)
        scores, index = top_k(scores, min(k, block))
        scores = jnp.concatenate([best[0], scores], axis=1)
        places = jnp.concatenate([best[1], place[index]], axis=1)
        scores, index = jax.lax.top_k(scores, k)
        return (scores, jnp.take_along_axis(places, index, axis=1)), None

    shape = (len(queries), k)
    start = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32))
    blocks = -(-memory.capacity // block)
    return jax.lax.scan(compare, start, jnp.arange(blocks))[0]
