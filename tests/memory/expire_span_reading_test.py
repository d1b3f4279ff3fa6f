"""Expire-Span: what is read, in which sizes and blocks, and what an upper limit of spans cuts."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention.span_attention import Dropout, blocks_of
from longmem_jax.memory.expire_span import entry, maths, reading
from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.memory.registry import LAYERS
from longmem_jax.segment import read_segments
from tests.toys import BATCH, random_segments, run, toy, with_config

CHANNELS, HEADS, LENGTH, WIDTH, ROOM = 16, 2, 5, 4, 23


def changed(**fields):
    """The toy with other fields of its Expire-Span layers."""
    return with_config('expire_span', expire_span=LAYERS['expire_span'].small() | fields)


def with_bias(bias, scale=0.0):
    """Parameters of the toy with other spans in both layers."""
    _, params = toy('expire_span')
    params = jax.tree.map(lambda leaf: leaf, params)
    for number in range(2):
        own = params[f'block_{number}']['attention']
        own['span_bias'] = jnp.asarray(bias)
        own['span_kernel'] = scale * jax.random.normal(jax.random.key(number), (CHANNELS,))
    return params


def operands():
    """`Params` and `Rows`: some of the memories are expiring, one row has few of them."""
    random, head = np.random.default_rng(0), CHANNELS // HEADS

    def normal(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    params = reading.Params(
        projector=(normal(CHANNELS, CHANNELS) / 4, normal(CHANNELS, CHANNELS) / 4),
        kernel=normal(CHANNELS) / 4,
        bias=jnp.asarray(0.3),
        table=normal(WIDTH, head),
    )
    count = jnp.asarray([ROOM - 2, 6], jnp.int32)
    distance = np.tile(np.arange(ROOM + WIDTH, WIDTH, -1), (BATCH, 1))
    state = maths.ExpireSpanState(
        window=normal(BATCH, WIDTH, CHANNELS),
        window_count=jnp.asarray([WIDTH, 2], jnp.int32),
        buffer=normal(BATCH, ROOM, CHANNELS),
        distance=jnp.asarray(distance, jnp.int32),
        count=count,
        dropped=jnp.zeros((BATCH,), jnp.int32),
    )
    rows = reading.Rows(
        *(normal(BATCH, HEADS, LENGTH, head) for _ in range(3)),
        spans=jnp.asarray(random.uniform(0, 30, (BATCH, LENGTH)), jnp.float32),
        num_valid=jnp.asarray([LENGTH, 3], jnp.int32),
        limit=jnp.full((BATCH,), 25.0),
        state=state,
    )
    return params, rows


def dropped(rows, rate):
    lanes = jax.random.split(jax.random.key(2), BATCH)
    return rows.replace(dropout=Dropout(lanes, rate) if rate else None)


def project(variables, hidden):
    heads = [
        jnp.swapaxes((hidden @ kernel).reshape(*hidden.shape[:2], HEADS, -1), 1, 2)
        for kernel in variables
    ]
    return hidden, *heads


read = functools.partial(
    reading.read_segment, project=project, max_span=30, pre_div=1.0, ramp=6, kernels='plain'
)


@pytest.mark.parametrize('rate', [0.0, 0.3])
@pytest.mark.parametrize('block_size', [3, pytest.param(7, marks=pytest.mark.slow)])
def test_blocks_change_nothing(block_size, rate):
    """Outputs, loss, spans and all gradients are those of reading everything at once."""
    params, rows = operands()
    given = {name: getattr(rows, name) for name in ('queries', 'keys', 'values', 'spans')}

    def value(params, given, block_size):
        found = read(ROOM, params, dropped(rows.replace(**given), rate), block_size=block_size)
        out, loss, _ = found
        weights = jnp.arange(out.size).reshape(out.shape) / out.size
        return (jnp.cos(out) * weights).sum() + loss.sum(), found

    results = [
        jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True), static_argnums=2)(
            params, given, size
        )
        for size in (0, block_size)
    ]
    assert blocks_of(ROOM, block_size)[0] > 3
    (_, (_, loss, _)), gradient = results[0]
    assert np.all(loss < 0) and np.abs(gradient[0].kernel).max() > 1e-2
    chex.assert_trees_all_close(*results, rtol=2e-5, atol=1e-5)


def test_no_scores_are_as_long_as_a_buffer_that_is_read_in_blocks():
    """Neither forwards nor backwards."""
    params, rows = operands()

    def value(params, queries):
        rate = dropped(rows.replace(queries=queries), 0.3)
        out, loss, _ = read(ROOM, params, rate, block_size=6)
        return jnp.square(out).sum() + loss.sum()

    text = jax.jit(jax.grad(value, (0, 1))).lower(params, rows.queries).as_text()
    for columns in range(ROOM, ROOM + WIDTH + LENGTH + 1):
        assert f'{LENGTH}x{columns}x' not in text
    whole = functools.partial(read, ROOM, block_size=0)
    text = jax.jit(whole).lower(params, dropped(rows, 0.3)).as_text()
    assert f'{LENGTH}x{ROOM + WIDTH + LENGTH}x' in text, 'this test no longer finds long arrays'


def test_blocks():
    assert blocks_of(100, 0) == (1, 100)
    assert blocks_of(1024, 1024) == (1, 1024)
    assert blocks_of(1280, 1024) == (1, 1280)  # a quarter more
    assert blocks_of(1281, 1024) == (2, 641)
    assert blocks_of(1792, 1024) == (2, 896)
    assert blocks_of(3584, 1024) == (4, 896)


def test_what_is_read_follows_what_is_alive():
    """One compiled model: short spans read the smallest buffer, long ones the largest."""
    model, segments = changed(max_span=40, capacity=36, num_sizes=4), random_segments(segments=8)
    real = expire_span.read_segment

    def telling(size, *args, **kwargs):
        """`read_segment` whose loss is its size."""
        out, loss, old = real(size, *args, **kwargs)
        return out, jnp.full_like(loss, size), old

    @jax.jit
    def taken(params):
        """Sizes that were read in every segment, the mean of both layers."""

        def read(state, segment, key):
            _, state, aux = model.apply({'params': params}, segment, state, train=False)
            return state, aux.losses['expire_span'] / 2

        state = model.apply({'params': params}, BATCH, method='initial_state')
        return read_segments(read, state, segments, jax.random.key(0))[1]

    with mock.patch.object(expire_span, 'read_segment', telling):
        # Alive in the buffer: nothing; up to 11 + 3 tokens, less the window of 4; everything.
        # No size below 8: the window and the segment are 4 + 5.
        assert taken(with_bias(-9.0)).tolist() == [8] * 8
        assert taken(with_bias(-1.0)).tolist() == [8, 8, 8, 16, 16, 16, 16, 16]
        assert taken(with_bias(9.0)).tolist() == [8, 8, 8, 16, 16, 32, 32, 32]


def test_a_larger_size_costs_more():
    params, rows = operands()

    def flops(size):
        step = jax.jit(functools.partial(read, size, block_size=0))
        return step.lower(params, rows).cost_analysis()['flops']

    assert flops(20) > 1.5 * flops(5) > 0


@pytest.mark.parametrize(
    'bias, limit, wanted',
    [
        (-30.0, 0, [0, 2, 2]),  # distances 1 and 2 are below the ramp of 3
        (30.0, 0, [0, 5, 10]),
        (30.0, 4, [0, 5, 6]),  # distances below limit + ramp
    ],
)
def test_memory_size_counts_what_is_alive(bias, limit, wanted):
    """Not the tokens of the window whose span is over."""
    model, params = changed(limit=limit), with_bias(bias)

    def read(state, segment, key):
        _, state, aux = model.apply({'params': params}, segment, state, train=False)
        return state, aux.metrics['memory_size']

    @jax.jit
    def sizes(segments):
        state = model.apply({'params': params}, BATCH, method='initial_state')
        return read_segments(read, state, segments, jax.random.key(0))[1]

    np.testing.assert_array_equal(sizes(random_segments(segments=3)), wanted)


@pytest.mark.slow
def test_a_limit_is_a_shorter_span_for_those_beyond_it():
    """Spans of 9 cut to 5 read like spans of 5 from a lower bias; those of 2 stay as they are."""
    segments = random_segments(segments=6)

    def bias(span):
        return float(np.log(span / (12 - span)))

    wanted, _ = run(changed(), with_bias(bias(5.0)), segments)
    cut, states = run(changed(limit=5), with_bias(bias(9.0)), segments)
    np.testing.assert_allclose(cut, wanted, atol=2e-5)
    assert states[0].attention.buffer.shape == (6, BATCH, 10, CHANNELS)
    whole, _ = run(changed(), with_bias(bias(9.0)), segments)
    assert np.abs(cut - whole).max() > 1e-2
    short, _ = run(changed(), with_bias(bias(2.0)), segments)
    kept, _ = run(changed(limit=5), with_bias(bias(2.0)), segments)
    np.testing.assert_array_equal(short, kept)
    # Without a capacity, the limit is what the buffer must hold.
    assert entry.full_capacity(dict(max_span=12, ramp=3, position_length=4, limit=5)) == 12
