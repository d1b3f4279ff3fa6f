"""Attention sinks: which tokens are held, how old they are, and where those go that leave the window."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers import delta_rule
from longmem_jax.memory.sinks import AttentionSinks, SinksState, remember
from longmem_jax.segment import Segment
from longmem_jax.views import held_window

SIZE, SINKS = 6, 2


@pytest.mark.parametrize('parts', [(3, 2), (5, 4), (4, 4, 0, 5), (1, 9)])
def test_the_first_tokens_and_the_last_ones_are_held(parts):
    """Tokens are numbered in the text; the age of the last one is 1."""
    state = SinksState(jnp.zeros((1, SIZE, 1)), jnp.zeros((1,), jnp.int32))
    read = 0
    for number in parts:
        new = read + jnp.arange(number + 2, dtype=jnp.float32)[None, :, None]  # two of padding
        state = remember(state, new, jnp.asarray([number], jnp.int32), SINKS)
        read += number
    tokens = np.arange(read)
    wanted = tokens if read <= 6 else np.concatenate([tokens[:2], tokens[-4:]])
    held = held_window(state.count, SIZE, sinks=SINKS)
    there = np.asarray(held.weights[0]) > 0
    np.testing.assert_array_equal(state.hidden[0, there, 0], wanted)
    np.testing.assert_array_equal(held.ages[0, there], read - wanted)


# Of 23 tokens, the first two and the last four are held; the others have left, in this order.
TOKENS, HEADS, KV_HEADS, WIDTH = 23, 4, 2, 4
LEFT = range(2, TOKENS - 4)
X = jnp.asarray(np.random.default_rng(0).normal(size=(1, TOKENS, 8)), jnp.float32)
SETTINGS = ModelSettings(
    d_model=8, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH, d_feed_forward=1, num_layers=1,
    segment_length=TOKENS, dropout=0.0, attention_dropout=0.0, init_std=0.5, attention_bias='all',
    dtype=jnp.dtype('float32'),
)  # fmt: skip


@functools.cache
def made(overflow):
    """A layer, its variables with every value moved, and a program that reads a segment."""
    fields = dict(memory_length=6, sinks=2, position='none', overflow=overflow)
    layer = AttentionSinks(settings=SETTINGS, normalize=identity, shared=None, **fields)

    @jax.jit
    def read(variables, x, valid, state):
        segment = Segment(valid.astype(jnp.int32), valid, jnp.zeros(x.shape[:1], bool))
        return layer.apply(variables, x, state, segment, train=False)[:2]

    segment = Segment(jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4), bool), None)
    state = layer.initial_state(1)
    init = jax.jit(functools.partial(layer.init, train=False))
    first = init(jax.random.key(0), X[:, :4], state, segment)
    random = np.random.default_rng(1)
    moved = {
        name: jax.tree.map(lambda leaf: leaf + random.normal(size=leaf.shape) / 4, part)
        for name, part in sorted(first['params'].items(), reverse=True)  # maps, then `left`
    }
    return layer, first, {'params': moved}, read


def read_all(lengths, overflow='delta', padding=0):
    """The last state and the outputs of segments of these lengths, with padding behind each."""
    layer, _, variables, read = made(overflow)
    state, ys, at = layer.initial_state(1), [], 0
    for length in lengths:
        x = jnp.pad(X[:, at : at + length], ((0, 0), (0, padding), (0, 0)), constant_values=9.0)
        valid = jnp.arange(length + padding)[None] < length
        y, state = read(variables, x, valid, state)
        ys, at = [*ys, y[:, :length]], at + length
    return state, np.concatenate(ys, axis=1)


def rule(tokens):
    """S after these tokens, one after another, for every head: numpy and the rule of one token."""
    layer, _, variables, _ = made('delta')
    gates = {name: np.asarray(leaf.unbox()) for name, leaf in variables['params']['left'].items()}
    keys, values = layer.apply(
        variables,
        X,
        method=lambda layer, x: (layer.projections.keys(x), layer.projections.values(x)),
    )
    x, states, step = np.asarray(X[0]), [], jax.jit(delta_rule.step)
    for head in range(HEADS):
        S, shared = jnp.zeros((WIDTH, WIDTH)), head // (HEADS // KV_HEADS)
        for t in tokens:
            k = keys[0, shared, t] / np.linalg.norm(keys[0, shared, t])
            b = 1 / (1 + np.exp(-(x[t] @ gates['write'][:, head])))
            fades = np.logaddexp(0, x[t] @ gates['decay'][:, head] + gates['decay_bias'][head])
            log_a = -np.exp(gates['log_rate'][head]) * fades
            S, _ = step(S, k, k, values[0, shared, t], b, log_a)
        states.append(S)
    return jnp.stack(states)


@pytest.mark.parametrize(
    'lengths, padding',
    [
        ((3, 1, 16, 3), 3),
        *(
            pytest.param(lengths, padding, marks=pytest.mark.slow)
            for lengths in ((8, 8, 7), (1,) * TOKENS, (3, 1, 16, 3), (TOKENS,))
            for padding in (0, 3)
        ),
    ],
)
def test_what_leaves_the_window_is_written_once_and_in_order(lengths, padding):
    """Not the tokens that attention still reads, wherever segments end."""
    state, _ = read_all(lengths, padding=padding)
    np.testing.assert_allclose(state.overflow[0], rule(LEFT), atol=1e-5)
    held = np.concatenate([X[0, :2], X[0, -4:]])
    np.testing.assert_array_equal(state.hidden[0], held)


def test_nothing_is_written_before_a_token_leaves():
    state, _ = read_all((3, 3))
    assert not np.asarray(state.overflow).any()


def test_what_is_read_is_added_to_attention_head_by_head():
    """`g S^T q W` of the state before the segment, through the output map without its bias."""
    layer, _, variables, _ = made('delta')
    _, found = read_all((16, 7))
    _, plain = read_all((16, 7), overflow='none')
    params = variables['params']
    left = {name: np.asarray(leaf.unbox()) for name, leaf in params['left'].items()}
    queries = layer.apply(variables, X, method=lambda layer, x: layer.projections.queries(x))
    q = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    g = 1 / (1 + np.exp(-np.asarray(X) @ left['shown'])).swapaxes(1, 2)[..., None]
    S = np.asarray(rule(range(2, 16 - 4)))
    out = np.asarray(params['projections']['out']['kernel'].unbox())
    added = np.einsum('bhnd,hde,hef,hfm->bnm', g * q, S, left['out'], out)
    np.testing.assert_allclose(found[:, :16], plain[:, :16], atol=1e-5)
    np.testing.assert_allclose((found - plain)[:, 16:], added[:, 16:], atol=1e-5)


def test_it_begins_as_if_it_were_not_there():
    layer, first, _, read = made('delta')
    state = layer.initial_state(1).replace(overflow=jnp.ones((1, HEADS, WIDTH, WIDTH)))
    valid = jnp.ones((1, 8), bool)
    y, _ = read(first, X[:, :8], valid, state)
    wanted, _ = read(first, X[:, :8], valid, layer.initial_state(1))
    np.testing.assert_array_equal(y, wanted)
