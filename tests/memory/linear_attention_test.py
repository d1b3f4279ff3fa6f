"""Layers that carry their sums through a document, and the features of linear attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from configs.memsizer_wikitext103 import get_config
from longmem_jax.errors import UsageError
from longmem_jax.layers import feature_maps
from longmem_jax.training.optimizer import parameter_groups, parameter_path
from longmem_jax.training.warm_start import warm_start
from tests.toys import parameters, random_segments, run, toy, with_config


@pytest.mark.parametrize('name', ['linear', pytest.param('memsizer', marks=pytest.mark.slow)])
def test_carried_sums_make_segments_one_sequence(name):
    model, params = toy(name, layers=1)
    segments = random_segments(segments=4)
    logits, _ = run(model, params, segments)
    whole = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(1, leaf.shape[1], -1), segments
    ).replace(start=segments.start[:1])
    longer, _ = run(model.clone(segment_length=whole.tokens.shape[2]), params, whole)
    longer = longer.reshape(2, 4, -1, longer.shape[-1]).swapaxes(0, 1)
    np.testing.assert_allclose(logits, longer, atol=2e-5)
    apart = dict(model.config[name].to_dict(), carry=False)
    apart, _ = run(with_config(name, layers=1, **{name: apart}), params, segments)
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


def redrawn(**changes):
    """A toy of RFA that draws directions in training, and its parameters."""
    own = dict(toy('linear:rfa_redraw')[0].config.linear.to_dict()) | changes
    return with_config('linear:rfa_redraw', linear=own), toy('linear:rfa_redraw')[1]


@pytest.mark.slow
def test_new_directions_in_every_step_only_where_asked():
    model, params = redrawn()
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = model.apply({'params': params}, 2, method='initial_state')

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def logits(seed, train, model=model):
        rngs = {'memory': jax.random.key(seed)}
        return model.apply({'params': params}, segment, state, train=train, rngs=rngs)[0]

    assert np.abs(logits(0, True) - logits(1, True)).max() > 1e-4
    np.testing.assert_array_equal(logits(0, False), logits(1, False))
    kept, _ = redrawn(redraw=False)
    np.testing.assert_array_equal(logits(0, True, kept), logits(1, True, kept))


def drawn_directions(random, size=6):
    """Directions of the two layers of a toy in one training step, [heads, size, head_dim] each."""
    model, params = redrawn(random=random, size=size)

    def draw(model):
        return [block.attention.feature_map.draw(True) for block in model.stack.blocks]

    rngs = {'memory': jax.random.key(0)}
    return model.apply({'params': params}, method=draw, rngs=rngs)


def test_every_layer_draws_its_own_directions():
    first, second = drawn_directions('normal')
    assert first.shape == (2, 6, 8) and np.abs(first - second).max() > 0.1
    assert np.abs(first[0] - first[1]).max() > 0.1


def test_drawn_directions_are_orthogonal_where_asked():
    for random, largest in (('orthogonal', 1e-5), ('normal', None)):
        for directions in drawn_directions(random, size=12):
            unit = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
            block = np.abs(np.einsum('hid,hjd->hij', unit[:, :8], unit[:, :8]) - np.eye(8)).max()
            assert block < largest if largest else block > 0.1
    lengths = np.linalg.norm(
        feature_maps.draw_matrices(jax.random.key(0), (4, 4096, 8), 'orthogonal'), axis=-1
    )
    np.testing.assert_allclose(np.square(lengths).mean(), 8, rtol=0.03)  # chi-square, 8 degrees
    np.testing.assert_allclose(np.square(lengths).var(), 16, rtol=0.1)


def gated(**fields):
    """RFA-Gate as a layer, with the paper's number of directions."""
    sizes = dict(d_model=16, num_heads=2, segment_length=16, size=64)
    return longmem_jax.LinearAttention(features='rfa', gate=True, init_std=0.3, **sizes, **fields)


def test_the_gate_is_normalised():
    """A read is a weighted mean: values that are all equal are read as they are, at every token."""
    layer = gated(guard='magnitude', epsilon=1e-4)
    x, state = jax.random.normal(jax.random.key(0), (1, 16, 16)), layer.start(1)
    params = jax.jit(layer.init)(jax.random.key(1), x, state)['params']
    maps = params['inner']['projections']
    maps['value'] = {'kernel': jnp.zeros((16, 2, 8)), 'bias': jnp.ones((2, 8))}
    maps['out'] = {'kernel': jnp.eye(16).reshape(2, 8, 16), 'bias': jnp.zeros((16,))}
    y, _, _ = jax.jit(layer.apply)({'params': params}, x, state)
    np.testing.assert_allclose(y, 1.0, atol=1e-4)


def test_a_guard_that_always_acts_is_refused():
    with pytest.raises(UsageError, match='the guard would always act'):
        gated(guard='clamp', epsilon=1.0)


def test_a_softmax_model_becomes_t2r():
    """Its projections are taken over, with biases or without, and only the feature map is new."""
    for attention_bias, bias in (('all', True), ('none', False)):
        common = dict(attention_bias=attention_bias, position='sinusoidal')
        softmax = with_config('local', **common, local=dict(position='none'))
        segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
        params = parameters(softmax)

        @jax.jit
        def step(params, softmax=softmax, segment=segment):
            def loss(params):
                state = softmax.apply({'params': params}, 2, method='initial_state')
                given = (segment, jnp.roll(segment.tokens, -1, 1), state)
                scores, _, _ = softmax.apply({'params': params}, *given, train=False, method='nll')
                return scores.nll.mean()

            return jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(loss)(params))

        trained = step(step(params))
        own = dict(toy('linear:t2r')[0].config.linear.to_dict(), bias=bias)
        t2r = with_config('linear:t2r', **common, linear=own)
        said = []
        grafted = warm_start(parameters(t2r, 7), trained, 'RUN', said.append)
        for block in ('block_0', 'block_1'):
            ours, theirs = (tree[block]['attention'] for tree in (grafted, trained))
            jax.tree.map(np.testing.assert_array_equal, ours['projections'], theirs['projections'])
            assert set(ours) == {'projections', 'feature_map'}
        new = said[0].partition('new: ')[2].rstrip('.').split(', ')
        assert len(new) == 3 and all(
            name.startswith('block_0,1/attention/feature_map/') for name in new
        )
        groups = parameter_groups(get_config('memory=t2r,convert=RUN').optimizer.groups, grafted)
        named = jax.tree_util.tree_leaves_with_path(groups)
        learned = {parameter_path(path) for path, group in named if group == 0}
        assert {path.split('/')[2] for path in learned} == {'projections', 'feature_map'}
        assert not any('/out/' in path for path in learned)
        assert len(learned) == 2 * (3 + 3 + 3 * bias)
