"""Titans: slopes of the losses, the Muon step, norms of surprise, a training that stays finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import longmem_jax
from longmem_jax.errors import UsageError
from longmem_jax.memory.titans import inner

RANDOM = np.random.default_rng(0)
SIZES = dict(d_model=16, num_heads=2, segment_length=16)


def network(width=4, hidden=6):
    """Random weights with two matrices."""
    shapes = dict(gamma=(width,), matrix_0=(width, hidden), matrix_1=(hidden, width))
    return {name: RANDOM.normal(size=shape) for name, shape in shapes.items()}


def block(n=5, width=4):
    """k, v, and sizes of steps."""
    k, v = RANDOM.normal(size=(2, n, width))
    return k, v, RANDOM.uniform(0, 1, n)


@pytest.mark.parametrize(
    'loss, made',
    [
        ('l2', lambda e: e**2),
        ('huber', lambda e: np.where(np.abs(e) < 0.7, e**2, 1.4 * np.abs(e) - 0.49)),
        ('lp', lambda e: np.abs(e) ** 3),
    ],
)
def test_the_surprise_of_a_block_is_the_slope_of_the_sum_of_its_losses(loss, made):
    """By differences of the sum, which is written in numpy."""
    k, v, step = block()
    weights, way = network(), network()

    def total(weights):
        error = np.asarray(inner.predicted(weights, k) - v)
        return (step[:, None] * made(error)).mean(1).sum()

    with jax.enable_x64(True):
        found = inner.surprise(weights, k, v, step, loss, 3.0, 0.7)
        found = sum((np.asarray(found[name]) * way[name]).sum() for name in way)
        above, below = (
            total({name: weights[name] + side * way[name] for name in way})
            for side in (1e-6, -1e-6)
        )
    np.testing.assert_allclose(found, -(above - below) / 2e-6, rtol=1e-5)


def test_muon_makes_singular_values_of_about_one():
    weights = network(8, 12)
    found = jax.jit(inner.orthogonal)(weights)
    np.testing.assert_array_equal(found['gamma'], np.float32(weights['gamma']))
    for name in ('matrix_0', 'matrix_1'):
        values = np.linalg.svd(found[name], compute_uv=False)
        assert values.min() > 0.6 and values.max() < 1.3, values


def test_squashed_surprise_has_a_norm_below_its_bound_and_a_slope_at_zero():
    for size in (1e-3, 1.0, 1e3):
        array = size * RANDOM.normal(size=(3, 4)).astype(np.float32)
        found = inner.squashed(array, 2.0)
        assert 0.99 <= np.linalg.norm(found) <= 2.001
        np.testing.assert_allclose(
            found / np.linalg.norm(found), array / np.linalg.norm(array), 1e-4
        )
    slope = jax.grad(lambda array: inner.squashed(array, 2.0).sum())(jnp.zeros((3, 4)))
    assert np.isfinite(slope).all()


def read(segments, largest_step, **fields):
    """The state after segments of random tokens, every step at its largest."""
    layer = longmem_jax.Titans(**SIZES, largest_step=largest_step, **fields)
    x = jax.random.normal(jax.random.key(0), (segments, 2, 16, 16))
    state = layer.start(2)
    variables = jax.jit(layer.init)(jax.random.key(1), x[0], state)
    variables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf + 20.0 if path[-1].key == 'step_bias' else leaf, variables
    )

    @jax.jit
    def all_segments(x):
        def body(state, x):
            return layer.apply(variables, x, state)[1], None

        return jax.lax.scan(body, state, x)[0]

    found = jax.tree.leaves(all_segments(x).memory)
    return max(np.abs(leaf).max() for leaf in found)


@pytest.mark.parametrize(
    'fields',
    [
        dict(),
        *(pytest.param(f, marks=pytest.mark.slow) for f in (dict(key_norm='none'), dict(batch=3))),
    ],
)
def test_inner_training_does_not_overshoot_at_its_largest_steps(fields):
    assert read(40, 0.0, **fields) < 30


def test_the_steps_of_released_code_overshoot():
    """So the test above would notice."""
    assert not read(40, 1.0) < 1e6


@pytest.mark.slow
@pytest.mark.parametrize('muon', [False, True])
def test_outer_training_stays_finite(muon):
    """200 steps through two segments each, on a stream that never starts again."""
    layer = longmem_jax.Titans(**SIZES, muon=muon)
    state = layer.start(2)
    table = jax.random.normal(jax.random.key(5), (12, 16))
    tokens = jax.random.randint(jax.random.key(6), (200, 2, 8), 0, 12)
    x = table[jnp.concatenate([tokens, tokens], axis=2)]
    variables = jax.jit(layer.init)(jax.random.key(0), x[0], state)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-2))

    @jax.jit
    def train(variables, state):
        def body(carried, x):
            variables, slots, state = carried

            def loss(variables):
                y, after, _ = layer.apply(variables, x, state)
                again, after, _ = layer.apply(variables, x, after)
                wanted = jnp.roll(x, -1, axis=1)
                return ((y - wanted) ** 2 + (again - wanted) ** 2).mean(), after

            (value, state), slopes = jax.value_and_grad(loss, has_aux=True)(variables)
            update, slots = optimizer.update(slopes, slots)
            found = value, optax.global_norm(slopes)
            return (optax.apply_updates(variables, update), slots, state), found

        carried, found = jax.lax.scan(body, (variables, optimizer.init(variables), state), x)
        return carried, found

    (_, _, state), (losses, norms) = train(variables, state)
    assert np.isfinite(losses).all() and np.isfinite(norms).all()
    assert losses[-20:].mean() < 0.8 * losses[0]
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(state.memory)) < 1e3


def test_an_unknown_loss_is_refused():
    with pytest.raises(UsageError, match="loss = 'l1'"):
        longmem_jax.Titans(**SIZES, loss='l1')
