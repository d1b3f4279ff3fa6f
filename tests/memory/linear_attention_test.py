"""The linear kernel against plain loops, and layers that carry their sums through a document."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.layers import associative, feature_maps, linear_kernel
from tests.toys import random_segments, run, toy, with_config


def arrays(seed, number):
    random = np.random.default_rng(seed)
    shapes = [(2, 3, number, 4), (2, 3, number, 4), (2, 3, number, 5)]
    queries, keys, values = (jnp.asarray(random.random(shape), jnp.float32) for shape in shapes)
    decay = jnp.asarray(np.log(random.uniform(0.3, 1.0, (2, 3, number))), jnp.float32)
    return queries, keys, values, decay


def loop(pairs, queries, keys, values, decay):
    """Computes the sums token by token."""
    matrix, total = np.asarray(pairs.matrix, np.float64), np.asarray(pairs.normalizer, np.float64)
    read, weight = [], []
    for t in range(queries.shape[2]):
        kept = np.exp(decay[:, :, t]) if decay is not None else np.ones(queries.shape[:2])
        matrix = kept[..., None, None] * matrix + np.einsum(
            'bhd,bhm->bhdm', keys[:, :, t], values[:, :, t]
        )
        total = kept[..., None] * total + keys[:, :, t]
        read.append(np.einsum('bhd,bhdm->bhm', queries[:, :, t], matrix))
        weight.append(np.einsum('bhd,bhd->bh', queries[:, :, t], total))
    return matrix, total, np.stack(read, 2), np.stack(weight, 2)


@given(st.integers(1, 13), st.integers(1, 16), st.booleans(), st.integers(0, 3))
def test_chunks_are_a_loop_over_tokens(number, chunk, decays, seed):
    queries, keys, values, decay = arrays(seed, number)
    decay = decay if decays else None
    begin = arrays(seed + 10, 1)
    pairs = associative.write(
        associative.empty(2, 3, 4, 5), begin[1], begin[2], 'linear', 'none', 'clamp', 1.0
    )
    wanted = loop(
        pairs, *(None if a is None else np.asarray(a) for a in (queries, keys, values, decay))
    )
    # Compiled whole: operation by operation every shape would leave dozens of programs behind.
    causal = jax.jit(functools.partial(linear_kernel.causal, chunk=chunk))
    after, read, weight = causal(pairs, queries, keys, values, log_decay=decay)
    for ours, reference in zip((after.matrix, after.normalizer, read, weight), wanted, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=1e-5)


def test_gradients_do_not_depend_on_chunks():
    queries, keys, values, decay = arrays(0, 12)

    def loss(keys, decay, chunk):
        _, read, weight = linear_kernel.causal(
            associative.empty(2, 3, 4, 5), queries, keys, values, chunk=chunk, log_decay=decay
        )
        return jnp.sin(read / (weight[..., None] + 1)).sum()

    whole, parts = (jax.grad(loss, (0, 1))(keys, decay, chunk) for chunk in (12, 5))
    for ours, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-5)


@pytest.mark.parametrize('name', ['linear', 'memsizer'])
def test_carried_sums_make_segments_one_sequence(name):
    model, params = toy(name)
    segments = random_segments(segments=4)
    logits, _ = run(model, params, segments)
    whole = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(1, leaf.shape[1], -1), segments
    ).replace(start=segments.start[:1])
    longer, _ = run(model.clone(segment_length=whole.tokens.shape[2]), params, whole)
    longer = longer.reshape(2, 4, -1, longer.shape[-1]).swapaxes(0, 1)
    np.testing.assert_allclose(logits, longer, atol=2e-5)
    apart = dict(model.config[name].to_dict(), carry=False)
    apart, _ = run(with_config(name, **{name: apart}), params, segments)
    np.testing.assert_allclose(apart[0], logits[0], atol=1e-5)
    assert np.abs(apart[1:] - logits[1:]).max() > 1e-3


def test_random_features_approximate_the_gaussian_kernel():
    random = np.random.default_rng(0)
    x = random.normal(size=(1, 1, 20, 8))
    x = jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), jnp.float32)
    wanted = np.exp(-np.square(np.asarray(x)[0, 0, :, None] - np.asarray(x)[0, 0]).sum(-1) / 2)
    for kind in feature_maps.RANDOM:
        matrices = jnp.asarray(feature_maps.random_matrices(0, 1, 4096, 8, kind))
        features = feature_maps.random_fourier(x, matrices, 1.0)[0, 0] / 0.1
        found = features @ features.T / 4096
        assert np.abs(found - wanted).max() < 0.06


def test_new_directions_in_every_step_only_where_asked():
    own = dict(toy('linear:rfa_gate')[0].config.linear.to_dict(), redraw=True, carry=False)
    model, params = with_config('linear:rfa_gate', linear=own), toy('linear:rfa_gate')[1]
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = model.apply({'params': params}, 2, method='initial_state')

    def logits(seed, train):
        rngs = {'memory': jax.random.key(seed)}
        return model.apply({'params': params}, segment, state, train=train, rngs=rngs)[0]

    assert np.abs(logits(0, True) - logits(1, True)).max() > 1e-4
    np.testing.assert_array_equal(logits(0, False), logits(1, False))
