"""Memories after long streams, in bfloat16 models, against a float64 reference of their equations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.memory.infini import InfiniAttention
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.layer import InfinityFormer
from longmem_jax.models.parameters import unbox
from longmem_jax.segment import Segment, read_segments
from tests.campaigns.long_streams import compare, table

WIDTH, HEADS = 16, 2


def settings(length):
    return ModelSettings(
        d_model=WIDTH,
        num_heads=HEADS,
        head_dim=WIDTH // HEADS,
        d_feed_forward=WIDTH,
        num_layers=1,
        segment_length=length,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.3,
        dtype=jnp.dtype('bfloat16'),
    )


def inputs(number, length):
    """[segments, 1, length, WIDTH] bfloat16, the sum of a constant and noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(number, 1, length, WIDTH)) + random.normal(size=(WIDTH,))
    return jnp.asarray(x, jnp.bfloat16)


def stream(layer, x):
    """Reads all segments in one compiled scan: parameters, the last outputs, and the last state."""
    valid = jnp.ones((1, x.shape[2]), bool)
    segment = Segment(jnp.zeros(valid.shape, jnp.int32), valid, jnp.zeros((1,), bool))

    def both(module, x):
        return module(x, module.initial_state(1), segment, train=False)

    params = unbox(jax.jit(lambda: layer.init(jax.random.key(0), x[0], method=both))())

    def read(state, x, key):
        y, state, _ = layer.apply(params, x, state, segment, train=False)
        return state, y[:, -1]

    @jax.jit
    def run_all():
        return read_segments(
            read, layer.apply(params, 1, method='initial_state'), x, jax.random.key(0)
        )

    state, outputs = run_all()
    return params, np.asarray(outputs[-1], np.float64), state


def relative(found, wanted):
    return np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize('rule', [pytest.param('linear', marks=pytest.mark.slow), 'delta'])
def test_infini_after_a_long_stream(rule):
    """20,000 tokens: sums in bfloat16 would have stopped growing after some hundreds."""
    layer = InfiniAttention(settings(10), identity, None, rule=rule)
    x = inputs(2000, 10)
    params, outputs, state = stream(layer, x)
    project = jax.jit(
        lambda: layer.apply(
            params, x[:, 0], method=lambda m, x: (m.projections.keys(x), m.projections.values(x))
        )
    )
    keys, values = (np.asarray(array, np.float64) for array in project())
    matrix, total = np.zeros((HEADS, 8, 8)), np.zeros((HEADS, 8))
    for segment_keys, segment_values in zip(keys, values, strict=True):
        features = np.where(segment_keys > 0, segment_keys + 1, np.exp(segment_keys))
        if rule == 'delta':
            weight = np.maximum(np.einsum('hnk,hk->hn', features, total), 1e-6)
            found = np.einsum('hnk,hkv->hnv', features, matrix) / weight[..., None]
            segment_values = segment_values - found
        matrix += np.einsum('hnk,hnv->hkv', features, segment_values)
        total += features.sum(axis=1)
    assert state.pairs.matrix.dtype == state.pairs.normalizer.dtype == jnp.float32
    assert relative(state.pairs.normalizer[0], total) < 2e-5
    assert relative(state.pairs.matrix[0], matrix) < 2e-5
    assert np.isfinite(outputs).all() and outputs.any()


@pytest.mark.slow
def test_continuous_memory_after_a_long_stream():
    """The sizes of the paper's WikiText-103: 22,500 tokens, 148 updates."""
    length, samples, tau, ridge, count, widths = 150, 512, 0.5, 0.5, 150, (0.01, 0.05)
    layer = InfinityFormer(
        settings(length), identity, None, memory_length=0, position='none', kl='none'
    )
    x = inputs(150, length)
    params, outputs, state = stream(layer, x)
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params['params']['memory'])
    first, update = continuous.fit_matrices(length, samples, tau, ridge, count, widths)
    places = np.arange(1, samples + 1) / samples
    basis = continuous.psi64(places, *continuous.gaussian_basis(count, widths))
    coefficients = None
    for vectors in np.asarray(x[:-1, 0], np.float64):  # what the last segment reads
        padded = np.pad(vectors, [(1, 1), (0, 0)])
        mixed = sum(padded[i : i + length] @ own['gate_kernel'][i] for i in range(3))
        gated = vectors / (1 + np.exp(-mixed - own['gate_bias']))
        if coefficients is None:
            coefficients = first.T @ gated
        else:
            coefficients = update.T @ np.concatenate([basis @ coefficients, gated])
    assert state.long.coefficients.dtype == jnp.float32
    assert int(state.long.stored[0]) == 149 * length
    assert relative(state.long.coefficients[0], coefficients) < 2e-5
    assert np.isfinite(outputs).all() and outputs.any()


@pytest.mark.slow
def test_errors_of_a_document_do_not_add_up():
    """6,400 tokens of what `tests.campaigns.long_streams` does with a million, and its table."""
    row = compare('infini', 6400)
    assert row.finite and row.tokens == 6400
    assert row.largest[3] > 30 * row.largest[0]  # sums of all tokens
    assert max(row.single) < 2e-6 and max(row.fresh, row.after) < 5e-6
    assert row.half[1] < 1.5 * row.half[0] < 0.05
    assert table([row]).count('\n') == 3 and '| `infini` |' in table([row])
    assert '|  | ' in table([dataclasses.replace(row, single=None)]), 'float64 was left out'
