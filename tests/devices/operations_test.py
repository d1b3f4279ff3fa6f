"""Operations of the products of a program: loops by their turns, choices by the largest, all devices."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.devices import operations
from longmem_jax.devices.gpus import GPUS
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.experiment import Experiment, lower_step
from tests.training.step_test import small

ONE = 2 * 3 * 8 * 8  # of a product of [3, 8] and [8, 8]
A, B = jnp.ones((3, 8)), jnp.ones((8, 8))


def counted(function, *arrays):
    return operations.count(jax.jit(function).lower(*arrays), 1)


def looped(a, b, turns=5):
    return jax.lax.scan(lambda a, _: (jnp.tanh(a @ b), None), a, length=turns)[0]


def nested(a, b):
    return jax.lax.scan(lambda a, _: (looped(a, b), None), a, length=7)[0]


def until(a, b):
    return jax.lax.while_loop(lambda a: a.sum() < 1e9, lambda a: a @ b, a)


def counting(first, steps, end, compare=jnp.less):
    """A loop that is no scan: nobody knows its turns without computing them."""

    def loop(a, b):
        def turn(carry):
            return carry[0] + steps, carry[1] @ b

        return jax.lax.while_loop(lambda carry: compare(carry[0], end), turn, (first, a))[1]

    return loop


def chosen(a, b):
    return jax.lax.cond(a.sum() > 0, lambda: looped(a, b), lambda: a @ b)


def by_heads(a, b):
    return jnp.einsum('hij,hjk->hik', jnp.stack([a, a]), jnp.stack([b, b]))


@pytest.mark.parametrize(
    'function, products',
    [
        (jnp.matmul, 1),
        (by_heads, 2),
        (looped, 5),
        (nested, 35),
        (jax.grad(lambda a, b: nested(a, b).sum(), argnums=(0, 1)), 3 * 35),
        (
            jax.value_and_grad(lambda a, b: jax.checkpoint(nested)(a, b).sum(), argnums=(0, 1)),
            4 * 35,
        ),
        (chosen, 5),
        (until, 1),
        (counting(0, 1, 5), 5),
        (counting(3, 1, 5), 1),
        (counting(0, 2, 5), 1),
        (counting(5, -1, 0, jnp.greater), 1),
        (counting(0, 1, 5, jnp.less_equal), 1),
        (lambda a, b: a + a, 0),
    ],
)
def test_products_count_as_often_as_they_are_computed(function, products):
    assert counted(function, A, B) == products * ONE


def test_what_is_written_for_one_device_counts_for_each():
    mesh = make_mesh(dict(data=4), jax.devices()[:4])
    a = jax.ShapeDtypeStruct((12, 8), jnp.float32, sharding=NamedSharding(mesh, P('data')))
    with jax.set_mesh(mesh):
        split = jax.shard_map(looped, in_specs=(P('data'), P()), out_specs=P('data'))
        for function in (looped, split):
            lowered = jax.jit(function).lower(a, B)
            assert operations.count(lowered, mesh.size) == 5 * ONE


@pytest.mark.parametrize('name', ['transformer_xl', 'delta_net'])
def test_a_step_has_the_operations_of_all_of_its_segments(name):
    """And chunks of a segment count all; XLA counts one turn of each loop."""
    found = {}
    for segments in (2, 6):
        config = small(name)
        config.train.update(segments_per_step=segments, gradient_segments=0)
        mesh = make_mesh(dict(data=1), jax.devices()[:1])
        found[segments] = operations.count(lower_step(Experiment(config, None, mesh)), 1)
    # The table of distances is computed once.
    np.testing.assert_allclose(found[6], 3 * found[2], rtol=0.03)


@pytest.mark.parametrize('platform, kernels', [('tpu', 3 * 1234), ('cuda', None)])
def test_kernels_count_by_their_estimate_and_of_gpus_nothing_is_known(platform, kernels):
    """Products beside a kernel that is not counted would be taken for all."""
    estimate = pl.CostEstimate(flops=1234, transcendentals=5, bytes_accessed=7)

    def twice(given, found):
        found[...] = 2 * given[...]

    def program(a):
        call = pl.pallas_call(twice, out_shape=a, cost_estimate=estimate)
        return jax.lax.scan(lambda a, _: (call(a), None), a, length=3)[0] @ a

    told = contextlib.nullcontext()
    if platform == 'cuda':  # from 0.11.2 on, JAX must be told for which GPU, if there is none
        device = jax.sharding.AbstractDevice(GPUS['h100'].kind, None, 'gpu')
        mesh = jax.sharding.AbstractMesh((1,), ('data',), abstract_device=device)
        told = jax.sharding.use_abstract_mesh(mesh)
    with told:
        traced = jax.jit(program).trace(jax.ShapeDtypeStruct((128, 128), jnp.float32))
        lowered = traced.lower(lowering_platforms=(platform,))
    assert operations.count(lowered, 1) == (kernels + 2 * 128**3 if kernels else 0)


def test_a_choice_on_the_device_makes_the_count_of_operations_a_bound():
    choice = jax.jit(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))
    assert operations.has_branches(choice.lower(1.0))
    assert not operations.has_branches(jax.jit(jnp.sin).lower(1.0))
    platform = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos))
    assert not operations.has_branches(platform.lower(1.0)), 'no device chooses its platform'
