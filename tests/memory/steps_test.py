"""A segment at once is its tokens one by one, gradients too: of memories with code for both.

For `RecurrentMemory` this is a promise of the conformance suite, `chunks_are_steps`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.layers import associative
from longmem_jax.segment import Segment
from longmem_jax.testing.assertions import assert_close
from longmem_jax.testing.gradients import assert_gradients_close
from tests.toys import BATCH, LENGTH, moved

SEGMENTS = 3
EVERY = np.full((BATCH,), LENGTH, np.int32)
ONE = np.ones((BATCH,), np.int32)


def of_layer(name):
    """The parameters of a toy's first layer, and `call(f, params, x)`, which is f(layer, x)."""
    model, params = moved(name)

    def call(function, params, x):
        return model.apply(
            {'params': params},
            x,
            method=lambda model, x: function(model.stack.blocks[0].attention, x),
        )

    return params, call


def at_once(layer, x):
    """The memory after whole segments, and y [segments, batch, n, d_model]."""
    tokens = jnp.zeros((BATCH, LENGTH), jnp.int32)
    segment = Segment(tokens, tokens == 0, jnp.zeros((BATCH,), bool))

    def read(state, part):
        y, state, _ = layer(part, state, segment, train=False)
        return state, y

    return jax.lax.scan(read, layer.initial_state(BATCH), x)


def by_tokens(layer, x):
    """The same, each segment read token by token and then written."""

    def read(cache, token):
        vector, index = token
        y, cache = layer.extend(vector[:, None], cache, jnp.full((BATCH,), index), ONE)
        return cache, y[:, 0]

    def read_segment(state, part):
        tokens = part.swapaxes(0, 1), jnp.arange(LENGTH, dtype=jnp.int32)
        cache, y = jax.lax.scan(read, layer.open_segment(state, BATCH), tokens)
        return layer.close_segment(state, cache, EVERY), y.swapaxes(0, 1)

    return jax.lax.scan(read_segment, layer.initial_state(BATCH), x)


def with_slopes(function, *given):
    """What `function(*given)` returns, and the gradients of a random weighted sum of its floats."""

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=tuple(range(len(given))), has_aux=True)
    def weighed(*given):
        found, random = function(*given), np.random.default_rng(0)
        floats = [
            leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        total = sum((leaf * random.normal(size=leaf.shape)).sum() for leaf in floats)
        return total, found

    (_, found), slopes = jax.device_get(weighed(*given))
    return found, slopes


def assert_same(found, wanted, fix):
    """Values, and gradients to 1e-4 of the largest."""
    (values, slopes), (true_values, true_slopes) = found, wanted
    assert_close(values, true_values, 'token by token, other values', fix, atol=1e-4)
    for part in true_slopes:
        assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(part)) > 1e-2, (
            'no gradient'
        )
    broken = 'token by token, other gradients'
    assert_gradients_close(slopes, true_slopes, broken, fix, by=1e-4)


@pytest.mark.parametrize(
    'name',
    ['infini', pytest.param('infini:sequential', marks=pytest.mark.slow), 'sinks:hippocampus'],
)
def test_a_segment_has_the_gradients_of_its_tokens(name):
    params, call = of_layer(name)
    width = moved(name)[0].config.d_model
    x = jax.random.normal(jax.random.key(0), (SEGMENTS, BATCH, LENGTH, width))
    found, wanted = (
        with_slopes(functools.partial(call, read), params, x) for read in (by_tokens, at_once)
    )
    fix = (
        '`extend` reads and `close_segment` writes what `__call__` does: look for a stop_gradient.'
    )
    assert_same(found, wanted, fix)


@pytest.mark.parametrize('rule', ['delta', 'delta_sequential'])
def test_a_rule_of_pairs_is_its_tokens(rule):
    """'delta' takes from every value what the memory before the segment gives, the other what it
    gives just before the token."""
    random = np.random.default_rng(1)
    features, values = (random.normal(size=(2, 12, 8)).astype(np.float32) for _ in range(2))
    before = associative.Pairs(
        *(random.normal(size=s).astype(np.float32) for s in ((2, 8, 8), (2, 8)))
    )
    features = np.asarray(associative.FEATURES['normalized'][0](features))
    reading = ('none', 'clamp', 1e-6)
    if rule == 'delta':  # positive features, and their sum
        features, reading = np.abs(features), ('sum', 'clamp', 1e-6)
        before = before.replace(normalizer=np.abs(before.normalizer))

    def whole(pairs, features, values):
        return associative.write(pairs, features, values, rule, *reading)

    def tokens(pairs, features, values):
        def write(M, token):
            key, value = token
            seen = pairs if rule == 'delta' else M
            given = associative.read(seen, key[:, None], *reading)[:, 0]
            outer = key[:, :, None] * (value - given)[:, None]
            return associative.Pairs(M.matrix + outer, M.normalizer + key), None

        return jax.lax.scan(write, pairs, (features.swapaxes(0, 1), values.swapaxes(0, 1)))[0]

    given = (jax.tree.map(jnp.asarray, before), features, values)
    fix = '`associative.write`: the equation of the rule, token by token, is in this test.'
    assert_same(with_slopes(whole, *given), with_slopes(tokens, *given), fix)


def test_what_leaves_the_window_has_the_gradients_of_one_token_after_another():
    """S of a hippocampus is the same whether tokens leave in one segment or in segments of one."""
    params, call = of_layer('sinks:hippocampus')
    width, number = moved('sinks:hippocampus')[0].config.d_model, SEGMENTS * LENGTH
    x = jax.random.normal(jax.random.key(0), (BATCH, number, width))

    def whole(layer, x):
        count = jnp.full((BATCH,), number, jnp.int32)
        return layer.written(layer.initial_state(BATCH), x, count)

    def one_by_one(layer, x):
        def write(state, token):
            return layer.written(state, token[:, None], jnp.asarray(ONE)), None

        return jax.lax.scan(write, layer.initial_state(BATCH), x.swapaxes(0, 1))[0]

    found, wanted = (
        with_slopes(functools.partial(call, read), params, x) for read in (whole, one_by_one)
    )
    assert np.abs(wanted[0].overflow).max() > 1e-2, 'no token has left the window'
    assert_same(
        found, wanted, '`Overflow.written` writes in the order of the text, every token once.'
    )
