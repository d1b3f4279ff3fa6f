"""What the kernels of the fused attention share: its static part, its arrays, and which keys are seen.

The functions run inside of kernels, on one block of scores.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.kernels.pallas import pl

LANES = 128  # of a vector register of a TPU
NEVER_SINCE = 2**30  # `since` of a key that no query sees
READ = 'fused_read'  # name, for policies of `jax.checkpoint`, of what a kernel gives


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
