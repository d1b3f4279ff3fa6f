"""Products of many rows with one matrix, as a model's linear maps are.

In a gradient of the matrix, XLA contracts two axes (lanes and tokens) by copying what it transposes. On
CPUs the copy and a slower product take 5 to 10 % of a step's CPU time, so the rows get one axis there.
TPUs keep both: with one axis, pg19's step with two layers moves 2 % more there, by
`experiments.tpu_programs`. Reverse-mode derivatives only (`jax.custom_vjp`).
"""

import functools
from typing import Any

import jax


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rows_times(rows: jax.Array, matrix: jax.Array, precision: Any = None) -> jax.Array:
    """Multiplies every row with a matrix.

    Args:
      rows: [..., width].
      matrix: [width, columns], in the dtype of the rows.
      precision: of the product; None = the default of the device.

    Returns:
      [..., columns].
    """
    return _contracted(rows, matrix, (rows.ndim - 1,), (0,), precision)


def _contracted(
    left: jax.Array,
    right: jax.Array,
    of_left: tuple[int, ...],
    of_right: tuple[int, ...],
    precision: Any,
) -> jax.Array:
    """The product, summed over these axes of both."""
    return jax.lax.dot_general(left, right, ((of_left, of_right), ((), ())), precision=precision)


def _forward(rows: jax.Array, matrix: jax.Array, precision: Any) -> tuple[jax.Array, Any]:
    return rows_times(rows, matrix, precision), (rows, matrix)


def _backward(precision: Any, residuals: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, matrix = residuals
    last = rows.ndim - 1

    def of_one_axis(rows: jax.Array, gradient: jax.Array) -> jax.Array:
        left, right = (array.reshape(-1, array.shape[-1]) for array in (rows, gradient))
        return _contracted(left, right, (0,), (0,), precision)

    def of_all_axes(rows: jax.Array, gradient: jax.Array) -> jax.Array:
        axes = tuple(range(last))
        return _contracted(gradient, rows, axes, axes, precision).T

    of_matrix = jax.lax.platform_dependent(rows, gradient, cpu=of_one_axis, default=of_all_axes)
    return (
        _as_varied(_contracted(gradient, matrix, (last,), (1,), precision), rows),
        _as_varied(of_matrix, matrix),
    )


def _as_varied(gradient: jax.Array, array: jax.Array) -> jax.Array:
    """The gradient of `array`, summed over the axes of a `jax.shard_map` on which the array is equal."""
    axes = tuple(sorted(_varying(gradient) - _varying(array)))
    return jax.lax.psum(gradient, axes) if axes else gradient


rows_times.defvjp(_forward, _backward)


def _varying(array: jax.Array) -> frozenset[str]:
    """The axes of a `jax.shard_map` on which an array differs, if JAX checks that."""
    return frozenset(jax.typeof(array).manual_axis_type.varying)


def dot_general(
    rows: jax.Array, matrix: jax.Array, dimensions: Any, precision: Any = None
) -> jax.Array:
    """`rows_times` with the arguments of `jax.lax.dot_general`, as `flax.linen.Dense` calls it."""
    if dimensions != (((rows.ndim - 1,), (0,)), ((), ())):
        raise ValueError(
            f'dimensions = {dimensions}: the last axis of the rows with the first of the matrix'
        )
    return rows_times(rows, matrix, precision)
