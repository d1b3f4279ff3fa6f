"""Documents of more than 2^31 tokens: no count overflows, and no sum stops to grow.

Nobody reads so far in a test: sums are moved there. Counts are in `longmem_jax.testing.states`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.associative import Pairs
from longmem_jax.models.kinds import make_model
from longmem_jax.segment import Segment, count_on
from tests.toys import BATCH, LENGTH, VOCAB, model_config, parameters

EDGE = 2**31 - 1
SEGMENTS = 13  # read at once


@functools.cache
def program(name, dtype='float32'):
    """A compiled `(params, state, tokens) -> state, logits`, parameters and a fresh state."""
    if name == 'positions':
        config = model_config('local', 1, position='sinusoidal', num_positions=20, dtype=dtype)
    else:
        config = model_config(name, 1, dtype=dtype)
    model = make_model(config, LENGTH)
    params = parameters(model, 1)

    @jax.jit
    def read(params, state, tokens):
        def one(state, tokens):
            valid = jnp.ones(tokens.shape, bool)
            segment = Segment(tokens, valid, jnp.zeros(tokens.shape[:1], bool))
            logits, state, _ = model.apply({'params': params}, segment, state, train=False)
            return state, logits

        return jax.lax.scan(one, state, tokens)

    return read, params, jax.jit(lambda: fresh_state(model, params, BATCH))()


def tokens(seed):
    shape = (SEGMENTS, BATCH, LENGTH)
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, shape), jnp.int32)


def test_a_position_stays_at_the_end_of_its_table():
    """A model whose positions count on through a document; counts of memories are in the suite."""
    read, params, state = program('positions')
    for seed in range(2):
        state, wanted = read(params, state, tokens(seed))
    assert (np.asarray(state.position) == 20).all()
    again, found = read(params, state, tokens(1))
    assert (np.asarray(again.position) == 20).all()
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def exact(pairs):
    """The sums of a memory with their rests, float64."""
    rest = pairs.rest or jax.tree.map(jnp.zeros_like, pairs)
    return [
        np.asarray(sums, np.float64) + np.asarray(more, np.float64)
        for sums, more in ((pairs.matrix, rest.matrix), (pairs.normalizer, rest.normalizer))
    ]


@pytest.mark.parametrize(
    'name',
    [
        'infini',
        *(pytest.param(n, marks=pytest.mark.slow) for n in ('linear', 'memsizer', 'infini:linear')),
    ],
)
def test_sums_grow_after_a_billion_tokens(name):
    """What float32 adds to sums of 2 x 10^9 tokens is what float64 adds."""
    read, params, state = program(name)
    state, _ = read(params, state, tokens(0))

    def far(node):
        if not isinstance(node, Pairs):
            return node
        matrix, normalizer = node.matrix * 2.0**25, node.normalizer * 2.0**25
        return node.replace(matrix=matrix, normalizer=normalizer)

    def is_pairs(node):
        return isinstance(node, Pairs)

    def nodes(part):
        return jax.tree.leaves(part, is_leaf=is_pairs)

    def gains(before, after):
        one, two = (
            [sums for node in filter(is_pairs, nodes(part)) for sums in exact(node)]
            for part in (before, after)
        )
        return [new - old for old, new in zip(one, two, strict=True)]

    begin = jax.tree.map(far, state, is_leaf=is_pairs)
    found = gains(begin, read(params, begin, tokens(1))[0])
    with jax.enable_x64(True):
        wide_read, _, _ = program(name, 'float64')

        def wide(leaf):
            return leaf.astype('float64') if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        params, wide_begin = jax.tree.map(wide, (params, begin))
        wanted = gains(begin, wide_read(params, wide_begin, tokens(1))[0])
    assert found and len(found) == len(wanted)
    for ours, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            ours,
            right,
            atol=1e-4 * np.abs(right).max(),
            err_msg='float32 sums that grow without end need a rest: `associative.empty(endless=True)`',
        )


def test_a_count_stays_at_its_largest():
    found = count_on(jnp.asarray([0, EDGE - 5, EDGE - 4, EDGE], jnp.int32), 5)
    assert found.dtype == jnp.int32 and found.tolist() == [5, EDGE, EDGE, EDGE]
