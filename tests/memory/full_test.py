"""Attention to a window of keys and values: reading in segments is reading the whole text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment
from tests.toys import VOCAB, model_config

LENGTH = 12


def config_of(window=LENGTH, **changes):
    config = model_config('full', **changes)
    config.full.window = window
    return config


def read(config, params, tokens, length):
    """Logits of tokens [1, n], read in segments."""
    model = make_model(config, length)
    state, logits = model.apply({'params': params}, 1, method='initial_state'), []
    for start in range(0, tokens.shape[1], length):
        part = tokens[:, start : start + length]
        segment = Segment(part, jnp.ones(part.shape, bool), jnp.zeros((1,), bool))
        out, state, _ = model.apply({'params': params}, segment, state, train=False)
        logits.append(out)
    return jnp.concatenate(logits, axis=1)


def start(config):
    tokens = np.random.default_rng(0).integers(0, VOCAB, (1, LENGTH))
    params = unbox(initial_parameters(make_model(config, 4), jax.random.key(0)))
    return params, jnp.asarray(tokens, jnp.int32)


@pytest.mark.parametrize(
    'changes',
    [
        dict(window=5),
        dict(num_kv_heads=1, head_norm='rmsnorm', parallel_residual=True),
        dict(position='learned', num_positions=LENGTH, output_bias=False, tie_weights=False),
    ],
)
def test_segments_are_the_whole_text(changes):
    """Logits and gradients; also where positions are absolute, and where only a window is seen."""
    config = config_of(**changes)
    params, tokens = start(config)

    def loss(params, length):
        logits = read(config, params, tokens, length)
        return jnp.square(jax.nn.log_softmax(logits)).sum(), logits

    compiled = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    (whole, wanted), (parts, found) = (compiled(params, length) for length in (LENGTH, 4))
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(jnp.abs(theirs).max() + 1))


def test_a_token_sees_its_window():
    config = config_of(window=3, layers=1)
    params, tokens = start(config)
    other = tokens.at[0, 2].set((tokens[0, 2] + 1) % VOCAB)
    changed = read(config, params, tokens, 4) != read(config, params, other, 4)
    np.testing.assert_array_equal(
        changed.any(axis=-1)[0], [2 <= position < 5 for position in range(LENGTH)]
    )
