"""Associative memory and Infini-attention: recall, repeated updates, precision, gates."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import make_layer
from longmem_jax.contract import identity
from longmem_jax.errors import UsageError
from longmem_jax.layers import associative
from longmem_jax.memory.infini import InfiniAttention
from longmem_jax.models.parameters import unbox
from longmem_jax.models.stack import make_settings
from tests.processes import environment
from tests.toys import LENGTH, model_config, random_segments, run, toy, with_config

READING = ('sum', 'clamp', 1e-6)
SIGNED = ('none', 'clamp', 1e-6)


def pairs_of(seed, number, width):
    random = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(random.normal(size=(1, 1, number, width)), jnp.float32)  # noqa: E731
    return draw(), draw()


def test_one_pair_is_read_back():
    keys, values = pairs_of(0, 1, 8)
    for name, (feature, positive) in associative.FEATURES.items():
        reading = READING if positive else SIGNED
        pairs = associative.empty(1, 1, 8, 8)
        for rule in ('linear', 'delta'):
            written = associative.write(pairs, feature(keys), values, rule, *reading)
            found = associative.read(written, feature(keys), *reading)
            np.testing.assert_allclose(found, values, atol=1e-3, err_msg=name)
        assert not associative.read(pairs, feature(keys), *reading).any()


def test_a_pair_written_twice():
    """Linear reads it back, delta with the sum reads half, delta with unit keys reads all of it."""
    keys, values = pairs_of(1, 1, 8)

    def twice(rule, feature, reading):
        pairs = associative.empty(1, 1, 8, 8)
        for _ in range(2):
            pairs = associative.write(pairs, feature(keys), values, rule, *reading)
        return associative.read(pairs, feature(keys), *reading)

    elu, normalized = (associative.FEATURES[name][0] for name in ('elu', 'normalized'))
    np.testing.assert_allclose(twice('linear', elu, READING), values, atol=1e-4)
    np.testing.assert_allclose(twice('delta', elu, READING), values / 2, atol=1e-4)
    np.testing.assert_allclose(twice('delta', normalized, SIGNED), values, atol=1e-4)


def test_sequential_delta_is_token_after_token():
    write = jax.jit(associative.write, static_argnums=(3, 4, 5, 6))
    keys, values = pairs_of(2, 12, 8)
    features = associative.FEATURES['normalized'][0](keys)
    before = write(associative.empty(1, 1, 8, 8), features[:, :, ::-1], values, 'linear', *SIGNED)
    at_once = write(before, features, values, 'delta_sequential', *SIGNED)
    one = before
    for t in range(12):
        part = slice(t, t + 1)
        one = write(one, features[:, :, part], values[:, :, part], 'delta', *SIGNED)
    np.testing.assert_allclose(at_once.matrix, one.matrix, atol=1e-4)
    np.testing.assert_allclose(at_once.normalizer, one.normalizer, atol=1e-4)


def test_memory_is_float32_in_a_bfloat16_model():
    model = with_config('infini', dtype='bfloat16')
    state = model.apply({'params': toy('infini')[1]}, 2, method='initial_state')
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {
        jnp.dtype('float32'),
        jnp.dtype('int32'),
    }


@pytest.mark.parametrize('rule', ['linear', 'delta'])
def test_long_streams_stay_finite(rule):
    model, params = toy('infini')
    model = with_config('infini', infini=dict(model.config.infini.to_dict(), rule=rule))
    logits, states = run(model, params, random_segments(segments=2000))
    assert np.isfinite(logits).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states))


@pytest.mark.parametrize(
    'changes',
    [
        dict(rule='delta', normalizer='none'),
        dict(rule='delta', normalizer='none', features='normalized'),
        dict(rule='delta_sequential', normalizer='none'),
    ],
)
def test_rules_whose_matrix_grows_without_end_are_refused(changes):
    with pytest.raises(UsageError, match='overshoot'):
        make_layer('infini', d_model=8, num_heads=2, segment_length=4, **changes)


def test_first_gates_are_constant_or_drawn():
    settings = make_settings(model_config('infini', num_heads=512), LENGTH)

    def betas(**changes):
        layer = InfiniAttention(settings, identity, None, **changes)
        params = unbox(layer.init(jax.random.key(0), method=lambda layer: layer.gate))
        return np.asarray(params['params']['gate'])

    assert np.all(betas(gate_init=0.5) == 0.5)
    drawn = betas(gate_init=0.5, gate_std=2.0)
    assert abs(drawn.mean() - 0.5) < 0.3 and abs(drawn.std() - 2.0) < 0.3


TRAINING = """
import jax, jax.numpy as jnp
from longmem_jax.models.kinds import make_model
from longmem_jax.segment import read_segments
from tests.toys import model_config, parameters, random_segments

sizes = dict(num_heads=4, head_dim=32, d_model=128)
model = make_model(model_config('infini:sequential', **sizes), 32)
segments = random_segments(batch=16, length=32)

def loss(params):
    def read(state, segment, key):
        logits, state, _ = model.apply({'params': params}, segment, state, train=False)
        return state, jnp.square(jax.nn.log_softmax(logits)).mean()

    state = model.apply({'params': params}, 16, method='initial_state')
    return read_segments(read, state, segments, jax.random.key(0))[1].mean()

params, gradient = parameters(model), jax.jit(jax.grad(loss))
for _ in range(20):
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient(params))
jax.block_until_ready(params)
"""


@pytest.mark.slow
def test_two_threads_train_the_sequential_delta_rule_to_the_end():
    """Two LAPACK solves at once, on two cores, waited for each other without end."""
    variables = environment() | {'XLA_FLAGS': '', 'NPROC': '2'}
    subprocess.run([sys.executable, '-c', TRAINING], env=variables, timeout=600, check=True)
