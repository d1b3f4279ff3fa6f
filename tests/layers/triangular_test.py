"""Triangular systems by blocks: as accurate as LAPACK, in value and gradient."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.test_util import check_grads

import longmem_jax
from longmem_jax.layers import triangular

RANDOM = np.random.default_rng(0)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def system(keys, width=6):
    """A delta rule's system in float32, and its solution in float64."""
    overlap = (keys @ keys.T).astype(np.float32)
    values = RANDOM.normal(size=(len(keys), width)).astype(np.float32)
    return overlap, values, exact(overlap, values)


def exact(overlap, values, dtype=np.float64):
    matrix = np.tril(overlap, -1).astype(dtype) + np.eye(len(overlap), dtype=dtype)
    return scipy.linalg.solve_triangular(
        matrix, values.astype(dtype), lower=True, unit_diagonal=True
    )


def error(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize('n', [1, 5, 32, 70])
def test_values_and_gradients_are_those_of_lapack(n):
    overlap, values, wanted = system(unit(RANDOM.normal(size=(n, 16))))
    weights = RANDOM.normal(size=wanted.shape).astype(np.float32)
    batched = (overlap[None, None], values[None, None])

    @jax.jit
    def both(overlap, values):
        def weighed(overlap, values):
            solved = triangular.solve_unit_lower(overlap, values)
            return (weights * solved).sum(), solved

        return jax.grad(weighed, (0, 1), has_aux=True)(overlap, values)

    (to_overlap, to_values), found = both(*batched)
    assert error(found[0, 0], wanted) < 1e-6
    # u = L^-1 v: the gradient of v is L^-T w, that of L is -(L^-T w) u^T.
    matrix = np.tril(overlap, -1).astype(np.float64) + np.eye(n)
    back = scipy.linalg.solve_triangular(matrix.T, weights.astype(np.float64))
    assert error(to_values[0, 0], back) < 1e-6
    if n > 1:
        assert error(to_overlap[0, 0], -np.tril(back @ wanted.T, -1)) < 1e-6


KEYS = unit(RANDOM.normal(size=(130, 32)))
ILL = {
    'all equal': KEYS[:1].repeat(130, 0),
    'of either sign': KEYS[:1] * np.where(np.arange(130) % 2, 1, -1)[:, None],
    'three': KEYS[RANDOM.integers(0, 3, 130)],
    'almost equal': unit(KEYS[:1] + 0.05 * KEYS),
    'of four dimensions': unit(KEYS[:, :4]),
    'of length 1.5': 1.5 * KEYS,
    'of length 3': 3.0 * KEYS,  # solutions of 10^24
}


@pytest.mark.parametrize('name', ILL)
def test_dependent_and_long_keys_are_as_accurate_as_with_lapack(name):
    overlap, values, wanted = system(ILL[name])
    solve = jax.jit(triangular.solve_unit_lower)
    found = error(solve(overlap[None], values[None])[0], wanted)
    assert found < 8 * max(error(exact(overlap, values, np.float32), wanted), 2e-7)


def test_second_derivatives():
    """Of reverse mode twice, and of forward mode."""
    keys = jnp.asarray(unit(RANDOM.normal(size=(4, 8))), jnp.float32)

    def loss(keys):
        return jnp.sin(triangular.solve_unit_lower(keys @ keys.T, keys)).sum()

    check_grads(jax.jit(loss), (keys,), 2, ('fwd', 'rev'), atol=2e-2, rtol=2e-2)


def test_orthonormal_columns_are_those_of_lapack():
    vectors = RANDOM.normal(size=(3, 24, 24)).astype(np.float32)
    vectors[2, :, 1] = vectors[2, :, 0] + 1e-3 * vectors[2, :, 1]  # almost dependent
    found = np.asarray(jax.jit(triangular.orthonormal)(vectors))
    basis, above = np.linalg.qr(vectors.astype(np.float64))
    basis = basis * np.sign(np.diagonal(above, axis1=1, axis2=2))[:, None]
    np.testing.assert_allclose(found[:2], basis[:2], atol=1e-5)
    np.testing.assert_allclose(
        found.swapaxes(1, 2) @ found, np.eye(24)[None].repeat(3, 0), atol=2e-6
    )


# `numpy.linalg` is not meant: it runs once, on the host, before anything is compiled.
LAPACK = re.compile(
    r'lax\.linalg|jsp\.linalg|jax\.scipy\.linalg|jnp\.linalg\.(?!norm\b)'
    r'|random\.(orthogonal|multivariate_normal)|initializers\.orthogonal'
)


def test_nothing_compiled_calls_lapack():
    """On CPUs two of its calls at once can wait for each other for ever."""
    folder = Path(longmem_jax.__file__).parent
    found = [
        f'{path.relative_to(folder)}:{number}: {line.strip()}'
        for path in sorted(folder.rglob('*.py'))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LAPACK.search(line)
    ]
    assert not found, f'use `layers/triangular.py`, or products of your own: {found}'
