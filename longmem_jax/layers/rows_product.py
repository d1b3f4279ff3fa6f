"""Products of many rows with one matrix, as a model's linear maps are.

All leading axes become one. XLA contracts two axes (lanes and tokens) in a gradient of the matrix by
copying what it transposes; on CPUs the copy and a slower product take 7 % of a step's CPU time.
"""

from typing import Any

import jax


def rows_times(
    rows: jax.Array,
    matrix: jax.Array,
    *,
    axis: int = 0,
    precision: Any = None,
    dtype: Any = None,
) -> jax.Array:
    """Multiplies every row with a matrix.

    Args:
      rows: [..., width].
      matrix: [width, columns], or [columns, width] with `axis` = 1; in the dtype of the rows.
      axis: the axis of the matrix that is summed over.
      precision, dtype: of the product and of the result; None = the default of the device and the dtype
        of the rows.

    Returns:
      [..., columns].
    """
    flat = jax.lax.dot_general(
        rows.reshape(-1, rows.shape[-1]),
        matrix,
        (((1,), (axis,)), ((), ())),
        precision=precision,
        preferred_element_type=dtype,
    )
    return flat.reshape(*rows.shape[:-1], flat.shape[1])


def dot_general(
    rows: jax.Array,
    matrix: jax.Array,
    dimensions: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """`rows_times` with the arguments of `jax.lax.dot_general`, as `flax.linen.Dense` calls it."""
    ((last,), (axis,)), batch = dimensions
    if last != rows.ndim - 1 or batch != ((), ()):
        raise ValueError(
            f'dimensions = {dimensions}: the last axis of the rows with one of the matrix, no batch'
        )
    return rows_times(rows, matrix, axis=axis, precision=precision, dtype=preferred_element_type)
