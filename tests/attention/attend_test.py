"""Attention against `attention.reference`, which loops over queries in numpy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmem_jax.attention import reference
from longmem_jax.attention.attend import attend
from longmem_jax.attention.rules import RelativeTable, Rules, skew
from longmem_jax.attention.weight_dropout import WeightDropout
from longmem_jax.errors import UsageError

B, H, N, M, D = 2, 4, 4, 11, 6


def arrays(seed=0):
    random = np.random.default_rng(seed)
    make = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    return dict(
        queries=make(B, H, N, D), keys=make(B, H, M, D), values=make(B, H, M, D),
        relative=(make(B, H, N, D), make(H, M, D)), short=(make(B, H, N, D), make(H, 5, D)),
        distance_bias=make(H, M), bias=make(1, H, N, M),
        mask=random.random((B, 1, N, M)) < 0.6, first=np.asarray([2, 6], np.int32),
    )  # fmt: skip


OPTIONS = {
    'plain': {},
    'first': dict(first=np.asarray([3, 0], np.int32)),
    'window': dict(window=4),
    'relative': dict(relative='relative'),
    'short table': dict(relative='short', first=np.asarray([0, 5], np.int32)),
    'distance bias': dict(distance_bias='distance_bias', window=6),
    'bias and mask': dict(bias='bias', mask='mask'),
    'not causal': dict(causal=False, mask='mask'),
    'all': dict(
        relative='relative', distance_bias='distance_bias', first=np.asarray([2, 6], np.int32)
    ),
}


def options(name, data):
    chosen = {}
    for key, value in OPTIONS[name].items():
        chosen[key] = data[value] if isinstance(value, str) else value
    return chosen


def ours(data, chosen, offset, dropout=None, block_size=0):
    chosen = {k: v if isinstance(v, (int, tuple)) else jnp.asarray(v) for k, v in chosen.items()}
    if 'relative' in chosen:
        chosen['relative'] = RelativeTable(*map(jnp.asarray, chosen['relative']))
    with jax.numpy_rank_promotion('raise'), jax.numpy_dtype_promotion('strict'):
        vectors = (jnp.asarray(data[k]) for k in ('queries', 'keys', 'values'))
        return attend(*vectors, Rules(offset=offset, **chosen), dropout, block_size)


def shared_heads(data, kv_heads):
    """The same data with the first `kv_heads` heads of keys and values."""
    return data | {name: data[name][:, :kv_heads] for name in ('keys', 'values')}


@pytest.mark.parametrize(
    'name, block, stream',
    [
        # Blocks of which the last one is not full; those of other sizes are in the slow tier.
        pytest.param(*case, marks=() if case[1] in (0, 3) else pytest.mark.slow)
        for case in itertools.product(OPTIONS, (0, 3, 4, 11), (False, True))
    ],
)
def test_agrees_with_the_reference(name, block, stream):
    data = arrays()
    chosen = options(name, data)
    offset = np.asarray([M - N, M - N - 3], np.int32) if stream else M - N
    expected = reference.attend(
        *(data[k] for k in ('queries', 'keys', 'values')), offset=offset, **chosen
    )
    got = ours(data, chosen, jnp.asarray(offset) if stream else offset, block_size=block)
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize('name', ('relative', 'not causal', 'all'))
@pytest.mark.parametrize('kv_heads, block, stream', [(1, 0, False), (2, 4, False), (2, 0, True)])
def test_grouped_heads_agree_with_the_reference(name, kv_heads, block, stream):
    data = shared_heads(arrays(), kv_heads)
    chosen = options(name, data)
    offset = np.asarray([M - N, M - N - 3], np.int32) if stream else M - N
    expected = reference.attend(
        *(data[k] for k in ('queries', 'keys', 'values')), offset=offset, **chosen
    )
    got = ours(data, chosen, jnp.asarray(offset) if stream else offset, block_size=block)
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize('block', (0, 3))
@pytest.mark.parametrize('stream', (False, True))
def test_grouped_heads_have_the_gradients_of_repeated_ones(block, stream):
    data = shared_heads(arrays(2), 2)
    chosen = options('all', data)
    offset = jnp.full((B,), M - N, jnp.int32) if stream else M - N

    def value(queries, keys, values):
        own = data | dict(queries=queries, keys=keys, values=values)
        return jnp.sin(ours(own, chosen, offset, block_size=block)).sum()

    def repeated(queries, keys, values):
        return value(queries, *(jnp.repeat(part, H // 2, axis=1) for part in (keys, values)))

    floats = [jnp.asarray(data[k]) for k in ('queries', 'keys', 'values')]
    grouped, expected = (jax.jit(jax.grad(f, (0, 1, 2)))(*floats) for f in (value, repeated))
    for got, same in zip(grouped, expected, strict=True):
        np.testing.assert_allclose(got, same, atol=2e-6)
        assert np.abs(got).max() > 1e-3


@pytest.mark.parametrize('kv_heads', (1, 2))
def test_grouped_heads_are_not_repeated_in_memory(kv_heads):
    """No array of the program is as large as repeated keys would be."""
    keys = jnp.zeros((B, kv_heads, 50 * M, D))
    program = jax.make_jaxpr(lambda q: attend(q, keys, keys, Rules(offset=50 * M - N)))(
        jnp.zeros((B, H, N, D))
    )
    largest = max(v.aval.size for equation in program.eqns for v in equation.outvars)
    assert largest < B * H * 50 * M * D, 'attend repeats keys: group the queries instead'


def test_heads_that_cannot_be_shared_are_refused():
    data = shared_heads(arrays(), 3)
    with pytest.raises(UsageError, match='4 heads of queries, 3 of keys, 3 of values'):
        ours(data, {}, M - N)
    data = shared_heads(arrays(), 2)
    with pytest.raises(UsageError, match='4 heads of queries, 2 of keys, 4 of values'):
        ours(data | {'values': arrays()['values']}, {}, M - N)


RULES = {
    'first': st.sampled_from([None, 'first']),
    'window': st.sampled_from([0, 4]),
    'mask': st.sampled_from([None, 'mask']),
    'bias': st.sampled_from([None, 'bias']),
    'distance_bias': st.sampled_from([None, 'distance_bias']),
    'relative': st.sampled_from([None, 'relative', 'short']),
    'causal': st.booleans(),
}


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    named=st.fixed_dictionaries(RULES),
    block=st.sampled_from([0, 1, 3, 4, 10]),
    stream=st.booleans(),
    kv_heads=st.sampled_from([1, 2, 4]),
    scale=st.sampled_from([None, 1.0]),
)
def test_every_combination_of_rules_agrees_with_the_reference(
    named, block, stream, kv_heads, scale
):
    data = shared_heads(arrays(3), kv_heads)
    chosen = {k: data[v] if isinstance(v, str) else v for k, v in named.items() if v is not None}
    offset = np.asarray([M - N, M - N - 2], np.int32) if stream else M - N
    vectors = [data[k] for k in ('queries', 'keys', 'values')]
    if scale is None:
        expected = reference.attend(*vectors, offset=offset, **chosen)
    else:  # the twin divides by sqrt(head_dim)
        larger = dict(chosen)
        if 'relative' in chosen:
            larger['relative'] = (chosen['relative'][0] * np.sqrt(D), chosen['relative'][1])
        expected = reference.attend(vectors[0] * np.sqrt(D), *vectors[1:], offset=offset, **larger)
        chosen['scale'] = scale
    got = ours(data, chosen, jnp.asarray(offset) if stream else offset, block_size=block)
    np.testing.assert_allclose(got, expected, atol=1e-5)


QUICK = ('short table', 'bias and mask', 'not causal', 'all')


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OPTIONS]
)
def test_gradients_of_blocks_and_streams_are_those_of_the_plain_path(name):
    data = arrays(1)
    chosen = options(name, data)

    def gradient(offset, **more):
        def value(floats):
            return (ours(data | floats, chosen_with(floats), offset, **more) ** 2).sum()

        def chosen_with(floats):
            named = {k: v for k, v in OPTIONS[name].items() if isinstance(v, str) and v in floats}
            return chosen | {k: floats[v] for k, v in named.items()}

        floats = {k: data[k] for k in ('queries', 'keys', 'values', 'relative', 'short',
                                       'distance_bias', 'bias')}  # fmt: skip
        return jax.jit(jax.grad(value))(jax.tree.map(jnp.asarray, floats))

    plain = gradient(M - N)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(plain))
    assert np.abs(plain['queries']).max() > 1e-3
    used = OPTIONS[name].get('relative')
    if used:
        assert np.abs(plain[used][1]).max() > 1e-3
    for other in (
        gradient(M - N, block_size=3),
        gradient(jnp.full((B,), M - N, jnp.int32)),
        gradient(jnp.full((B,), M - N, jnp.int32), block_size=4),
    ):
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize('block', [0, 4])
def test_rows_that_see_nothing_are_zero_with_finite_gradients(block):
    data = arrays()
    mask = np.ones((B, H, N, M), bool)
    mask[0, 0, 1] = False

    def value(queries):
        out = ours(data | {'queries': queries}, dict(mask=mask), M - N, block_size=block)
        return (out**2).sum(), out

    gradient, out = jax.jit(jax.grad(value, has_aux=True))(jnp.asarray(data['queries']))
    np.testing.assert_array_equal(out[0, 0, 1], 0.0)
    np.testing.assert_array_equal(gradient[0, 0, 1], 0.0)
    assert np.isfinite(gradient).all() and np.abs(out[0, 0, 0]).max() > 0


@pytest.mark.parametrize('block', [0, 2])
def test_queries_after_all_keys_may_see_nothing(block):
    """Query 0 sees the last key, within its window; the others see none."""
    queries, keys = jnp.ones((1, 1, 3, 4)), jnp.ones((1, 1, 5, 4))
    out = attend(queries, keys, keys, Rules(offset=6, window=3), block_size=block)
    np.testing.assert_allclose(out[0, 0, :, 0], [1.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize('block', [0, 4])
def test_dropout_keeps_the_mean_and_follows_the_key(block):
    data = arrays()
    plain = ours(data, {}, M - N, block_size=block)

    def drop(key):
        return ours(data, {}, M - N, block_size=block, dropout=WeightDropout(key, 0.3))

    many = jax.vmap(drop)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_array_equal(drop(jax.random.key(1)), drop(jax.random.key(1)))
    assert np.abs(drop(jax.random.key(1)) - drop(jax.random.key(2))).max() > 0.1
    np.testing.assert_allclose(many.mean(axis=0), plain, atol=0.1)


def test_bfloat16_scores_are_float32():
    data = arrays()
    half = {k: jnp.asarray(data[k], jnp.bfloat16) for k in ('queries', 'keys', 'values')}
    out = attend(*half.values(), Rules(offset=M - N))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), ours(data, {}, M - N), atol=4e-2)


def test_float64_gradient_is_the_difference_quotient():
    with jax.enable_x64(True):
        data = arrays()
        wide = [jnp.asarray(data[k], jnp.float64) for k in ('queries', 'keys', 'values')]
        table = jnp.asarray(data['relative'][1], jnp.float64)

        def value(table, queries):
            rules = Rules(offset=M - N, relative=RelativeTable(queries, table))
            out = attend(queries, *wide[1:], rules)
            assert out.dtype == jnp.float64
            return jnp.sin(out).sum()

        gradient, value = jax.jit(jax.grad(value))(table, wide[0]), jax.jit(value)
        step = jnp.zeros_like(table).at[1, 3, 2].set(1e-6)
        slope = (value(table + step, wide[0]) - value(table - step, wide[0])) / 2e-6
        np.testing.assert_allclose(gradient[1, 3, 2], slope, rtol=1e-7)


def test_skew_moves_rows():
    rows = jnp.arange(12.0).reshape(3, 4)
    moved = skew(rows, 4)
    np.testing.assert_array_equal(moved[0, :2], rows[0, 2:])
    np.testing.assert_array_equal(moved[1, :3], rows[1, 1:])
    np.testing.assert_array_equal(moved[2], rows[2])
