"""Products that make or read a float32 memory ask for full precision: the lowered programs say so.

On CPUs all precisions are the same, so no result on a CPU would show a missing one.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import associative
from longmem_jax.memory import memsizer
from longmem_jax.memory.expire_span import maths
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.continuous_layer import ContinuousMemory
from longmem_jax.testing import recurrent
from longmem_jax.testing.toys import BATCH

PRODUCT = re.compile(r'stablehlo\.dot_general.*')
HIGHEST = 'precision = [HIGHEST, HIGHEST]'


def products(function, *arrays):
    """The matrix products of a function, as text of its lowered program."""
    found = PRODUCT.findall(jax.jit(function).lower(*arrays).as_text())
    assert found
    return found


def gradient(function, number):
    """The gradient of `function` with respect to all of its `number` arguments."""

    def total(*arrays):
        return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(function(*arrays)))

    return jax.grad(total, argnums=range(number))


def array(*shape):
    return jnp.ones(shape, jnp.float32)


def written(rule, normalizer):
    def write(matrix, sums, keys, values):
        pairs = associative.Pairs(matrix, sums)
        return associative.write(pairs, keys, values, rule, normalizer, 'clamp', 1e-6)

    return write, (array(1, 2, 3, 4), array(1, 2, 3), array(1, 2, 6, 3), array(1, 2, 6, 4))


def retrieved(matrix, sums, queries):
    pairs = associative.Pairs(matrix, sums)
    return associative.read(pairs, queries, 'sum', 'clamp', 1e-6)


CASES = {
    'M and z, read': (retrieved, (array(1, 2, 3, 4), array(1, 2, 3), array(1, 2, 6, 3))),
    'M and z, linear': written('linear', 'sum'),
    'M and z, delta': written('delta', 'sum'),
    'M, sequential delta': written('delta_sequential', 'none'),
    'slots of MemSizer, filled': (
        lambda left, right: memsizer.fill(left, right, jnp.ones((1, 5), bool)),
        (array(1, 5, 3), array(1, 5, 4)),
    ),
    'slots of MemSizer, read': (memsizer.read, (array(1, 5, 3), array(1, 3, 4))),
    'spans': (
        lambda *arrays: maths.expire_spans(*arrays, 1024, 1.0),
        (array(1, 5, 4), array(4), array()),
    ),
    'signal': (continuous.evaluate, (array(1, 6, 3), array(5, 6))),
    'signal, by lane': (continuous.evaluate, (array(1, 6, 3), array(1, 5, 6))),
    'regression': (continuous.fit, (array(5, 6), array(1, 5, 3))),
}


@pytest.mark.parametrize('name', CASES)
def test_state_is_computed_at_full_precision(name):
    function, arrays = CASES[name]
    for program in (function, gradient(function, len(arrays))):
        assert all(HIGHEST in product for product in products(program, *arrays))


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in ('linear', 'delta') else pytest.mark.slow)
        for name in recurrent.names()
    ],
)
def test_recurrent_memories_are_read_and_written_at_full_precision(name):
    inputs, state = recurrent.some_inputs(name, 5, None)
    valid = jnp.ones((BATCH, 5), bool)
    for by_steps in (False, True):

        def read(inputs, memory, by_steps=by_steps):
            given = inputs, state.replace(memory=memory), valid, None
            return recurrent.read_inputs(name, *given, by_steps=by_steps)

        for program in (read, gradient(read, 2)):
            assert all(HIGHEST in product for product in products(program, inputs, state.memory))


def test_a_continuous_memory_is_read_and_written_at_full_precision():
    """All products but those with the gate's kernels [12, 12] and the output's kernel [8, 12]."""
    settings = ModelSettings(
        d_model=12,
        num_heads=2,
        head_dim=4,
        d_feed_forward=12,
        num_layers=1,
        segment_length=5,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.1,
        dtype=jnp.dtype('bfloat16'),
    )
    memory = ContinuousMemory(
        settings=settings,
        num_basis=6,
        widths=(0.2, 0.4),
        num_samples=10,
        tau=0.5,
        ridge=0.5,
        first_length=5,
        write_length=5,
        sigma_sq_min=1e-4,
        density='gaussian',
        padding=True,
    )

    def write_and_read(module, old, vectors, queries):
        new = module.update(old, module.linear_places(), vectors) + module.fit_first(vectors)
        return module.read(queries, *module.project(new))

    arrays = array(1, 6, 12), array(1, 5, 12), array(1, 2, 7, 4)
    init = jax.jit(functools.partial(memory.init, method=write_and_read))
    params = init(jax.random.key(0), *arrays)
    found = products(
        lambda params, *arrays: memory.apply(params, *arrays, method=write_and_read),
        params,
        *arrays,
    )
    assert any('12x8xf32' in product and HIGHEST in product for product in found)  # keys of B
    rounded = [product for product in found if HIGHEST not in product]
    assert all('12x12xf32' in product or '8x12xf32' in product for product in rounded), rounded
