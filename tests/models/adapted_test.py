"""Low-rank parts: exactly the model without them at first, then the model of merged kernels."""

import functools
import re

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.errors import UsageError
from longmem_jax.layers import low_rank
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import read_segments
from longmem_jax.training.optimizer import freeze, make_optimizer, parameter_path
from tests import toys

EVERYWHERE = '(projections|feed_forward)/'
# Layers of each way to use projections: at once, as a pure function, on a memory, shared by slots.
QUICK = ('infini',)
OTHERS = (
    'adaptive_span',
    'expire_span',
    'full',
    'infinity_former',
    'linear',
    'memformer',
    'memorizing',
    'memsizer',
)


def separate(params):
    """The parameters without the low-rank parts, and a tree of these alone."""
    flat = flax.traverse_util.flatten_dict(params)
    return tuple(
        flax.traverse_util.unflatten_dict(
            {path: leaf for path, leaf in flat.items() if (low_rank.NAME in path) == chosen}
        )
        for chosen in (False, True)
    )


def lora(rank=2, alpha=6.0, targets=EVERYWHERE):
    return dict(rank=rank, alpha=alpha, targets=targets)


@functools.cache
def adapted(name, layers=1, **fields):
    """The toy of a layer with low-rank parts, its parameters at the start, and after a change."""
    model = toys.with_config(name, layers, lora=lora(**fields))
    params = toys.parameters(model, 1)

    def change(path, leaf):
        moved = leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape)
        return moved if parameter_path(path).endswith('lora/b') else leaf

    changed = jax.jit(functools.partial(jax.tree_util.tree_map_with_path, change))(params)
    return model, params, changed


@functools.partial(jax.jit, static_argnums=0)
def loss(model, params, segments):
    """Of two segments, so that what is remembered has a part in it."""

    def read(state, segment, key):
        scores, state, _ = model.apply(
            {'params': params}, segment, segment.tokens, state, train=False, method='nll'
        )
        return state, scores.nll.sum()

    state = model.apply({'params': params}, toys.BATCH, method='initial_state')
    return read_segments(read, state, segments, jax.random.key(0))[1].sum()


@pytest.mark.parametrize(
    'name', [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
def test_low_rank_parts_are_their_merged_kernels(name):
    """Also in backward passes and in pure functions of a layer's maps, which run elsewhere."""
    model, start, params = adapted(name)
    segments = toys.random_segments(segments=2)
    plain = toys.with_config(name, 1)
    kept, own = separate(start)
    assert set(toys.by_path(own)) == {path for path in toys.by_path(start) if '/lora/' in path}
    # One program for the model with the parts and one for that without them, each with its gradients.
    with_parts, without = (
        jax.jit(jax.value_and_grad(functools.partial(loss, each))) for each in (model, plain)
    )
    at_first, _ = without(kept, segments)
    np.testing.assert_array_equal(with_parts(start, segments)[0], at_first)

    value, found = with_parts(params, segments)
    merged, back = jax.jit(functools.partial(jax.vjp, low_rank.merged))(params)
    wanted, expected = without(merged, segments)
    (expected,) = jax.jit(back)(expected)
    np.testing.assert_allclose(value, wanted, rtol=2e-5)
    assert abs(value - at_first) > 1e-3
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for path, leaf in toys.by_path(found).items():
        np.testing.assert_allclose(
            leaf, toys.by_path(expected)[path], atol=2e-5 * scale, err_msg=f'gradient of {path}'
        )


def test_generation_has_the_parts_too():
    model, _, params = adapted('infini')
    plain, tokens = toys.with_config('infini', 1), jnp.zeros((toys.BATCH, 3), jnp.int32)

    def read(model, params):
        def run(module):
            state = module.initial_state(toys.BATCH)
            cache = module.open_segment(state, toys.BATCH)
            return module.extend(tokens, cache, jnp.zeros((toys.BATCH,), jnp.int32))[0]

        return jax.jit(lambda: model.apply({'params': params}, method=run))()

    np.testing.assert_allclose(
        read(model, params), read(plain, low_rank.merged(params)), rtol=1e-4, atol=1e-5
    )


def test_shapes_axes_and_scale():
    model = toys.with_config('local', 1, lora=lora(targets='projections/(query|out)$'))
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(1)))
    found = boxed['block_0']['attention']['projections']
    assert set(found['key']) == {'kernel'} and set(found['query']) == {'kernel', 'lora'}
    axes = {name: found['query']['lora'][name].names for name in 'ab'}
    assert axes == {'a': ('embed', None), 'b': (None, 'heads', 'head_dim')}
    axes = {name: found['out']['lora'][name].names for name in 'ab'}
    assert axes == {'a': ('heads', 'head_dim', None), 'b': (None, 'embed')}
    assert unbox(found)['out']['lora']['a'].shape == (2, 8, 2)
    _, start, _ = adapted('local', alpha=6.0)
    scales = [leaf for path, leaf in toys.by_path(start).items() if path.endswith('lora/scale')]
    assert scales and all(scale == 3.0 for scale in scales)
    a = [leaf for path, leaf in toys.by_path(start).items() if path.endswith('lora/a')]
    assert len({leaf.tobytes() for leaf in map(np.asarray, a)}) == len(a)  # each its own draw


def test_the_rest_is_frozen_and_has_no_moments():
    _, start, params = adapted('local')
    settings = base().optimizer
    settings.groups = (('/lora/', 1.0, True), ('', 0.0, False))
    settings.learning_rate = 0.1
    optimizer = make_optimizer(settings, 10, params)
    state = jax.jit(optimizer.init)(params)
    kept, own = separate(params)
    held = sum(leaf.size for leaf in jax.tree.leaves(state))
    assert held < 2 * sum(leaf.size for leaf in jax.tree.leaves(own)) + 10
    segments = toys.random_segments(segments=2)
    model = adapted('local')[0]
    gradient = jax.jit(jax.grad(lambda p: loss(model, freeze(settings.groups, p), segments)))(
        params
    )
    updates, _ = jax.jit(optimizer.update)(gradient, state, params)
    for path, update in toys.by_path(updates).items():
        moves = '/lora/' in path and not path.endswith('/scale')
        assert bool(np.abs(update).max() > 0) == moves, path
    for path in toys.by_path(kept):
        assert not np.abs(toys.by_path(gradient)[path]).max(), path


def test_problems():
    with pytest.raises(UsageError, match=r"targets = 'nowhere': found in no path.*projections/key"):
        model = toys.with_config('local', 1, lora=lora(targets='nowhere'))
        jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    for fields, message in (
        (dict(rank=-1), 'config.model.lora.rank = -1'),
        (dict(targets='('), 'config.model.lora.targets = .*regular expression'),
        (dict(alpha=-1.0), 'config.model.lora.alpha = -1.0'),
    ):
        config = base()
        config.model.lora.update(fields)
        problems = [problem for problem in checks.find_problems(config, 1) if 'lora' in problem]
        assert len(problems) == 1, problems
        assert re.search(message, problems[0]), problems
