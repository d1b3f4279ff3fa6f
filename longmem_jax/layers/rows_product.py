"""Products of many rows with one matrix, as a model's linear maps are.

All rows get one axis. Otherwise XLA contracts two axes, lanes and tokens, in the gradient of the matrix,
and on CPUs copies what it transposes: 7 % of a step.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.devices.hardware import platform

FEW = 16  # texts that are continued at a time


def rows_times(
    rows: jax.Array, matrix: jax.Array, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """Multiplies every row with a matrix.

    Args:
      rows: [..., width].
      matrix: [width, columns], in the dtype of the rows.
      precision: of the product; None = the default of the device.

    Returns:
      [..., columns].
    """
    flat = jnp.matmul(rows.reshape(-1, rows.shape[-1]), matrix, precision=precision)
    return flat.reshape(*rows.shape[:-1], matrix.shape[1])


def rows_times_vectors(rows: jax.Array, vectors: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Products of every row with every vector, such as logits.

    Args:
      rows: [..., width].
      vectors: [number, width], in the dtype of the rows.
      dtype: of the result.

    Returns:
      [..., number].
    """
    one_of_each = rows.ndim == 3 and rows.shape[1] == 1 and 1 < len(rows) <= FEW
    if not one_of_each or platform() != 'cpu':
        contracted = (((rows.ndim - 1,), (1,)), ((), ()))
        return jax.lax.dot_general(rows, vectors, contracted, preferred_element_type=dtype)
    # A token of each of a few texts. With the rows second a CPU reads the vectors as they are, once;
    # else it rearranges all of them, a tenth of the time of drawing. The barrier keeps the order.
    contracted = (((1,), (1,)), ((), ()))
    products = jax.lax.dot_general(vectors, rows[:, 0], contracted, preferred_element_type=dtype)
    return jax.lax.optimization_barrier(products).T[:, None]


def rows_of_a_lane_times(
    rows: jax.Array, matrix: jax.Array, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """`rows_times` for the rows of one lane, within a `jax.vmap` over lanes: one product of them all.

    Its gradient is that of all lanes too: without the `vmap` there is none.

    Args:
      rows: [n, width].
      matrix: [width, columns], the same for all lanes.
      precision: as of `rows_times`.
    """
    call = jax.custom_batching.custom_vmap(lambda rows, matrix: rows_times(rows, matrix, precision))

    @call.def_vmap
    def all_lanes(number: int, batched: list[bool], rows: jax.Array, matrix: jax.Array) -> Any:
        assert batched == [True, False]
        return rows_times(rows, matrix, precision), True

    return call(rows, matrix)


def dot_general(
    rows: jax.Array, matrix: jax.Array, dimensions: Any, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """`rows_times` with the arguments of `jax.lax.dot_general`, as `flax.linen.Dense` calls it."""
    if dimensions != (((rows.ndim - 1,), (0,)), ((), ())):
        raise ValueError(
            f'dimensions = {dimensions}: the last axis of the rows with the first of the matrix'
        )
    times = rows_times if rows.ndim > 2 else rows_of_a_lane_times
    return times(rows, matrix, precision)
