"""The shared model settings have an effect in every attention layer."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from longmem_jax.generation.stream import open_stream, read_token
from longmem_jax.layers import low_rank
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.memory.registry import ATTENTION
from longmem_jax.models.parameters import abstract_parameters, initial_parameters, unbox
from longmem_jax.models.stack import make_settings
from longmem_jax.training.optimizer import parameter_path
from tests import toys
from tests.toys import BATCH, LENGTH, OWN_CODE, model_config, random_segments, run, with_config

# Layers in which scores are linear in the queries, so that a factor may stand in either; the others
# read a memory with features or densities of queries, normalise them, or add biases to them.
VARIANTS = ('compressive:sliding', 'compressive:most_used', 'memory_tokens:recurrent')
LINEAR_IN_QUERIES = ('local', 'adaptive_span', 'expire_span', *VARIANTS)
OWN = {*ATTENTION} & {*OWN_CODE}
# Attention in the blocks of memory tokens is tested with them.
GROUPED = [*sorted({*OWN} - {'memsizer', 'mamba2', 'mem_transformer'}), 'memory_tokens', *VARIANTS]


def parameters(model):
    return toys.parameters(model, 1)


def changed(params, change):
    """Parameters with every leaf replaced by `change(path, leaf)`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: change(parameter_path(path), leaf), params
    )


def paths(model):
    shapes = abstract_parameters(model)
    flat, _ = jax.tree_util.tree_flatten_with_path(unbox(shapes))
    return {parameter_path(path): leaf.shape for path, leaf in flat}


@pytest.mark.slow
@pytest.mark.parametrize('name', GROUPED)
def test_shared_heads_are_repeated_heads(name):
    """One key and value head for two query heads equals two identical heads, whole and streamed."""
    scaled = name in LINEAR_IN_QUERIES
    model = with_config(name, layers=1, num_kv_heads=1, scale_scores=not scaled)
    params = parameters(model)

    def repeat(path, leaf):
        of_one_head = 'convol' in path and leaf.shape[1] == 1
        if path.endswith(('projections/key/kernel', 'projections/value/kernel')) or of_one_head:
            return jnp.repeat(leaf, 2, axis=1)
        if path.endswith(('projections/key/bias', 'projections/value/bias')):
            return jnp.repeat(leaf, 2, axis=0)
        if path.endswith('projections/query/kernel') and scaled:
            return leaf * model.config.head_dim**0.5
        return leaf

    segments = random_segments(segments=3)
    logits, _ = run(model, params, segments)
    wanted, _ = run(with_config(name, layers=1), changed(params, repeat), segments)
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    state = model.apply({'params': params}, BATCH, method='initial_state')
    stream = jax.jit(lambda state: open_stream(model, params, state, BATCH))(state)
    cache = jax.tree_util.tree_leaves_with_path(stream.cache)
    of_heads = [leaf for path, leaf in cache if 'keys' in str(path[-1]) and leaf.ndim == 4]
    if name != 'infinity_former':  # its long-term memory has heads of its own
        assert all(leaf.shape[1] == 1 for leaf in of_heads)
    step = jax.jit(lambda tokens, stream: read_token(model, params, tokens, stream))
    for number in range(3):
        for place in range(LENGTH):
            one, stream = step(segments.tokens[number, :, place], stream)
            np.testing.assert_allclose(one, logits[number, :, place], atol=2e-5)


def test_repeated_heads_keep_their_order():
    rows = jnp.arange(2.0)[None, :, None, None]
    np.testing.assert_array_equal(repeat_heads(rows, 4).ravel(), [0, 0, 1, 1])
    assert repeat_heads(rows, 2) is rows


@pytest.mark.parametrize('name', sorted({*OWN} - {'memsizer', 'linear'}))
@pytest.mark.parametrize(
    'bias, wanted',
    [
        ('qkv', 'key query value'),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [('none', ''), ('out', 'out'), ('all', 'key out query value')]
        ),
    ],
)
def test_every_attention_layer_has_the_biases_of_the_model(name, bias, wanted):
    found = paths(with_config(name, layers=1, attention_bias=bias))
    start = 'block_0/attention/projections/'
    biases = sorted(
        path.split('/')[3] for path in found if path.startswith(start) and 'bias' in path
    )
    assert ' '.join(biases) == wanted, 'use `Projections` for all four maps'


def test_widths_and_heads_of_a_layers_own():
    """Values twice as wide as keys, and twice as many: the same paths, biases, norms and axes."""
    settings = dataclasses.replace(
        make_settings(model_config('local'), LENGTH),
        num_heads=4, attention_bias='all', head_norm='rmsnorm',
    )  # fmt: skip
    own = Projections(settings, key_dim=4, value_dim=6, query_heads=2, key_heads=2, value_heads=4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.float32)

    def read(layer, x):
        values = layer.values(x)
        scores = repeat_heads(layer.queries(x) * layer.keys(x), 4).sum(-1, keepdims=True)
        return layer.out(scores * values)

    boxed = jax.jit(functools.partial(own.init, method=read))(jax.random.key(0), x)
    params = nn.unbox(boxed)['params']
    shapes = {'/'.join(path): leaf.shape for path, leaf in flatten_dict(params).items()}
    assert shapes == {
        'query/kernel': (16, 2, 4), 'query/bias': (2, 4), 'query/norm/scale': (4,),
        'key/kernel': (16, 2, 4), 'key/bias': (2, 4), 'key/norm/scale': (4,),
        'value/kernel': (16, 4, 6), 'value/bias': (4, 6),
        'out/kernel': (4, 6, 16), 'out/bias': (16,),
    }  # fmt: skip
    axes = {
        '/'.join(path): names[-3:]
        for path, names in flatten_dict(nn.get_partition_spec(boxed)['params']).items()
        if path[-1] == 'kernel'
    }
    assert axes['query/kernel'] == axes['key/kernel'] == ('embed', 'kv_heads', 'head_dim')
    assert axes['value/kernel'] == ('embed', 'heads', 'head_dim')
    assert axes['out/kernel'] == ('heads', 'head_dim', 'embed')
    plain = own.apply({'params': params}, x, method=read)
    ones = {'a': jnp.ones((16, 1)), 'b': jnp.ones((1, 4, 6)), 'scale': jnp.ones(())}
    more = params | {'value': params['value'] | {low_rank.NAME: ones}}
    with nn.intercept_methods(low_rank.intercept):
        assert np.abs(own.apply({'params': more}, x, method=read) - plain).max() > 1e-3


def test_a_layer_keeps_the_biases_of_its_paper():
    found = paths(with_config('linear', layers=1, attention_bias='qkv'))
    for part in ('query', 'key', 'value', 'out'):
        assert f'block_0/attention/projections/{part}/bias' in found


@pytest.mark.parametrize('name', ['local', 'memformer'])
def test_every_norm_of_the_stack_has_the_epsilon_of_the_model(name):
    model = with_config(name, layers=1, norm_epsilon=0.25)
    found = []

    def look(next_function, arguments, keywords, context):
        if isinstance(context.module, Norm) and context.method_name == '__call__':
            found.append((context.module.path, context.module.epsilon))
        return next_function(*arguments, **keywords)

    with nn.intercept_methods(look):
        jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    assert found and [path for path, epsilon in found if epsilon != 0.25] == []


def test_rotary_settings_reach_the_layer():
    params = parameters(with_config('local', layers=1))
    segments = random_segments(segments=1)
    logits = [
        run(with_config('local', layers=1, **changes), params, segments)[0]
        for changes in ({}, dict(rotary_base=100.0), dict(rotary_share=0.5))
    ]
    np.testing.assert_allclose(logits[0][:, :, 0], logits[1][:, :, 0], atol=1e-6)
    assert np.abs(logits[0] - logits[1]).max() > 1e-4
    assert np.abs(logits[0] - logits[2]).max() > 1e-4
