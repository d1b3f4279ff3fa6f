"""Documents of more than 2^31 tokens: no count overflows, and no sum stops to grow.

Nobody reads so far in a test: states are moved there, to what the layer would have reached.
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
from tests.assertions import assert_finite
from tests.toys import BATCH, LENGTH, VOCAB, every_layer, model_config, parameters

EDGE = 2**31 - 1
SEGMENTS = 13  # read at once
PERIOD = 60  # what is stored modulo some number has the same remainder after so many tokens more
FIX = (
    'Hold a count at its largest value (`segment.count_on`), or keep it modulo what it is used for: '
    'int32 ends at 2^31 - 1 tokens of one document.'
)
# A model whose positions count on through a document, too.
POSITIONS = 'positions'
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if ':' in name else name
    for name in (POSITIONS, *every_layer())
]


@functools.cache
def program(name, dtype='float32'):
    """A compiled `(params, state, tokens) -> state, (logits, metrics)`, parameters and a fresh state."""
    if name == POSITIONS:
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
            logits, state, aux = model.apply({'params': params}, segment, state, train=False)
            return state, (logits, aux.metrics)

        return jax.lax.scan(one, state, tokens)

    return read, params, jax.jit(lambda: fresh_state(model, params, BATCH))()


def tokens(seed):
    shape = (SEGMENTS, BATCH, LENGTH)
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, shape), jnp.int32)


def grows(before, after):
    """Whether a leaf of a state is a count that has grown in every lane."""
    return jnp.issubdtype(after.dtype, jnp.integer) and bool((after > before).all())


def moved(before, after, tokens):
    """The state `after` with all counts that grow larger by so many tokens, a number or 'edge'."""

    def move(old, new):
        if not (grows(old, new) and new.size):
            return new
        more = (EDGE - new.max()) // PERIOD * PERIOD if tokens == 'edge' else tokens
        return new + more

    return jax.tree.map(move, before, after)


@pytest.mark.parametrize('name', NAMES)
def test_counts_pass_the_edge_of_int32(name):
    read, params, state = program(name)
    read = functools.partial(read, params)
    before, _ = read(state, tokens(0))
    state, _ = read(before, tokens(1))
    _, (logits, _) = read(state, tokens(2))
    _, (later, _) = read(moved(before, state, 10 * PERIOD), tokens(2))
    over, (found, metrics) = read(moved(before, state, 'edge'), tokens(2))
    assert_finite(found, 'logits are not finite beyond 2^31 tokens', FIX)
    # A number that tells random keys apart is no count: other values give other draws.
    if bool((logits == later).all()):
        np.testing.assert_allclose(found, logits, atol=1e-6, err_msg=FIX)
    sizes = metrics.get('memory_size', jnp.zeros(()))
    assert bool((sizes >= 0).all()), f'memory_size is negative: {FIX}'
    again, _ = read(over, tokens(3))


@pytest.mark.parametrize('name', NAMES)
def test_no_count_is_negative_beyond_the_edge(name):
    """A memory file with one is refused."""
    read, params, state = program(name)
    before, _ = read(params, state, tokens(0))
    state, _ = read(params, before, tokens(1))
    # One segment before the edge: a ring of rows comes back to its size with the first one.
    near = EDGE - LENGTH
    last = jax.tree.map(lambda old, new: new * 0 + near if grows(old, new) else new, before, state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(read(params, last, tokens(2))[0]):
        assert leaf.dtype != jnp.int32 or bool((leaf >= 0).all()), (
            f'{jax.tree_util.keystr(path)} is negative: use `segment.count_on` or `count_round`'
        )


def exact(pairs):
    """The sums of a memory with their rests, float64."""
    rest = pairs.rest or jax.tree.map(jnp.zeros_like, pairs)
    return [
        np.asarray(sums, np.float64) + np.asarray(more, np.float64)
        for sums, more in ((pairs.matrix, rest.matrix), (pairs.normalizer, rest.normalizer))
    ]


@pytest.mark.parametrize(
    'name', ['infini', 'linear', 'memsizer', pytest.param('infini:linear', marks=pytest.mark.slow)]
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
