"""Options of the backbone that pretrained decoders need."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import registry, standalone
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.contract import Recipes
from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.stream import close_stream, open_stream
from longmem_jax.hosts import hosts
from longmem_jax.hosts.model_fields import model_of
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS
from longmem_jax.models.parameters import initial_parameters, unbox
from tests import toys
from tests.toys import apply, random_segments, run, toy, with_config


def parameters(**changes):
    model = with_config('local', **changes)
    return model, toys.parameters(model, 1)


def test_the_layers_of_a_parallel_block_read_the_same_input():
    """With the output projection of attention at zero, both forms are the same; otherwise not."""
    model, params = toy('local')
    parallel = with_config('local', parallel_residual=True)
    segments = random_segments(segments=1)
    (one, _), (other, _) = (run(which, params, segments) for which in (model, parallel))
    assert np.abs(np.asarray(one - other)).max() > 1e-3

    def without(path, leaf):
        return jnp.zeros_like(leaf) if 'out' in str(path) and 'attention' in str(path) else leaf

    silent = jax.tree_util.tree_map_with_path(without, params)
    (one, _), (other, _) = (run(which, silent, segments) for which in (model, parallel))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_logits_without_bias():
    model, params = parameters(output_bias=False)
    assert 'out_bias_0' not in params['embedding']
    _, biased = toy('local')
    segments = random_segments(segments=1)
    np.testing.assert_allclose(
        run(model, params, segments)[0], run(toy('local')[0], biased, segments)[0], atol=1e-6
    )


def test_norms_of_heads_bound_queries_and_keys():
    model, params = parameters(head_norm='rmsnorm')
    projections = params['block_0']['attention']['projections']
    assert projections['query']['norm']['scale'].shape == (8,)
    assert 'norm' not in projections['value']
    larger = jax.tree.map(lambda leaf: leaf, params)
    kernel = larger['block_0']['attention']['projections']['query']
    kernel['kernel'] = 100 * kernel['kernel']
    segments = random_segments(segments=1)
    np.testing.assert_allclose(
        run(model, params, segments)[0], run(model, larger, segments)[0], atol=1e-3
    )


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(head_norm='batch'), 'head_norm'),
        (dict(parallel_residual=True, pre_norm=False), 'needs pre_norm = True'),
        (dict(rotary_scaling='dynamic'), 'rotary_scaling'),
        (dict(rotary_scaling='yarn'), 'rotary_original = 0: must be at least 1'),
        (dict(rotary_scaling='llama3', rotary_original=9, rotary_bands=(4.0, 1.0)), 'two rising'),
        (dict(rotary_factor=0.5), 'rotary_factor = 0.5: must be at least 1'),
    ],
)
def test_problems(changes, message):
    config = base()
    config.model.transformer_xl.position = 'rotary'
    assert checks.find_problems(config, 1) == []
    config.model.update(changes)
    problems = checks.find_problems(config, 1)
    assert any(message in problem for problem in problems), problems


def test_problems_of_a_text_encoder_name_what_they_are_about():
    """Each stands behind the path of the section."""
    given = dict(
        model_type='bert', vocab_size=9, num_hidden_layers=1, hidden_size=8, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=6, type_vocab_size=2,
    )  # fmt: skip
    model = model_of(given, 'bert')
    assert KINDS['text_encoder'].check(model, 6) == []
    model.attention = ('infini',)
    found = KINDS['text_encoder'].check(model, 8)
    assert [problem.partition(':')[0] for problem in found] == ['encoder', 'encoder']
    assert "encoder: attends to whole texts; config.model.attention must be 'local'" in found[0]
    assert 'config.model.num_positions = 6 is less' in found[1]


def test_a_text_encoder_ignores_padding():
    given = dict(
        model_type='bert', vocab_size=9, num_hidden_layers=1, hidden_size=8, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=6, type_vocab_size=2,
    )  # fmt: skip
    encoder = hosts.make(model_of(given, 'bert'), 6)
    params = unbox(jax.jit(lambda: encoder.init(jax.random.key(0), method='initial'))()['params'])
    tokens, types = jnp.asarray([[1, 2, 3, 4]]), jnp.zeros((1, 4), jnp.int32)
    valid = jnp.asarray([[True, True, True, False]])
    hidden, pooled = apply(encoder, params, tokens, valid, types)
    other, other_pooled = apply(encoder, params, tokens.at[0, 3].set(7), valid, types)
    np.testing.assert_allclose(hidden[:, :3], other[:, :3], atol=1e-6)
    np.testing.assert_allclose(pooled, other_pooled, atol=1e-6)
    assert pooled.shape == (1, 8)
    of_other_type, _ = apply(encoder, params, tokens, valid, types.at[0, 1].set(1))
    assert np.abs(np.asarray(of_other_type - hidden)[:, :3]).max() > 1e-4


WINDOW = LAYERS['transformer_xl'].layer.module


def wrong(**methods):
    """A window of the last tokens with other methods."""
    return type('Wrong', (WINDOW,), {'__module__': __name__, **methods})


def read(change):
    """`__call__` that changes what it returns."""

    def call(self, x, state, segment, *, train):
        return change(*WINDOW.__call__(self, x, state, segment, train=train))

    return call


def extend(self, x, cache, index, count):
    """`extend` that forgets the cache."""
    return WINDOW.extend(self, x, cache, index, count)[0]


def close_segment(self, state, cache, count):
    """`close_segment` that keeps a slot too many."""
    new = WINDOW.close_segment(self, state, cache, count)
    return new.replace(hidden=jnp.pad(new.hidden, ((0, 0), (0, 1), (0, 0))))


def initial_state(self, batch_size):
    """A state without lanes."""
    return WINDOW.initial_state(self, batch_size).replace(count=jnp.zeros((), jnp.int32))


def every_way(model, params, segment):
    """Reads a segment whole, and as an open one."""
    state = fresh_state(model, params, 2)
    model.apply({'params': params}, segment, state, train=False)
    stream, counts = open_stream(model, params, state, 2), segment.num_valid
    given = (segment.tokens, stream.cache, 0, counts)
    _, cache = model.apply({'params': params}, *given, method='extend')
    return close_stream(model, params, stream.replace(cache=cache, index=counts))


@pytest.mark.parametrize(
    'methods, message',
    [
        (
            dict(__call__=read(lambda y, state, aux: (y, state))),
            r'Wrong.__call__: gave \(float32\[.*TransformerXLState\(.*return 3 things: y, the new state',
        ),
        (
            dict(__call__=read(lambda y, state, aux: (y[..., :4], state, aux))),
            r'__call__: gave float32\[1, 5, 4\] as y, what it read: must have .* \[1, 5, 16\]',
        ),
        (
            dict(__call__=read(lambda y, state, aux: (y, state, aux.metrics))),
            r"__call__: gave {'memory_size': float32\[\]} as its Aux: must be Aux\(losses={}, metr",
        ),
        (
            dict(
                __call__=read(
                    lambda y, state, aux: (y, state.replace(count=state.count * 1.0), aux)
                )
            ),
            r'new state.count is float32\[1\]: must be int32\[1\].* its dtype stays',
        ),
        (
            dict(extend=extend),
            r'Wrong.extend: gave float32\[2, 5, 16\]; return 2 things: y, the cache',
        ),
        (
            dict(close_segment=close_segment),
            r'close_segment: the new state.hidden is float32\[2, 7, 16\]: must be float32\[2, 6, 16\]',
        ),
        (
            dict(initial_state=initial_state),
            r'Wrong.initial_state: state.count is int32\[\]: must be an array .* here \[1, ...\]',
        ),
    ],
)
def test_what_a_layer_returns_is_checked_and_named(methods, message):
    """By a model, and by a layer by itself, which has no streams."""
    local = LAYERS['transformer_xl']
    layer = dataclasses.replace(local.layer, module=wrong(**methods))
    entry = dataclasses.replace(local, name='wrong', layer=layer, recipe=Recipes())
    registry.register('memory', 'wrong', entry)
    standalone._start.clear_cache()
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments(segments=1))
    try:
        model = with_config('wrong', layers=1)
        with pytest.raises(UsageError, match=message):
            params = jax.eval_shape(lambda: unbox(initial_parameters(model, jax.random.key(0))))
            jax.eval_shape(functools.partial(every_way, model), params, segment)
        if 'close_segment' in methods or 'extend' in methods:
            return
        layer = standalone.make_layer('wrong', d_model=16, num_heads=2, segment_length=5)
        with pytest.raises(UsageError, match=r'Wrong\.(__call__|initial_state): '):
            layer.init(jax.random.key(0), jnp.ones((2, 5, 16)), layer.start(batch_size=2))
    finally:
        registry.unregister('memory', 'wrong')
