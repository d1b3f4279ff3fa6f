"""Products of rows with a matrix: numbers, derivatives, and over how many axes those sum."""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from longmem_jax.devices import hardware
from longmem_jax.layers.projections import HeadsIn, HeadsOut
from longmem_jax.layers.rows_product import FEW, dot_general, rows_times, rows_times_vectors

INIT = nn.initializers.normal(0.1)
MAPS = {
    'heads in': (HeadsIn(2, 3, 'float32', INIT), (2, 5, 4)),
    'heads out': (HeadsOut(4, 'float32', INIT), (2, 3, 5, 2)),
    'dense': (nn.Dense(3, dot_general=dot_general), (2, 5, 4)),
}


def drawn(*shapes):
    draw = np.random.default_rng(0)
    return [draw.normal(size=shape).astype('float32') for shape in shapes]


@pytest.mark.parametrize('lead', [(2, 3), (3,), ()])
def test_every_row_is_multiplied(lead):
    rows, matrix, weights = drawn((*lead, 4), (4, 5), (*lead, 5))
    product, pull = jax.vjp(rows_times, rows, matrix)
    _, expected = jax.vjp(jax.numpy.matmul, rows, matrix)
    np.testing.assert_allclose(product, rows @ matrix, rtol=1e-5, atol=1e-6)
    for one, other in zip(pull(weights), expected(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('lead', [(2, 3), (2, 1), (3,)])
def test_every_row_is_multiplied_with_every_vector(lead):
    rows, vectors, weights = drawn((*lead, 4), (5, 4), (*lead, 5))
    product, pull = jax.vjp(lambda *args: rows_times_vectors(*args, 'float32'), rows, vectors)
    _, expected = jax.vjp(lambda rows, vectors: rows @ vectors.T, rows, vectors)
    np.testing.assert_allclose(product, rows @ vectors.T, rtol=1e-5, atol=1e-6)
    for one, other in zip(pull(weights), expected(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('rows, first', [(1, False), (2, True), (FEW, True), (FEW + 1, False)])
def test_vectors_come_first_where_rows_are_few(rows, first):
    """Also once it is compiled: XLA would put them second again."""
    program = jax.jit(lambda *args: rows_times_vectors(*args, 'float32'))
    text = program.lower(*drawn((rows, 1, 4), (500, 4))).compile().as_text()
    assert bool(re.search(rf'f32\[500,{rows}\]\S* (fusion|dot)\(', text)) == first


def test_dense_layers_may_only_multiply_rows():
    rows = np.ones((2, 3, 4), 'float32')
    with pytest.raises(ValueError, match='last axis of the rows'):
        dot_general(rows, rows[0], (((1,), (0,)), ((), ())))


@pytest.mark.parametrize('name', MAPS)
def test_gradients_of_matrices_sum_over_one_axis(name):
    """CPUs would copy lanes and tokens in another order first."""
    module, shape = MAPS[name]
    (x,) = drawn(shape)
    params = module.init(jax.random.key(0), x)
    program = (
        jax.jit(jax.grad(lambda params: module.apply(params, x).sum())).lower(params).as_text()
    )
    summed = [
        len(found.split(',')) for found in re.findall(r'contracting_dims = \[(.*?)\]', program)
    ]
    assert summed, program
    assert max(summed) == 1, (
        f'{name}: products sum over {summed} axes, at most one expected.\n'
        f'Multiply with layers.rows_product.rows_times.'
    )


@pytest.mark.parametrize('name', ['heads in', 'heads out'])
def test_products_for_tpus_are_the_same(name, monkeypatch):
    """They contract and return heads as they are, so that nothing is copied."""
    module, shape = MAPS[name]
    (x,) = drawn(shape)
    params = module.init(jax.random.key(0), x)

    def total(params, x):
        return (module.apply(params, x) ** 2).sum()

    by_rows = jax.value_and_grad(total, (0, 1))(params, x)
    monkeypatch.setattr(hardware, 'platform', lambda: 'tpu')
    for one, other in zip(
        *map(jax.tree.leaves, (jax.value_and_grad(total, (0, 1))(params, x), by_rows)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    products = [
        str(jax.make_jaxpr(module.apply)(params, x)).count(word)
        for word in ('dot_general', 'reshape')
    ]
    assert products == [1, 0], 'a product for TPUs reshapes nothing'


def test_a_function_per_device_sums_the_gradient_of_a_shared_matrix():
    """Also where JAX checks which values differ between devices, as `jax.shard_map` does by default."""
    rows, matrix = np.arange(24.0, dtype='float32').reshape(2, 3, 4), np.ones((4, 5), 'float32')
    every, split = PartitionSpec(), PartitionSpec('lanes')

    def total(rows, matrix):
        return (rows_times(rows, matrix) ** 2).sum()

    on_devices = jax.shard_map(
        lambda *given: jax.lax.psum(total(*given), 'lanes'),
        mesh=jax.make_mesh((2,), ('lanes',), (AxisType.Auto,), devices=jax.devices()[:2]),
        in_specs=(split, every),
        out_specs=every,
    )
    found = jax.jit(jax.grad(on_devices, (0, 1)))(rows, matrix)
    for one, other in zip(found, jax.grad(total, (0, 1))(rows, matrix), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
