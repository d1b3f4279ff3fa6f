"""Weighted sums of rows of a table, and their gradients, against the plain sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.kernels.weighted_rows import weighted_rows


def plain(table, weights, at):
    return jnp.einsum('tk,tkd->td', weights, table[at])


def drawn(tokens, k, rows=30, width=6):
    """A table, weights, and rows, of which many are read repeatedly."""
    random = np.random.default_rng(0)
    table, weights = random.normal(size=(rows, width)), random.normal(size=(tokens, k))
    at = jnp.asarray(random.integers(0, rows, (tokens, k)), jnp.int32)
    return jnp.asarray(table, jnp.float32), jnp.asarray(weights, jnp.float32), at


def with_gradients(function, table, weights, at):
    out, pull = jax.vjp(lambda table, weights: function(table, weights, at), table, weights)
    return out, *pull(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))


@pytest.mark.parametrize('tokens, k', [(1, 1), (7, 3), (11, 5)])
@pytest.mark.parametrize('chunk', [0, 1, 4, 64])
def test_sums_and_gradients(tokens, k, chunk):
    """At once, and in chunks, of which the last is not full."""
    inputs = drawn(tokens, k)

    @jax.jit
    def read(*inputs):
        return with_gradients(lambda *arrays: weighted_rows(*arrays, chunk), *inputs)

    for part, wanted in zip(read(*inputs), with_gradients(plain, *inputs), strict=True):
        np.testing.assert_allclose(part, wanted, atol=1e-5)


def test_many_rows_of_half_precision_are_added_in_float32():
    table, weights, at = drawn(16, 128, rows=200, width=32)
    half = table.astype(jnp.bfloat16), weights.astype(jnp.bfloat16)
    wanted = plain(*(array.astype(jnp.float32) for array in half), at)
    found = jax.jit(lambda *given: weighted_rows(*given, 0))(*half, at)
    assert found.dtype == jnp.bfloat16
    # The result is rounded once; 128 rounded sums would be off by several times as much.
    np.testing.assert_allclose(np.float32(found), wanted, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize('chunk', [100, 0], ids=['chunks', 'at once'])
def test_the_gradient_of_a_row_that_many_tokens_read(chunk):
    """1,000 times 1; a sum in bfloat16 ends at 256."""
    table, weights = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((1000, 1), jnp.bfloat16)
    at, cotangent = jnp.zeros((1000, 1), jnp.int32), jnp.ones((1000, 3), jnp.bfloat16)
    _, pull = jax.vjp(lambda *floats: weighted_rows(*floats, at, chunk), table, weights)
    of_table, of_weights = pull(cotangent)
    assert of_table.dtype == of_weights.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(of_table), [[1000] * 3, [0] * 3])
