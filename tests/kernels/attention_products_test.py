"""The derivative of `mix` against that of its plain formula, forward and backward; bfloat16 on CPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.kernels.attention_products import EPSILON, dot, mix
from longmem_jax.testing.assertions import assert_close

SHAPE, WIDTH = (2, 3, 4, 5), 6
BLIND = (0, slice(None), 1)  # this query sees no key


def _plain(scores, values, seen, soft, kept):
    """The formula of `mix`, without its care for overflow."""
    exponentials = jnp.where(seen, jnp.exp(scores), 0.0)
    weights = exponentials if soft is None else exponentials * soft
    total = weights.sum(axis=-1, keepdims=True)
    if soft is not None:
        total = total + EPSILON * exponentials.sum(axis=-1, keepdims=True)
    weights = weights / jnp.where(total > 0, total, 1.0)
    return (weights if kept is None else weights * kept) @ values


@pytest.mark.parametrize('drops', [False, True])
@pytest.mark.parametrize('softly', [False, True])
def test_mix_and_its_derivatives_are_those_of_the_formula(softly, drops):
    draw = np.random.default_rng(0)
    scores, soft = (jnp.asarray(draw.normal(size=SHAPE), jnp.float32) for _ in range(2))
    soft = jax.nn.sigmoid(soft) if softly else None
    values = jnp.asarray(draw.normal(size=(*SHAPE[:2], SHAPE[3], WIDTH)), jnp.float32)
    factor = jnp.asarray(draw.normal(size=(*SHAPE[:3], WIDTH)), jnp.float32)
    seen = jnp.asarray(draw.random((SHAPE[0], 1, *SHAPE[2:])) > 0.4).at[BLIND].set(False)
    kept = jnp.asarray(draw.random(SHAPE) > 0.3) if drops else None

    @functools.partial(jax.jit, static_argnums=0)
    def results(function):
        def total(scores, values, soft):
            out = function(scores, values, seen, soft, kept)
            return (out * factor).sum(), out

        (_, out), gradients = jax.value_and_grad(total, (0, 1, 2) if softly else (0, 1), True)(
            scores, values, soft
        )
        inputs = (scores, values, soft) if softly else (scores, values)
        moved = jax.jvp(
            lambda scores, values, soft=None: function(scores, values, seen, soft, kept),
            inputs,
            jax.tree.map(jnp.sin, inputs),
        )[1]
        return out, gradients, moved

    out, gradients, moved = results(mix)
    assert not out[BLIND].any(), 'a query that sees no key must give zeros'
    assert not gradients[0][BLIND].any(), 'nor do its scores have a gradient'
    assert_close(
        (out, gradients, moved),
        results(_plain),
        'mix has other results or gradients than its formula',
        'Fix `_mix` or `_mix_derivative` in kernels/attention_products.py.',
        atol=2e-5,
    )


@pytest.mark.parametrize('number', [16, 49])
def test_bfloat16_runs_on_cpus_with_vectors_that_lanes_share(number):
    """XLA for CPUs has no product of bfloat16 whose sums are over the first axis of the left factor."""
    keys = jax.random.split(jax.random.key(0), 3)
    queries = jax.random.normal(keys[0], (4, 2, 32, 32))
    vectors = jax.random.normal(keys[1], (number, 32))
    gradient = jax.random.normal(keys[2], (4, 2, 32, number))
    backward = jax.jit(lambda *arguments: jax.vjp(dot, *arguments)[1](gradient))
    expected = backward(queries, vectors)
    found = backward(queries.astype(jnp.bfloat16), vectors.astype(jnp.bfloat16))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        largest = float(jnp.abs(other).max())
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=0.01 * largest)
