"""A view of the tokens just before: what is seen, and sequences cut anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.layers import token_shift
from longmem_jax.layers.token_shift import EARLIER, TokenShift, convolved, mixed
from longmem_jax.models.parameters import unbox
from longmem_jax.models.stack import make_settings
from tests.toys import model_config

KINDS = [kind for kind in EARLIER if kind != 'none']


def make(kind):
    module = TokenShift(make_settings(model_config('local'), 9), kind)
    x = jax.random.normal(jax.random.key(0), (2, 9, 16))
    init = jax.jit(module.init)
    variables = unbox(init(jax.random.key(1), x, module.initial_state(2), jnp.full((2,), 9)))

    def run(x, recent, count):
        return module.apply(variables, x, recent, jnp.asarray(count, jnp.int32))

    return run, x, module.initial_state(2), variables


def test_half_of_the_channels_are_those_of_the_token_before():
    run, x, start, _ = make('half')
    y, last = run(x, start, [9, 9])
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])
    np.testing.assert_array_equal(y[:, 1:, :8], x[:, :-1, :8])
    np.testing.assert_array_equal(y[:, 0, :8], 0)
    np.testing.assert_array_equal(last, x[:, -1:])


def test_the_convolution_is_that_of_numpy():
    run, x, start, variables = make('convolution')
    kernel = np.asarray(variables['params']['kernel'])
    y, _ = run(x, start, [9, 9])
    for row in range(2):
        for channel in range(16):
            wanted = np.convolve(x[row, :, channel], kernel[::-1, channel])[:9]
            np.testing.assert_allclose(y[row, :, channel], wanted, atol=1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_a_sequence_may_be_cut_anywhere(kind):
    """Rows of different lengths, padded; the second part continues after the tokens of the first."""
    run, x, start, _ = make(kind)
    whole, end = run(x, start, [9, 9])
    for cut in (0, 1, 2, 5):
        other = jnp.full((2, 9 - cut, 16), 7.0)
        first = jnp.concatenate([x[:, :cut], other], axis=1)
        y, recent = run(first, start, [cut, cut])
        np.testing.assert_allclose(y[:, :cut], whole[:, :cut], atol=1e-6)
        y, last = run(x[:, cut:], recent, [9 - cut, 9 - cut])
        np.testing.assert_allclose(y, whole[:, cut:], atol=1e-6)
        np.testing.assert_array_equal(last, end)
    _, uneven = run(x, start, [0, 4])
    np.testing.assert_array_equal(uneven[0], start[0])
    np.testing.assert_array_equal(uneven[1, -1], x[1, 3])


@pytest.mark.parametrize('starts', [False, True])
def test_taps_in_turn_are_taps_at_once(monkeypatch, starts):
    """Values, gradients, and derivatives of gradients, of a document that starts in the middle."""
    keys = jax.random.split(jax.random.key(0), 5)
    taps, x, recent, of_taps, of_x = (
        jax.random.normal(key, shape)
        for key, shape in zip(
            keys, ((4, 3), (2, 40, 3), (2, 3, 3), (4, 3), (2, 40, 3)), strict=True
        )
    )
    start = jnp.zeros((2, 40), bool).at[1, 17].set(True) if starts else None

    def total(taps, x):
        y, last = mixed(convolved(taps), x, recent, jnp.array([40, 30]), start)
        return jnp.sin(y).sum() + jnp.cos(last).sum(), (y, last)

    def found():
        slopes = jax.grad(total, (0, 1), has_aux=True)
        given = (taps, x), (of_taps, of_x)
        program = jax.jit(lambda *given: jax.jvp(slopes, *given, has_aux=True)).lower(*given)
        return program.compile()(*given), 'stablehlo.while' in program.as_text()

    in_turn, looped = found()
    monkeypatch.setattr(token_shift, 'IN_TURN', 41)
    at_once, unrolled = found()
    on_cpu = jax.default_backend() == 'cpu'
    assert looped - unrolled == on_cpu, 'taps are in a loop on CPUs alone, from IN_TURN tokens on'
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), in_turn, at_once)


@pytest.mark.parametrize('kind, tokens', [('last_four', 4), ('last_eight', 8)])
def test_the_last_tokens_give_the_same_channels(kind, tokens):
    run, x, start, _ = make(kind)
    y, last = run(x, start, [9, 9])
    before, width = jnp.pad(x, [(0, 0), (tokens - 1, 0), (0, 0)]), 16 // tokens
    for part in range(tokens):
        np.testing.assert_array_equal(
            y[..., width * part : width * (part + 1)], before[:, part : part + 9, 16 - width :]
        )
    np.testing.assert_array_equal(last, x[:, 1 - tokens :])
