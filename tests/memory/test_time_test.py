"""TTT-Linear and TTT-MLP: the inner gradient, weights of a mini-batch, short documents in a segment."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from longmem_jax.author.chunks import sight
from longmem_jax.memory import test_time

RANDOM = np.random.default_rng(0)
EPSILON = 1e-6


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def weights(inner, width):
    """Weights of one head that are far from their first ones."""
    shapes = dict(W1=(width, width), b1=(width,))
    if inner == 'mlp':
        hidden = 4 * width
        shapes = dict(W1=(width, hidden), b1=(hidden,), W2=(hidden, width), b2=(width,))
    return {name: 0.5 * normal(*shape) for name, shape in shapes.items()}


@pytest.mark.parametrize('width', [3, 8, 17])
@pytest.mark.parametrize('inner', ['linear', 'mlp'])
def test_the_inner_gradient_is_that_of_the_inner_loss(inner, width):
    given = weights(inner, width), normal(width), normal(width), normal(width), normal(width)
    wanted = jax.jit(jax.grad(functools.partial(test_time.loss, epsilon=EPSILON)))(*given)
    inputs, errors = jax.jit(functools.partial(test_time.gradients, epsilon=EPSILON))(*given)
    for number, (a, e) in enumerate(zip(inputs, errors, strict=True), 1):
        largest = np.abs(wanted[f'W{number}']).max()
        np.testing.assert_allclose(np.outer(a, e), wanted[f'W{number}'], atol=2e-5 * largest)
        np.testing.assert_allclose(e, wanted[f'b{number}'], atol=2e-5 * largest)


@pytest.mark.parametrize('inner', ['linear', 'mlp'])
def test_a_mini_batch_is_gradient_descent_by_autodiff(inner):
    """Equation by equation: all gradients at the weights before, and weights of every token."""
    n, width = 4, 6
    first, norm = weights(inner, width), (normal(width), normal(width))
    q, k, v, rate = normal(n, width), normal(n, width), normal(n, width), np.abs(normal(n))
    share, closes = 1 / np.arange(1, n + 1, dtype=np.float32), np.arange(n) == n - 1
    slope = jax.jit(jax.grad(functools.partial(test_time.loss, epsilon=EPSILON)))
    slopes = [slope(first, k[j], v[j], *norm) for j in range(n)]
    zeros = {name: jnp.zeros_like(leaf) for name, leaf in first.items()}
    state = zeros | {f'sum_{name}': leaf for name, leaf in zeros.items()}
    given = q, k, v, rate, share, closes.astype(np.float32), first, *norm
    chunked = functools.partial(test_time.chunked, epsilon=EPSILON)
    new, y = jax.jit(lambda state, *given: chunked(state, sight(n, None), *given))(state, *given)
    for i in range(n):
        sums = jax.tree.map(lambda *of: sum(r * s for r, s in zip(rate, of)), *slopes[: i + 1])  # noqa: B905
        moved = {name: first[name] - share[i] * sums[name] for name in first}
        z = test_time.layers_of(moved, q[i])[2]
        wanted = q[i] + test_time.normed(z, *norm, EPSILON)
        np.testing.assert_allclose(y[i], wanted, rtol=1e-3, atol=1e-4)
    for name in first:
        np.testing.assert_allclose(first[name] + new[name], moved[name], rtol=1e-3, atol=1e-4)
        assert not np.any(new[f'sum_{name}']), (
            'the next mini-batch begins with sums of the last one'
        )


@functools.cache
def layer_of(inner):
    layer = longmem_jax.TTT(d_model=12, num_heads=2, segment_length=8, inner=inner, chunk=4)
    x = normal(2, 8, 12)
    return layer, jax.jit(layer.init)(jax.random.key(0), x, layer.start(2))


@pytest.mark.slow
@pytest.mark.parametrize('inner', ['linear', 'mlp'])
def test_short_documents_in_a_segment_are_read_as_alone(inner):
    """More documents than mini-batches: those that begin in the segment share chunks."""
    layer, variables = layer_of(inner)
    read = jax.jit(layer.apply)
    x, before = normal(2, 8, 12), normal(2, 3, 12)
    _, state, _ = read(variables, before, layer.start(2))
    start = np.zeros((2, 8), bool)
    start[0, [1, 2, 4, 5, 7]] = start[1, [0, 6]] = True
    fresh = layer.start(1)
    y, new, _ = read(variables, x, state, start=start)
    for row in range(2):
        borders = [0, *np.flatnonzero(start[row]), 8]
        state_of = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], state)
        for begin, end in zip(borders, borders[1:], strict=False):
            if begin == end:
                continue
            state_of = fresh if start[row, begin] else state_of
            # Padding behind it makes all documents of one length, which one program reads.
            own, number = np.zeros((1, 8, 12), np.float32), end - begin
            own[0, :number] = x[row, begin:end]
            alone, state_of, _ = read(variables, own, state_of, valid=np.arange(8)[None] < number)
            np.testing.assert_allclose(y[row, begin:end], alone[0, :number], atol=2e-5)
        for found, wanted in zip(jax.tree.leaves(new), jax.tree.leaves(state_of), strict=True):
            np.testing.assert_allclose(found[row], wanted[0], atol=2e-5)


def test_the_place_in_a_mini_batch_is_kept_beyond_the_largest_count():
    layer, variables = layer_of('linear')
    read = jax.jit(layer.apply)
    x, further = normal(2, 3, 12), normal(2, 8, 12)
    state = read(variables, x, layer.start(2))[1]
    wanted = read(variables, further, state)
    far = state.replace(count=state.count + np.int32(2**31 - 8))
    found = read(variables, further, far)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert (found[1].count >= 0).all() and (found[1].count % 4 == wanted[1].count % 4).all()
