"""What the forward and the backward kernel of the fused attention share: one block of scores.

A block is the scores of `block_queries` queries with `block_keys` keys, in the fast memory of one core.
These functions run inside of Pallas kernels for TPUs: arrays are two-dimensional, the last axis is
the one of the 128 lanes.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.kernels.attention_products import EPSILON, NEVER
from longmem_jax.kernels.tpu.pallas import pl, pltpu

LANES, SUBLANES = 128, 8  # of a vector register
NEVER_SINCE = 2**30  # `since` of a key that no query sees
__all__ = ['EPSILON', 'LANES', 'NEVER', 'NEVER_SINCE', 'Plan']


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a fused attention.

    Attributes:
      block_queries, block_keys: sizes of a block.
      num_queries, num_keys: padded to whole blocks.
      group: query heads that read the same key head.
      num_heads: heads of the queries.
      per_lane, per_head: whether `Inputs.fetch` differs between lanes, and between heads.
      shared_table: all heads have the same table by distance.
      ramp: of the soft mask, in tokens; 0 = there is none.
      offset: key index of query 0; only read where scores depend on distances.
      reach: largest distance whose row of the table is not zero; -1 = there is no such limit.
      dropout: share of the weights that is dropped.
      interpret: run by Pallas's interpreter, on any machine.
    """

    block_queries: int
    block_keys: int
    num_queries: int
    num_keys: int
    num_heads: int
    group: int = 1
    per_lane: bool = True
    per_head: bool = False
    shared_table: bool = False
    ramp: int = 0
    offset: int = 0
    reach: int = -1
    dropout: float = 0.0
    interpret: bool = False

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of blocks of queries and of keys."""
        return self.num_queries // self.block_queries, self.num_keys // self.block_keys

    @property
    def width(self) -> int:
        """Rows of a table by distance that one block needs, filled up to whole registers."""
        return -(-(self.block_queries + self.block_keys) // LANES) * LANES

    @property
    def rows(self) -> int:
        """Rows of a table by distance for all blocks."""
        queries, keys = self.blocks
        return (queries - 1) * self.block_queries + (keys - 1) * self.block_keys + self.width

    @property
    def farthest(self) -> int:
        """Distance of row 0 of a table; every next row is for one less, down to below 0."""
        return self.offset + self.num_queries - 1

    def first_row(self, query_block: jax.Array, key_block: jax.Array) -> jax.Array:
        """First of the `width` rows of a table that a block needs: that of its largest distance."""
        last = self.blocks[0] - 1
        row = (last - query_block) * self.block_queries + key_block * self.block_keys
        return pl.multiple_of(row, min(self.block_queries, self.block_keys))

    def is_near(self, query_block: jax.Array, key_block: jax.Array) -> jax.Array | bool:
        """Whether the rows of a table that a block needs are not all zero."""
        if self.reach < 0:
            return True
        first_query = self.offset + query_block * self.block_queries
        return first_query - ((key_block + 1) * self.block_keys - 1) <= self.reach

    def is_read(
        self, fetch: Any, lane: Any, head: Any, query_block: jax.Array, key_block: jax.Array
    ) -> jax.Array:
        """Whether a block is computed: some query of it sees some key of it."""
        return self.fetched(fetch, lane, head, query_block, key_block) == key_block

    def fetched(self, fetch: Any, lane: Any, head: Any, query_block: Any, key_block: Any) -> Any:
        """The block of keys that is in fast memory at a block; see `Inputs.fetch`."""
        queries, keys = self.blocks
        row = (lane if self.per_lane else 0) * (self.num_heads if self.per_head else 1)
        row = row + (head if self.per_head else 0)
        return fetch[(row * queries + query_block) * keys + key_block]


class Inputs(NamedTuple):
    """The arrays of a fused attention, lengths padded to whole blocks.

    Attributes:
      queries: [batch, heads, queries, head_dim], scaled.
      keys, values: [batch, kv_heads, keys, head_dim].
      positions: [batch, heads, queries, head_dim], scaled queries that meet `table`; None = no table.
      table: [heads | 1, rows, head_dim], by falling distance; see `Plan.farthest`.
      bias: float32 [heads, 1, rows], added to scores, by falling distance; None = none.
      remaining: float32 [batch | 1, heads | 1, 1, keys], tokens from query 0 until the soft mask of a
        key begins to fall; None = there is no soft mask.
      columns: int32 [batch | 1, 3, keys]: `since`, `until`, `number`. Query i sees the keys with since
        <= i < until; `number` is the key's in the draws of dropout.
      fetch: int32 [lanes x heads x blocks of queries x blocks of keys], for every block its block of
        keys, or the last one before it that is seen, if no query of the block sees one of these.
      seeds: int32 [batch x heads], of dropout; None = no dropout.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    positions: jax.Array | None
    table: jax.Array | None
    bias: jax.Array | None
    remaining: jax.Array | None
    columns: jax.Array
    fetch: jax.Array
    seeds: jax.Array | None


def cost(
    plan: Plan, inputs: Inputs, products: tuple[int, int], moved: list[tuple[Any, int]]
) -> 'pl.CostEstimate':
    """What a kernel costs if every block is read, for XLA's schedule and its count of operations.

    Args:
      plan, inputs: of the attention.
      products: number of matrix products per block of queries with keys, and with a table.
      moved: arrays, or their shapes, and how often each is read or written.
    """
    batch, heads, num_queries, head_dim = inputs.queries.shape
    columns = products[0] * plan.block_keys
    if inputs.table is not None:
        columns += products[1] * plan.width
    pairs = batch * heads * num_queries * plan.num_keys
    return pl.CostEstimate(
        flops=2 * batch * heads * num_queries * plan.blocks[1] * columns * head_dim,
        transcendentals=pairs,
        bytes_accessed=sum(array.size * array.dtype.itemsize * times for array, times in moved),
    )


def product(left: jax.Array, right: jax.Array, over: tuple[int, int]) -> jax.Array:
    """Matrix product, summed over axis `over[0]` of `left` and `over[1]` of `right`, in float32."""
    return jax.lax.dot_general(
        left,
        right,
        (((over[0],), (over[1],)), ((), ())),
        preferred_element_type=jnp.float32,
    )


def skew(rows: jax.Array, width: int) -> jax.Array:
    """Moves row i of n to the left by n - 1 - i and keeps `width` columns.

    Args:
      rows: float32 [n, columns], columns a multiple of 128, at least n + width - 1.
    """
    n, columns = rows.shape
    return pltpu.roll(rows, columns - (n - 1), 1, stride=1, stride_axis=0)[:, :width]


def unskew(block: jax.Array, columns: int) -> jax.Array:
    """The transpose of `skew`: moves row i of n to the right by n - 1 - i, between zeros.

    Args:
      block: float32 [n, width], n a multiple of 8.
      columns: of the result, a multiple of 128, at least n + width - 1.
    """
    n, width = block.shape
    # Rotations by a stride only go to the right, so the 8 rows of a register are turned over.
    order = SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, columns), 0)
    zeros = jnp.zeros((SUBLANES, columns - width), block.dtype)

    def turned(rows: jax.Array) -> jax.Array:
        mine = order[:, : rows.shape[1]]
        return jnp.take_along_axis(rows, mine, axis=0, mode='promise_in_bounds')

    def moved(row: int) -> jax.Array:
        rows = jnp.concatenate([turned(block[row : row + SUBLANES]), zeros], axis=1)
        return turned(pltpu.roll(rows, n - SUBLANES - row, 1, stride=1, stride_axis=0))

    return jnp.concatenate([moved(row) for row in range(0, n, SUBLANES)], axis=0)


def wide(columns: jax.Array, width: int) -> jax.Array:
    """[n, LANES], alike in all columns, as [n, width]."""
    return jnp.concatenate([columns] * -(-width // LANES), axis=1)[:, :width]


def as_columns(row: jax.Array) -> jax.Array:
    """A row [1, n] as [n, LANES], alike in all columns."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))


def as_row(columns: jax.Array) -> jax.Array:
    """[n, LANES], alike in all columns, as a row [1, n]."""
    return jnp.transpose(columns)[:1]


def query_numbers(plan: Plan, query_block: jax.Array) -> jax.Array:
    """Numbers of the queries of a block, int32 [block_queries, 1]."""
    first = query_block * plan.block_queries
    return first + jax.lax.broadcasted_iota(jnp.int32, (plan.block_queries, 1), 0)


def seen(columns: jax.Array, queries: jax.Array) -> jax.Array:
    """Which keys are seen: bool [queries, keys].

    Args:
      columns: int32 [3, keys], `since`, `until` and `number`; see `fused_attention.Inputs`.
      queries: int32 [queries, 1].
    """
    return (queries >= columns[0:1]) & (queries < columns[1:2])


def soft_mask(remaining: jax.Array, queries: jax.Array, ramp: int) -> tuple[jax.Array, jax.Array]:
    """The soft mask in [0, 1] and its derivative by `remaining`, float32 [queries, keys] each.

    Args:
      remaining: float32 [1, keys], tokens until the mask begins to fall, from query 0 on.
      queries: int32 [queries, 1].
      ramp: tokens over which it falls.
    """
    linear = (remaining - queries.astype(jnp.float32)) / ramp + 1
    # As a clip has: half at its ends.
    slope = jnp.where(linear < 1, 1.0, jnp.where(linear == 1, 0.5, 0.0)) / ramp
    return jnp.clip(linear, 0, 1), slope


def _mixed(x: jax.Array) -> jax.Array:
    """A hash of int32 (the finaliser of MurmurHash3)."""
    for shift, factor in ((16, -2048144789), (13, -1028477387)):
        x = (x ^ jax.lax.shift_right_logical(x, shift)) * factor
    return x ^ jax.lax.shift_right_logical(x, 16)


def dropout_factor(
    rate: float, seed: jax.Array, queries: jax.Array, numbers: jax.Array
) -> jax.Array:
    """0 or 1 / (1 - rate), float32 [queries, keys]: the same whatever the blocks are.

    Args:
      rate: share of zeros.
      seed: int32 scalar, of the lane and head.
      queries: int32 [queries, 1].
      numbers: int32 [1, keys], of the keys.
    """
    bits = _mixed(_mixed(queries * 1640531527 + seed) ^ (numbers * -1640531527))
    kept = jax.lax.shift_right_logical(bits, 1) >= int(rate * 2**31)
    return jnp.where(kept, 1.0 / (1.0 - rate), 0.0)
