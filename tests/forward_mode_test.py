"""Forward mode: `jax.jvp` and Hessian-vector products of every public layer are finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from longmem_jax.memory.registry import LAYERS
from tests.toys import OWN_CODE

BATCH, LENGTH, WIDTH, STEP = 2, 4, 8, 1e-6
FAST = ('dense', 'infini')


def inner(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return sum(jnp.vdot(*pair) for pair in pairs)


def layer_and_point(name):
    """A small layer in float64, parameters that were moved, and a state that is not empty."""
    entry = LAYERS[name]
    fields = dict(num_heads=2) | entry.toy | dict(dtype='float64')
    if name != 'product_key':  # which draws by its own rule
        fields['init_std'] = 0.3
    make = getattr(longmem_jax, entry.layer.module.__name__)
    layer = make(d_model=WIDTH, head_dim=4, segment_length=LENGTH, **fields)
    x = jax.random.normal(jax.random.key(0), (2, BATCH, LENGTH, WIDTH), jnp.float64)
    state = layer.start(BATCH)
    params = jax.jit(layer.init)(jax.random.key(1), x[0], state)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(leaf + 0.1 * random.random(leaf.shape), jnp.float64), params
    )
    return layer, params, x[1], jax.jit(layer.apply)(params, x[0], state)[1]


@pytest.mark.parametrize(
    'name',
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in OWN_CODE],
)
def test_jvp_and_hessian_are_finite_differences(name):
    with jax.enable_x64(True):
        layer, params, x, state = layer_and_point(name)

        def value(params, x):
            y, _, aux = layer.apply(params, x, state)
            return jnp.sin(y).sum() + sum(aux.losses.values(), 0.0)

        point, gradient = (params, x), jax.grad(value, (0, 1))
        random = np.random.default_rng(1)
        along = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), point)

        @jax.jit
        def both(step):
            at = jax.tree.map(lambda leaf, move: leaf + step * move, point, along)
            return value(*at), inner(gradient(*at), along)

        moved = jax.jit(lambda *at: jax.jvp(value, at, along)[1])(*point)
        bent = jax.jit(lambda *at: inner(jax.jvp(gradient, at, along)[1], along))(*point)
        (high, steep), (low, flat) = (np.asarray(both(step)) for step in (STEP, -STEP))
        moved, bent = np.asarray(moved), np.asarray(bent)
    advice = (
        'a hand-written derivative without forward mode, or a wrong one: use plain functions or '
        '`jax.custom_jvp`'
    )
    np.testing.assert_allclose(moved, (high - low) / (2 * STEP), rtol=1e-5, err_msg=advice)
    np.testing.assert_allclose(bent, (steep - flat) / (2 * STEP), rtol=1e-4, err_msg=advice)
