"""Attention to a window of keys and values: reading in segments is reading the whole text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention import filled
from longmem_jax.generation.stream import open_stream, read_token
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from longmem_jax.segment import Segment
from tests.toys import OWN_CODE, VOCAB, model_config, parameters, run

LENGTH = 12
MEMORY_METHODS = ('initial_state', 'open_segment', 'extend', 'close_segment', '_read')


def config_of(window=LENGTH, **changes):
    config = model_config('full', layers=1, **changes)
    config.full.window = window
    return config


def read(config, params, tokens, length):
    """Logits of tokens [1, n], read in segments."""
    parts = tokens.reshape(-1, 1, length)
    begins = jnp.zeros(parts.shape[:2], bool)
    segments = Segment(parts, jnp.ones(parts.shape, bool), begins)
    return run(make_model(config, length), params, segments)[0].reshape(1, LENGTH, VOCAB)


def start(config):
    tokens = np.random.default_rng(0).integers(0, VOCAB, (1, LENGTH))
    model = make_model(config, 4)
    params = parameters(model, 0)
    return params, jnp.asarray(tokens, jnp.int32)


@pytest.mark.parametrize(
    'changes',
    [
        dict(window=5, num_kv_heads=1, head_norm='rmsnorm', parallel_residual=True),
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


def differing(one, other):
    """Names of the fields in which two records differ."""
    return {
        field.name
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    }


@pytest.mark.parametrize('name', sorted({*LAYERS} - {*OWN_CODE}))
def test_a_layer_that_is_another_has_no_code_of_its_own(name):
    """So the suites that run through the layers need not run it again."""
    entry = LAYERS[name]
    other = LAYERS[entry.same_as]
    assert entry.layer.module.__bases__ == (other.layer.module,) and not other.same_as
    for method in ('setup', '__call__', *MEMORY_METHODS):
        assert getattr(entry.layer.module, method) is getattr(other.layer.module, method)
    assert differing(entry, other) <= {'name', 'layer', 'variants', 'same_as', 'recipe'}
    assert differing(entry.layer, other.layer) <= {'module', 'context'}


def test_a_token_sees_its_window():
    config = config_of(window=3)
    params, tokens = start(config)
    other = tokens.at[0, 2].set((tokens[0, 2] + 1) % VOCAB)
    changed = read(config, params, tokens, 4) != read(config, params, other, 4)
    np.testing.assert_array_equal(
        changed.any(axis=-1)[0], [2 <= position < 5 for position in range(LENGTH)]
    )


def streamed(config, params, tokens, length):
    """Logits of tokens [1, n], read one by one."""
    model = make_model(config, length)

    def body(stream, token):
        logits, stream = read_token(model, params, token, stream)
        return stream, logits

    @jax.jit
    def read_all():
        state = model.apply({'params': params}, 1, method='initial_state')
        return jax.lax.scan(body, open_stream(model, params, state, 1), tokens.T)[1]

    return read_all().swapaxes(0, 1)


def test_a_cache_that_holds_the_text_is_enough():
    """Its length changes no number where nothing is dropped; with less, the rest is still seen."""
    config = config_of(window=1000)
    params, tokens = start(config)
    wanted = read(config, params, tokens, 4)
    config.cache_tokens = LENGTH - 4
    state = jax.eval_shape(
        lambda: make_model(config, 4).apply({'params': params}, 1, method='initial_state')
    )
    assert {leaf.shape[2] for leaf in jax.tree.leaves(state) if leaf.ndim == 4} == {LENGTH - 4}
    np.testing.assert_allclose(read(config, params, tokens, 4), wanted, atol=2e-5)
    np.testing.assert_allclose(streamed(config, params, tokens, 4), wanted, atol=2e-5)
    config.cache_tokens = 2
    other = tokens.at[0, 5].set((tokens[0, 5] + 1) % VOCAB)
    changed = read(config, params, tokens, 4) != read(config, params, other, 4)
    np.testing.assert_array_equal(changed.any(axis=-1)[0], [False] * 5 + [True] * 3 + [False] * 4)


def test_only_the_filled_part_of_a_cache_is_read(monkeypatch):
    """The rest may be anything; in training and under the microscope all of it is read."""
    monkeypatch.setattr(filled, 'BLOCK', 4)
    config = config_of(window=16)
    params, tokens = start(config)
    model = make_model(config, 4)
    wanted = read(config, params, tokens, 4)
    state = model.apply({'params': params}, 1, method='initial_state')
    never = jnp.nan  # an inner product with it, even one that is masked afterwards, gives itself
    state = jax.tree.map(lambda leaf: leaf + never if leaf.ndim == 4 else leaf, state)
    found = []
    for part in np.split(tokens, LENGTH // 4, axis=1):
        segment = Segment(part, jnp.ones(part.shape, bool), jnp.zeros((1,), bool))
        logits, state, _ = model.apply({'params': params}, segment, state, train=False)
        found.append(logits)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), wanted, atol=2e-5)
    logits, *_ = model.apply({'params': params}, segment, state, train=True)
    assert jnp.isnan(logits).all()


def test_a_cache_of_half_the_bytes():
    config = config_of()
    params, tokens = start(config)
    wanted = read(config, params, tokens, 4)
    config.cache_dtype = 'bfloat16'
    model = make_model(config, 4)
    state = model.apply({'params': params}, 1, method='initial_state')
    stream = open_stream(model, params, state, 1)
    held = {leaf.dtype.name for leaf in jax.tree.leaves(stream) if leaf.ndim == 4}
    assert held == {'bfloat16'}
    for found in (read(config, params, tokens, 4), streamed(config, params, tokens, 4)):
        assert 0 < np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_a_text_beyond_the_table_of_positions_is_read_in_windows():
    """Each begins at position 0 with an empty cache; what would not fit whole begins the next."""
    config = config_of(position='learned', num_positions=7)
    params, tokens = start(config)
    found = read(config, params, tokens, 3)
    config.num_positions = LENGTH  # the first positions are the same, and are enough for a window
    places = jnp.pad(params['embedding']['places'], [(0, LENGTH - 7), (0, 0)])
    longer = params | {'embedding': params['embedding'] | {'places': places}}
    for first in (0, 6):
        window = jnp.roll(tokens, -first, axis=1)
        wanted = read(config, longer, window, 3)[:, :6]
        np.testing.assert_allclose(found[:, first : first + 6], wanted, atol=2e-5)
    config.num_positions = 7
    np.testing.assert_allclose(streamed(config, params, tokens, 3), found, atol=2e-5)
