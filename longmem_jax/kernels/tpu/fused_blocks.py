"""What the forward and the backward kernel of the fused attention on TPUs share: one block of scores.

A block is the scores of `block_queries` queries with `block_keys` keys, in the fast memory of one core.
These functions run inside of Pallas kernels for TPUs: arrays are two-dimensional, the last axis is
the one of the 128 lanes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.fused_plan import LANES, Inputs, Plan
from longmem_jax.kernels.pallas import pl, pltpu

SUBLANES = 8  # of a vector register


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
