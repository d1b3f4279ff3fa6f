"""An episodic memory: numbers of rows of the stream, and their keys, in a ring of static capacity.

Rows themselves stay where they are: a memory of 575,000 rows of BERT is 0.9 GB of keys and 2.3 MB of
numbers. When it is full, the oldest entry is overwritten.
"""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.layers.nearest import top_k


@flax.struct.dataclass
class Memory:
    """What was written, in order; entries [0, min(count, capacity)) are there.

    Attributes:
      numbers: rows of the stream, int32 [capacity].
      keys: float16 [capacity, width]; width 0 = the method reads at random.
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


def empty(capacity: int, width: int = 0) -> Memory:
    """A memory without entries."""
    return Memory(
        numbers=jnp.zeros((capacity,), jnp.int32),
        keys=jnp.zeros((capacity, width), jnp.float16),
        count=jnp.zeros((), jnp.int32),
    )


def write(memory: Memory, numbers: jax.Array, keys: jax.Array, chosen: jax.Array) -> Memory:
    """Writes rows, in their order.

    Args:
      memory: before.
      numbers: int32 [n]; keys: [n, width]; chosen: bool [n], the rows that are written. Of more rows
        than there is room for, the last ones are kept.

    Returns:
      The memory after it.
    """
    if not memory.capacity:
        return memory
    order = jnp.cumsum(chosen) - 1
    kept = chosen & (order >= chosen.sum() - memory.capacity)
    # Places outside are dropped.
    place = jnp.where(kept, (memory.count + order) % memory.capacity, memory.capacity)
    return Memory(
        numbers=memory.numbers.at[place].set(numbers, mode='drop'),
        keys=memory.keys.at[place].set(keys.astype(memory.keys.dtype), mode='drop'),
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
    memory: Memory, queries: jax.Array, k: int, own: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The nearest entries by Euclidean distance, nearest first; exact, all distances at once.

    Args:
      memory: with keys.
      queries: float32 [n, width].
      k: at most the capacity.
      own: row numbers of the queries int32 [n], which are no neighbours of themselves; None = they
        may be.

    Returns:
      Row numbers int32 [n, k], squared distances float32 [n, k], and bool [n, k], which were found.
    """
    keys = memory.keys.astype(jnp.float32)
    products = jnp.matmul(queries, keys.T, precision=jax.lax.Precision.HIGHEST)
    there = jnp.arange(memory.capacity)[None] < memory.size
    if own is not None:
        there = there & (memory.numbers[None] != own[:, None])
    scores = jnp.where(there, products - 0.5 * jnp.square(keys).sum(axis=1), -jnp.inf)
    scores, place = top_k(scores, k)
    # The expanded square loses digits.
    squared = jnp.square(queries[:, None] - keys[place]).sum(axis=-1)
    return memory.numbers[place], squared, jnp.isfinite(scores)
