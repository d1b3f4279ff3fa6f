"""Sums that fade: strong decays, far positions, fields that are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from longmem_jax.author.chunks import read_tokens
from longmem_jax.errors import UsageError
from longmem_jax.layers.sight import sight
from longmem_jax.memory.decayed import recurrence, retnet

LENGTH, WIDTH = 7, 4


def given(strength, by_channel):
    """Queries, keys, values of one lane and head, and decays that grow from token to token."""
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (1, 1, LENGTH, WIDTH)) for key in keys[:3]]
    shape = (1, 1, LENGTH, WIDTH) if by_channel else (1, 1, LENGTH)
    strengths = jnp.logspace(-3, np.log10(strength), LENGTH).reshape(-1, *[1] * by_channel)
    return *arrays, -strengths * jax.random.uniform(keys[3], shape, minval=0.5)


@functools.partial(jax.jit, static_argnums=(1,))
def read(inputs, by_steps):
    """State, reads, and gradients of the inputs."""
    valid, S = jnp.ones((1, LENGTH), bool), jnp.ones((1, 1, WIDTH, WIDTH))

    def loss(inputs):
        chunked = (None, None) if by_steps else (recurrence.chunked, recurrence.within)
        found = read_tokens(
            recurrence.step, chunked[0], S[0, 0], S, inputs, valid, None, LENGTH, within=chunked[1]
        )
        return sum((leaf * leaf).sum() for leaf in found), found

    slopes, found = jax.grad(loss, has_aux=True)(inputs)
    return found, slopes


def at_once(S, *inputs):
    seen = sight(LENGTH, None)
    return recurrence.chunked(S, seen, *recurrence.within(seen, *inputs))


@pytest.mark.parametrize('by_channel', [False, True], ids=['by head', 'by channel'])
@pytest.mark.parametrize('strength', [1.0, 1e4])
def test_decays_may_be_strong(strength, by_channel):
    """A chunk is its steps where a decay leaves less than the smallest float32."""
    inputs = given(strength, by_channel)
    wanted = read(inputs, True)
    found = read(inputs, False)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        largest = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize('by_channel', [False, True], ids=['by head', 'by channel'])
def test_no_share_is_above_one(by_channel):
    """Every exponential of a chunk, when it is computed, is at most 1."""
    inputs = [array[0, 0] for array in given(100.0, by_channel)]
    S = jnp.ones((WIDTH, WIDTH))
    largest = []
    with pytest.MonkeyPatch.context() as patch:
        plain = jnp.exp

        def exp(x):
            largest.append(float(x.max()))
            return plain(x)

        patch.setattr(jnp, 'exp', exp)
        at_once(S, *inputs)
    assert largest and max(largest) <= 0, 'an exponential of a positive number overflows in float32'


def test_positions_turn_as_far_from_the_begin_as_near_it():
    """Of float32, a position of 10^9 has no digit left for an angle."""
    x = np.asarray(jax.random.normal(jax.random.key(0), (1, 2, 8)), np.float64)
    positions = np.asarray([3, 10**9 + 7])
    turns = np.exp(1j * positions[:, None] * retnet.frequencies(8))
    wanted = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
    found = jax.jit(retnet.rotated)(jnp.asarray(x, jnp.float32), jnp.asarray(positions, jnp.int32))
    np.testing.assert_allclose(found[..., 0::2], wanted.real, atol=5e-4)
    np.testing.assert_allclose(found[..., 1::2], wanted.imag, atol=5e-4)


@pytest.mark.parametrize(
    'name, fields, said',
    [
        ('RetNet', dict(key_dim=5), 'key_dim: must be even, not 5'),
        ('RetNet', dict(decay='slow'), "decay = 'slow'"),
        (
            'GatedLinearAttention',
            dict(least_kept=1.0),
            'least_kept = 1.0: must lie between 0 and 1, excluding 1',
        ),
        ('GatedLinearAttention', dict(tied=True, gate='head'), "use gate='channel', not 'head'"),
        ('Mamba2', dict(groups=3), 'groups = 3: must divide num_heads = 2'),
        ('Mamba2', dict(num_kv_heads=1), 'num_kv_heads = 0, not 1'),
        ('Mamba2', dict(shortest=0.2, longest=0.1), 'longest = 0.1: must be at least'),
        ('Mamba2', dict(first_steps=(0.1, 0.01)), 'first_steps = (0.1, 0.01): must be two numbers'),
    ],
)
def test_fields_that_cannot_be_are_refused(name, fields, said):
    with pytest.raises(UsageError) as error:
        getattr(longmem_jax, name)(d_model=16, num_heads=2, segment_length=8, **fields)
    assert said in str(error.value)


def test_initial_time_steps_and_rates_are_in_their_ranges():
    layer = longmem_jax.Mamba2(
        d_model=16, num_heads=8, segment_length=4, first_steps=(0.2, 0.3), first_rates=(2.0, 3.0)
    )
    x, state = jnp.zeros((1, 4, 16)), layer.start(1)
    params = jax.jit(layer.init)(jax.random.key(0), x, state)['params']['inner']
    steps, rates = jax.nn.softplus(params['step_bias']), jnp.exp(params['log_rate'])
    assert (0.2 <= steps + 1e-6).all() and (steps <= 0.3 + 1e-6).all()
    assert (2 <= rates + 1e-6).all() and (rates <= 3 + 1e-6).all()


def test_the_gate_of_mamba2_may_be_left_out():
    """A gate that is one number everywhere is undone by the norm: reads are those without it."""
    x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype(np.float32)
    sizes = dict(d_model=8, num_heads=2, state_size=4, segment_length=4, bias=True, epsilon=1e-12)
    gated, plain = (longmem_jax.Mamba2(**sizes, output_gate=given) for given in (True, False))
    state = gated.start(1)
    variables = jax.jit(gated.init)(jax.random.key(0), x, state)
    without = jax.tree.map(lambda leaf: leaf, variables)
    gate = without['params']['inner'].pop('gate')
    opened = {'kernel': jnp.zeros_like(gate['kernel']), 'bias': jnp.full_like(gate['bias'], 3.0)}
    same = {'params': {'inner': without['params']['inner'] | {'gate': opened}}}
    read = jax.jit(plain.apply)(without, x, state)[0]
    np.testing.assert_allclose(read, jax.jit(gated.apply)(same, x, state)[0], atol=1e-5)
    assert not np.allclose(read, jax.jit(gated.apply)(variables, x, state)[0], atol=1e-2)
