"""Products of rows with a matrix: numbers, and gradients that sum over one axis."""

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from longmem_jax.layers.rows_product import dot_general, rows_times
from tests.toys import random_segments, toy


def all_equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from all_equations(inner)


@pytest.mark.parametrize('axis', [0, 1])
def test_every_row_is_multiplied(axis):
    draw = np.random.default_rng(axis)
    rows = draw.normal(size=(2, 3, 4)).astype('float32')
    matrix = draw.normal(size=(4, 5)).astype('float32')
    given = matrix.T if axis else matrix
    for some in (rows, rows[0], rows[0, 0]):
        product = rows_times(some, given, axis=axis)
        np.testing.assert_allclose(product, some @ matrix, rtol=1e-5, atol=1e-6)


def test_dense_layers_may_only_multiply_rows():
    rows = np.ones((2, 3, 4), 'float32')
    with pytest.raises(ValueError, match='last axis of the rows'):
        dot_general(rows, rows[0], (((1,), (0,)), ((), ())))


@pytest.mark.parametrize('name', ['transformer_xl', 'compressive', 'memsizer'])
def test_gradients_of_matrices_sum_over_one_axis(name):
    """Two axes, lanes and tokens, would be copied in another order first."""
    model, params = toy(name)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments(segments=1))
    lanes = segment.start.shape[0]

    def objective(params):
        state = model.apply({'params': params}, lanes, method='initial_state')
        return model.apply({'params': params}, segment, state, train=False)[0].sum()

    found = []
    for equation in all_equations(jax.make_jaxpr(jax.grad(objective))(params).jaxpr):
        if equation.primitive.name == 'dot_general':
            (summed, _), (of_batch, _) = equation.params['dimension_numbers']
            if len(summed) > 1 and not of_batch:
                shapes = ' by '.join(str(operand.aval.shape) for operand in equation.invars)
                found.append(f'{shapes} over {summed}')
    assert not found, (
        f'Products over more than one axis: {"; ".join(found)}.\n'
        f'Multiply with layers.rows_product.rows_times, which has one axis of rows.'
    )
