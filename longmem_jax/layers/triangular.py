"""Triangular systems by products of blocks, for memories that write token after token.

No LAPACK: on CPUs its calls share XLA's threads, and two at once on two cores wait for each other
for ever; on accelerators a solve goes row by row, which leaves the matrix units idle.
"""

import functools

import jax
import jax.numpy as jnp

# Rows solved at once. Any size is as accurate as LAPACK; small ones take more steps, large ones more
# products.
BLOCK = 32
product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def solve_unit_lower(overlap: jax.Array, values: jax.Array) -> jax.Array:
    """Solves `(1 + strictly lower part of overlap) u = values`, row after row.

    This is what a delta rule asks for: `u_t = v_t - sum_(s < t) overlap_ts u_s` is what token t adds to
    the memory when it subtracts what the tokens before it have added. Rows are solved in blocks, each
    by the inverse of its block, so that errors grow no more than by plain substitution: dependent,
    equal and long keys are as accurate as with LAPACK. Derivatives of any order, forward and reverse.

    Args:
      overlap: [..., n, n], float32 or float64; only what is below its diagonal is read.
      values: [..., n, width], of the same dtype and leading axes.

    Returns:
      u like `values`.
    """
    n, size = values.shape[-2], min(BLOCK, values.shape[-2])
    more, before = -n % size, ((0, 0),) * (values.ndim - 2)
    lower = jnp.pad(jnp.tril(overlap, -1), (*before, (0, more), (0, more)))
    # Both systems need them; their derivative is not needed, since that of u follows from the product.
    inverses = _inverse(_own_blocks(jax.lax.stop_gradient(lower), size))

    def transposed(_: object, values: jax.Array) -> jax.Array:
        # An upper triangle read from its last row and column on is a lower one.
        return _substitute(_turned(lower), _turned(inverses)[::-1], values[..., ::-1, :])[
            ..., ::-1, :
        ]

    solved = jax.lax.custom_linear_solve(
        lambda u: u + product(lower, u),
        jnp.pad(values, (*before, (0, more), (0, 0))),
        solve=lambda _, values: _substitute(lower, inverses, values),
        transpose_solve=transposed,
    )
    return solved[..., :n, :]


def _turned(lower: jax.Array) -> jax.Array:
    """The transpose of [..., n, n] with rows and columns in reverse order."""
    return jnp.swapaxes(lower[..., ::-1, ::-1], -1, -2)


def _rows(array: jax.Array, size: int) -> jax.Array:
    """[..., n, m] to [n / size, ..., size, m]."""
    cut = array.reshape(*array.shape[:-2], -1, size, array.shape[-1])
    return jnp.moveaxis(cut, -3, 0)


def _own_blocks(lower: jax.Array, size: int) -> jax.Array:
    """The blocks on the diagonal of [..., n, n]: [n / size, ..., size, size]."""
    rows = _rows(lower, size)
    own = rows.reshape(*rows.shape[:-1], len(rows), size)
    return jax.vmap(lambda rows, i: rows[..., i, :])(own, jnp.arange(len(rows), dtype=jnp.int32))


def _substitute(lower: jax.Array, inverses: jax.Array, values: jax.Array) -> jax.Array:
    """Forward substitution over blocks of rows.

    Args:
      lower: [..., n, n], zero on and above its diagonal.
      inverses: [blocks, ..., size, size], of `1 + lower` in the blocks on its diagonal.
      values: [..., n, width].
    """
    size = inverses.shape[-1]

    def step(solved: jax.Array, block: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, rows, inverse, values = block
        # Rows from this block on are still zero.
        new = product(inverse, values - product(rows, solved))
        return jax.lax.dynamic_update_slice_in_dim(solved, new, i * size, new.ndim - 2), None

    if len(inverses) == 1:
        return product(inverses[0], values)
    number = jnp.arange(len(inverses), dtype=jnp.int32)
    blocks = (number, _rows(lower, size), inverses, _rows(values, size))
    solved, _ = jax.lax.scan(step, jnp.zeros_like(values), blocks)
    return solved


def _inverse(lower: jax.Array) -> jax.Array:
    """`(1 + lower)^-1` for `lower` [..., n, n], zero on and above its diagonal.

    Blocks on the diagonal that are inverted already make up one of twice the size:
    `[[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]`. (Powers of `lower`, whose alternating
    sum is the same inverse, would cancel: equal unit keys of 32 tokens have powers of 10^8.)
    """
    n, size = lower.shape[-1], 1
    inverse = jnp.broadcast_to(jnp.eye(n, dtype=lower.dtype), lower.shape)
    number = jnp.arange(n, dtype=jnp.int32)
    while size < n:
        row, column = number[:, None] // size, number // size
        between = (row // 2 == column[None] // 2) & (row != column[None])
        corner = jnp.where(between, lower, jnp.zeros_like(lower))
        inverse, size = inverse - product(product(inverse, corner), inverse), 2 * size
    return inverse


def orthonormal(vectors: jax.Array) -> jax.Array:
    """Each column less its part along those before it, with length one (Gram and Schmidt).

    Equal to the Q of a QR decomposition whose R has a positive diagonal, without LAPACK.

    Args:
      vectors: [..., n, m], independent columns, float32 or float64.

    Returns:
      Like `vectors`, with orthonormal columns.
    """

    def step(basis: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        vector = jax.lax.dynamic_slice_in_dim(vectors, i, 1, vectors.ndim - 1)
        for _ in range(2):  # a second time for what rounding left of the first
            vector = vector - product(basis, product(jnp.swapaxes(basis, -1, -2), vector))
        vector = vector * jax.lax.rsqrt(jnp.sum(vector * vector, axis=-2, keepdims=True))
        return jax.lax.dynamic_update_slice_in_dim(basis, vector, i, basis.ndim - 1), None

    columns = jnp.arange(vectors.shape[-1], dtype=jnp.int32)
    return jax.lax.scan(step, jnp.zeros_like(vectors), columns)[0]
