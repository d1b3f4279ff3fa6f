"""Delta rules: scores that fade by channel, chunks under strong decays, eigenvalues below 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from longmem_jax.errors import UsageError
from longmem_jax.layers import delta_rule
from longmem_jax.layers.decayed_scores import decayed_scores
from longmem_jax.layers.sight import sight

RANDOM = np.random.default_rng(0)


def tokens(n, slowest, fastest, width=6, channels=True):
    """q, k, v, b and log decays between two bounds for n tokens."""
    q, k, v = (RANDOM.normal(size=(n, width)).astype(np.float32) for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    b = RANDOM.uniform(0, 1, n).astype(np.float32)
    shape = (n, width) if channels else (n,)
    return q, k, v, b, RANDOM.uniform(fastest, slowest, shape).astype(np.float32)


@pytest.mark.parametrize('n', [1, 3, 6, 16])
def test_scores_that_fade_by_channel_are_their_formula(n):
    rows, columns, _, _, log_a = tokens(n, -0.1, -2.0)
    total = np.cumsum(log_a, axis=0)
    fades = np.exp(total[:, None] - total[None])  # small enough not to overflow
    wanted = np.tril((rows[:, None] * columns[None] * fades).sum(-1))
    found = jax.jit(decayed_scores)((rows,), columns, total)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def by_steps(S, *inputs):
    return jax.lax.scan(lambda S, token: delta_rule.step(S, *token), S, inputs)


def at_once(S, sight, *inputs):
    return delta_rule.chunked(S, sight, *delta_rule.within(sight, *inputs))


@pytest.mark.parametrize('channels', [False, True])
def test_chunks_are_steps_when_all_is_forgotten_at_once(channels):
    """A share of e^-300 is 0 in float32: its inverse, and 0 times infinity, must not appear."""
    inputs = tokens(9, 0.0, -300.0, channels=channels)
    S = RANDOM.normal(size=(6, 6)).astype(np.float32)

    def total(read):
        def weighed(S, inputs):
            found = read(S, *inputs)
            return sum((leaf * jnp.cos(leaf)).sum() for leaf in found), found

        return jax.jit(jax.value_and_grad(weighed, (0, 1), has_aux=True))(S, inputs)

    (_, found), slopes = total(lambda S, *inputs: at_once(S, sight(9, None), *inputs))
    (_, wanted), true_slopes = total(by_steps)
    for ours, right in zip(
        jax.tree.leaves((found, slopes)), jax.tree.leaves((wanted, true_slopes)), strict=True
    ):
        np.testing.assert_allclose(ours, right, atol=2e-5)


@pytest.mark.parametrize('shape', [(), (6,)])
def test_a_gate_that_keeps_all_is_no_gate(shape):
    q, k, v, b, _ = tokens(5, 0.0, 0.0)
    S = RANDOM.normal(size=(6, 6)).astype(np.float32)
    read = jax.jit(lambda *inputs: at_once(S, sight(5, None), *inputs))
    wanted = read(q, k, v, b)
    for ours, right in zip(
        read(q, k, v, b, np.zeros((5, *shape), np.float32)), wanted, strict=True
    ):
        np.testing.assert_allclose(ours, right, atol=1e-6)


def test_a_token_can_turn_what_is_stored():
    """With b = 2 the eigenvalue along the key is -1: two such tokens leave the memory as it was."""
    k = jnp.asarray([0.6, 0.8], jnp.float32)
    S = jnp.outer(k, jnp.asarray([1.0, 2.0, 3.0]))
    turned, _ = delta_rule.step(S, k, k, jnp.zeros(3), jnp.asarray(2.0))
    np.testing.assert_allclose(turned, -S, atol=1e-6)


SIZES = dict(d_model=8, num_heads=2, segment_length=4, init_std=0.2)


def test_negative_eigenvalues_double_the_strength_of_writes():
    x, strengths = RANDOM.normal(size=(1, 4, 8)).astype(np.float32), []
    for negative in (False, True):
        layer = longmem_jax.DeltaNet(**SIZES, gate='none', negative_eigenvalues=negative)
        state = layer.start(1)
        variables = jax.jit(layer.init)(jax.random.key(0), x, state)
        _, _, aux = jax.jit(layer.apply)(variables, x, state)
        strengths.append(float(aux.metrics['write_strength']))
    assert strengths[1] == pytest.approx(2 * strengths[0])


@pytest.mark.parametrize(
    'fields, said',
    [
        (dict(convolution=1), 'convolution = 1: sees the token alone'),
        (dict(first_rates=(16.0, 1.0)), 'first_rates = .16.0, 1.0.: must be two numbers above 0'),
        (dict(first_rates=None), 'first_rates = None: must be two numbers above 0'),
        (dict(first_rates=(1.0, 2.0, 3.0)), 'must be two numbers above 0'),
        (dict(first_rates=(1.0, float('inf'))), 'must be two numbers above 0'),
        (dict(first_rates=(1.0, 2.0), gate='none'), 'nothing fades with gate'),
        (dict(gate='row'), 'gate'),
        (dict(key_heads=3), 'key_heads = 3: must divide num_heads = 2'),
    ],
)
def test_fields_that_cannot_be(fields, said):
    with pytest.raises(UsageError, match=said):
        longmem_jax.DeltaNet(**SIZES, **fields)
