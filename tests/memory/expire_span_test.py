"""Expire-Span: deletion does not change any output, and deleted memories are gone."""

from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.attention.ramp import ramp_mask
from longmem_jax.attention.span_attention import NEVER_SINCE, KeySpans
from longmem_jax.attention.weight_dropout import factor_by_number
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.layers.switching import sizes_below, smallest
from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.memory.expire_span import maths as expiring
from longmem_jax.memory.expire_span import writing
from longmem_jax.memory.expire_span.writing import sizes_to_write
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models import block as block_module
from longmem_jax.segment import read_segments
from tests.toys import BATCH, LENGTH, random_segments, run, toy, with_config


def changed(**fields):
    """The toy with other fields of its Expire-Span layers."""
    return with_config('expire_span', expire_span=LAYERS['expire_span'].small() | fields)


def lively():
    """Parameters with spans that differ from token to token, so that some memories expire."""
    _, params = toy('expire_span')
    params = jax.tree.map(lambda leaf: leaf, params)
    for number in range(2):
        kernel = jax.random.normal(jax.random.key(number), (16,))
        params[f'block_{number}']['attention']['span_kernel'] = kernel
    return params


def value_and_gradient(model, params, segments):
    def value(params):
        def read(state, segment, key):
            logits, state, aux = model.apply({'params': params}, segment, state, train=False)
            return state, (jax.nn.logsumexp(logits, axis=-1).sum(), aux.losses['expire_span'])

        state = model.apply({'params': params}, BATCH, method='initial_state')
        parts = read_segments(read, state, segments, jax.random.key(0))[1]
        return sum(part.sum() for part in parts)

    return jax.jit(jax.value_and_grad(value))(params)


@pytest.mark.slow
def test_deleting_equals_never_deleting():
    """Outputs and gradients are those of a memory that keeps everything, in every buffer size."""
    params, segments = lively(), random_segments(segments=8)
    keeping = changed(capacity=200, num_sizes=1)
    with mock.patch.object(writing, 'expire', never_expire):
        wanted = value_and_gradient(keeping, params, segments)
        _, states = run(keeping, params, segments)
        kept = np.asarray(states[0].attention.count[-1])
    for fields in (dict(capacity=19, num_sizes=3), dict(capacity=19, num_sizes=1)):
        deleting = changed(**fields)
        chex.assert_trees_all_close(
            value_and_gradient(deleting, params, segments), wanted, atol=2e-5
        )
        _, states = run(deleting, params, segments)
        assert np.all(np.asarray(states[0].attention.count[-1]) < kept)
        assert not np.any(states[0].attention.dropped)


def never_expire(rows, distance, spans, filled, ramp, room):
    return REAL_EXPIRE(rows, distance, jnp.full_like(spans, 1e6), filled, ramp, room)


REAL_EXPIRE = expiring.expire


expire = jax.jit(expiring.expire, static_argnums=(4, 5))


@given(st.data())
def test_expire_keeps_what_lives_longest(data):
    batch, number, room, ramp = 2, 7, data.draw(st.sampled_from([1, 4, 7, 9])), 3
    numbers = st.lists(st.integers(0, 30), min_size=batch * number, max_size=batch * number)
    distance = np.asarray(data.draw(numbers)).reshape(batch, number)
    # Quarters and distinct positions: no ties.
    spans = np.asarray(data.draw(numbers)).reshape(batch, number) + np.arange(number) / 16
    filled = np.asarray(data.draw(numbers)).reshape(batch, number) % 3 > 0
    rows = np.arange(1.0, batch * number + 1).reshape(batch, number, 1)
    got = expire(
        jnp.asarray(rows, jnp.float32),
        jnp.asarray(distance, jnp.int32),
        jnp.asarray(spans, jnp.float32),
        jnp.asarray(filled),
        ramp,
        room,
    )
    for lane in range(batch):
        left = spans[lane] + ramp - distance[lane]
        alive = [i for i in range(number) if filled[lane, i] and left[i] > 0]
        best = sorted(sorted(alive, key=lambda i: -left[i])[:room])
        assert int(got[2][lane]) == len(best)
        assert int(got[3][lane]) == len(alive) - len(best)
        width = min(number, room)
        wanted = [rows[lane, i, 0] for i in best] + [0.0] * (width - len(best))
        np.testing.assert_array_equal(got[0][lane, :, 0], wanted)
        wanted = [distance[lane, i] for i in best] + [0] * (width - len(best))
        np.testing.assert_array_equal(got[1][lane], wanted)


def test_overflow_is_counted():
    params, segments = lively(), random_segments(segments=8)
    for block in range(2):
        params[f'block_{block}']['attention']['span_bias'] = jnp.asarray(4.0)
    model = changed(capacity=12)

    def read(state, segment, key):
        _, state, aux = model.apply({'params': params}, segment, state, train=False)
        return state, aux.metrics

    @jax.jit
    def read_all(segments):
        state = model.apply({'params': params}, BATCH, method='initial_state')
        return read_segments(read, state, segments, jax.random.key(0))

    state, metrics = read_all(segments)
    assert metrics['dropped'].sum() > 0
    assert state[0].attention.count.max() == 12 - 4
    np.testing.assert_allclose(
        metrics['dropped'].sum() * BATCH * 2,
        sum(block.attention.dropped.sum() for block in state),
    )


def drawn_keys(spans, length, ramp):
    """Keys at random distances, some of them not filled, and the numbers of valid queries."""
    random = np.random.default_rng(0)
    distance = jnp.asarray(random.integers(-length, 20, spans.shape), jnp.int32)
    filled = jnp.asarray(random.random(spans.shape) < 0.8)
    since = jnp.where(filled, 1 - distance, NEVER_SINCE)
    remaining = (spans - distance.astype(spans.dtype))[:, None]
    numbers = jnp.arange(spans.shape[1], dtype=jnp.int32)
    return KeySpans(since, None, remaining, numbers, ramp), distance, filled


def test_mask_and_loss_are_those_of_a_loop():
    ramp, length, num_queries = 4, 7, [7, 3]
    spans = np.random.default_rng(0).uniform(0, 25, (2, 40)).astype(np.float32)

    def read(spans):
        keys, *drawn = drawn_keys(spans, length, ramp)
        seen, soft = keys.masks(jnp.arange(length, dtype=jnp.int32)[None])
        loss = expiring.ramp_loss(keys, jnp.asarray(num_queries, jnp.int32), length)
        return seen, soft, loss, *drawn

    seen, soft, loss, distance, filled = jax.device_get(jax.jit(read)(spans))
    for lane in range(2):
        total = 0.0
        for query, key in np.ndindex(length, 40):
            left = spans[lane, key] - int(distance[lane, key]) - query
            visible = filled[lane, key] and distance[lane, key] + query >= 1
            mask = min(max(left / ramp + 1, 0), 1) if visible else 0.0
            np.testing.assert_allclose(soft[lane, 0, query, key], mask, atol=1e-5)
            assert seen[lane, 0, query, key] == visible
            if 0 < mask < 1 and query < num_queries[lane]:
                total += left / (ramp * length)
        np.testing.assert_allclose(loss[lane], total, rtol=1e-5)


def test_derivative_of_the_loss_is_that_of_all_pairs():
    ramp, length = 4, 7
    spans = jnp.asarray(np.random.default_rng(1).uniform(0, 25, (2, 40)), jnp.float32)
    num_queries = jnp.asarray([length, 3], jnp.int32)

    def of_keys(spans):
        return expiring.ramp_loss(drawn_keys(spans, length, ramp)[0], num_queries, length)

    def of_pairs(spans):
        keys, _, _ = drawn_keys(spans, length, ramp)
        query = jnp.arange(length, dtype=jnp.int32)
        soft = keys.masks(query[None])[1][:, 0]
        counted = (soft > 0) & (soft < 1) & (query[None, :, None] < num_queries[:, None, None])
        left = keys.remaining - query[None, :, None]
        return jnp.where(counted, left, 0.0).sum(axis=(1, 2)) / (ramp * length)

    assert np.all(jax.jit(of_pairs)(spans) < -0.1)
    found, expected = (jax.jit(jax.jacobian(loss))(spans) for loss in (of_keys, of_pairs))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_derivative_of_the_ramp_is_that_of_its_parts():
    """Also for spans that end on a token, where both halves count."""
    left = jnp.arange(-24, 12, dtype=jnp.float32) / 4

    def by_parts(left):
        return jnp.clip(left / 4 + 1, 0, 1)

    assert np.isin(np.asarray(left), (-4, 0)).sum() == 2
    for mode in (jax.jacfwd, jax.jacrev):
        found, expected = (
            jax.jit(mode(mask))(left) for mask in (lambda x: ramp_mask(x, 4), by_parts)
        )
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_spans_begin_at_the_share_given():
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.float32)
    params = toy('expire_span')[1]['block_0']['attention']
    spans = expiring.expire_spans(hidden, params['span_kernel'], params['span_bias'], 12, 1.0)
    np.testing.assert_allclose(spans, 12 * 0.4, rtol=1e-6)


def test_shortening_cuts_what_is_seen_and_nothing_that_is_kept():
    params, segments = lively(), random_segments(segments=5)
    model = changed(shorten=True)

    @jax.jit
    def read_all(share):
        def read(state, segment, key):
            logits, state, _ = model.apply(
                {'params': params}, segment, state, train=True, rngs={'memory': key}
            )
            return state, logits

        with mock.patch.object(expire_span, 'draw_shortening', lambda key: share):
            state = model.apply({'params': params}, BATCH, method='initial_state')
            return read_segments(read, state, segments, jax.random.key(0))

    (whole, plain), (short, cut) = read_all(1.0), read_all(0.01)
    np.testing.assert_array_equal(whole[0].attention.count, short[0].attention.count)
    # The ramp is still open, so the nearest tokens are seen either way.
    assert np.abs(plain - cut).max() > 1e-3
    wanted, _ = run(model, params, segments)
    np.testing.assert_allclose(plain, wanted, atol=2e-5)


def test_all_layers_share_one_shortening_and_steps_do_not():
    model, params = changed(shorten=True), lively()
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())

    @jax.jit
    def keys_of(key):
        keys = []
        with mock.patch.object(
            expire_span, 'draw_shortening', lambda key: keys.append(key) or jnp.asarray(0.5)
        ):
            state = model.apply({'params': params}, BATCH, method='initial_state')
            rngs = {'memory': key}
            model.apply({'params': params}, segment, state, train=True, rngs=rngs)
        return jnp.stack([jax.random.key_data(key) for key in keys])

    first, second = (keys_of(jax.random.key(number)).tolist() for number in range(2))
    assert len(first) == 2 and first[0] == first[1] and second[0] == second[1] != first[0]


def test_shortening_without_a_key_is_an_error():
    with pytest.raises(ValueError, match='memory'):
        expire_span.draw_shortening(None)


def test_layer_drop_leaves_the_block_out_but_writes_its_memory():
    params, segments = lively(), random_segments(segments=1)
    segment = jax.tree.map(lambda leaf: leaf[0], segments)
    model = with_config('expire_span', layer_drop=0.5)

    @jax.jit
    def read(skipped):
        with mock.patch.object(block_module, 'draw_skipped', lambda key, rate: skipped):
            state = model.apply({'params': params}, BATCH, method='initial_state')
            return model.apply(
                {'params': params}, segment, state, train=True, rngs={'memory': jax.random.key(0)}
            )

    logits, state, aux = read(True)
    assert aux.losses['expire_span'] == 0.0
    other, written, plain = read(False)
    assert plain.losses['expire_span'] != 0.0 and np.abs(logits - other).max() > 0
    np.testing.assert_array_equal(state[0].attention.window, written[0].attention.window)
    keys = jax.random.split(jax.random.key(0), 64)
    drawn = jax.jit(jax.vmap(lambda key: block_module.draw_skipped(key, 0.5)))(keys)
    assert 16 < np.sum(drawn) < 48


def test_every_device_switches_for_its_own_lanes():
    """The conditional is inside the per-device part, without a reduction across devices."""
    model, params = toy('expire_span')
    segments = random_segments(batch=8)
    with jax.set_mesh(make_mesh(dict(data=8))):
        text = jax.jit(run, static_argnums=0).lower(model, params, segments).as_text()
        compiled = jax.jit(run, static_argnums=0).lower(model, params, segments).compile()
    assert 'manual_computation' in text or 'shard_map' in text
    # Nothing but the lanes of a device decides: no collective is in the program at all.
    assert 'all-reduce' not in compiled.as_text()


def test_sizes():
    assert sizes_below(4096, 4) == (512, 1024, 2048, 4096)
    assert sizes_below(10, 3) == (3, 5, 10)
    assert sizes_below(1, 5) == (1,)
    assert sizes_below(10, 3, always=10) == (5, 10)
    assert sizes_below(10, 3, always=100) == (10,)
    assert sizes_to_write((1, 2, 4, 8)) == (2, 8)
    assert sizes_to_write((1, 2, 4)) == (1, 4)
    sizes = (3, 5, 10)
    for needed, wanted in ((0, 0), (3, 0), (4, 1), (5, 1), (6, 2), (10, 2), (99, 2)):
        assert int(smallest(sizes, jnp.asarray(needed))) == wanted


def test_dropout_is_the_same_for_a_number_wherever_its_column_is():
    keys = jax.random.split(jax.random.key(0), 2)

    def drawn(*numbers):
        scores = jnp.zeros((2, 3, LENGTH, len(numbers)))
        return np.asarray(factor_by_number(0.5, keys, jnp.asarray(numbers, jnp.int32), scores))

    few, many = drawn(7, 2), drawn(0, 1, 2, 5, 6, 7)
    np.testing.assert_array_equal(few, many[..., [5, 2]])
    assert set(np.unique(many)) == {0.0, 2.0}
