"""A choice of sizes: what is traced for it, and its derivatives."""

from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.layers.switching import as_function, bound, switch
from longmem_jax.memory.adaptive_span import layer as adaptive_span
from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.parameters import abstract_parameters, unbox
from tests.toys import BATCH, random_segments, with_config

SIZES = (2, 4, 8)


def read_rows(size, constants, inputs, *, power):
    """Something that depends on the size."""
    return (inputs['rows'][:size] ** power * constants[:size]).sum(axis=0) + inputs['bias'].sum()


@pytest.mark.parametrize('needed, size', [(0, 2), (2, 2), (3, 4), (9, 8)])
@pytest.mark.parametrize('sizes', [SIZES, SIZES[-1:]])
def test_value_and_gradient_are_those_of_the_size(sizes, needed, size):
    random = np.random.default_rng(0)
    inputs = {'rows': jnp.asarray(random.random((8, 3))), 'bias': jnp.asarray(random.random(5))}
    constants, read = jnp.asarray(random.random((8, 3))), bound(read_rows, power=3)
    size = size if len(sizes) > 1 else sizes[0]

    def chosen(inputs):
        return jnp.sin(switch(read, sizes, needed, constants, inputs)).sum()

    def plain(inputs):
        return jnp.sin(read_rows(size, constants, inputs, power=3)).sum()

    needed = jnp.asarray(needed, jnp.int32)
    (value, gradient), wanted = (
        jax.value_and_grad(function)(inputs) for function in (chosen, plain)
    )
    np.testing.assert_allclose(value, wanted[0], rtol=1e-6)
    moved, expected = (jax.jvp(function, (inputs,), (inputs,))[1] for function in (chosen, plain))
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    for name in inputs:
        np.testing.assert_allclose(gradient[name], wanted[1][name], rtol=1e-6)


def mask_rows(size, share, rows):
    """Reads through a mask that depends on a parameter alone."""
    return (rows[:size] * jnp.tanh(share * jnp.arange(size))).sum()


def test_a_mask_by_parameters_alone_is_not_kept_for_every_segment():
    """Arrays of the largest size that the scan over segments gets or gives would be such masks."""

    def loss(share, rows):
        def segment(total, rows):
            needed = jnp.sum(share > 0).astype(jnp.int32)
            return total + switch(bound(mask_rows), SIZES, needed, share, rows), None

        return jax.lax.scan(segment, 0.0, rows)[0]

    equations = jax.make_jaxpr(jax.grad(loss))(0.5, jnp.ones((3, 9))).eqns
    shapes = {each.aval.shape for equation in equations for each in equation.outvars}
    assert (max(SIZES),) not in shapes, (
        'the mask is computed outside of the scan: put the barrier of `switching._one_of` back'
    )


@pytest.mark.parametrize(
    'name, module', [('adaptive_span', adaptive_span), ('expire_span', expire_span)]
)
def test_layers_of_the_same_settings_are_traced_once(name, module):
    fields = LAYERS[name].small() | dict(max_span=40, num_sizes=3)
    model = with_config(
        name, **{name: fields | (dict(capacity=0) if name == 'expire_span' else {})}
    )
    params = unbox(abstract_parameters(model))
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments(segments=1))
    real, traced = module.read_segment, []

    def counted(size, *args, **kwargs):
        traced.append(size)
        return real(size, *args, **kwargs)

    def value(params):
        state = model.apply({'params': params}, BATCH, method='initial_state')
        logits, _, _ = model.apply({'params': params}, segment, state, train=False)
        return logits.sum()

    with mock.patch.object(module, 'read_segment', counted):
        jax.jit(value).trace(params)
        assert 'block_1' in params and len(set(traced)) == 3
        assert sorted(traced) == sorted(set(traced)), (
            f'traced {traced}: once per size is enough for all layers. What the functions of a layer '
            'are made of must be equal to that of another layer: see switching.bound'
        )
        jax.jit(jax.grad(value)).trace(params)
    assert len(traced) == 3, f'traced {traced}: derivatives follow from what was traced'


def project_rows(size, constants, variables, *, project):
    return project(variables, constants[:size]).sum(axis=0)


def chosen_of(module):
    """What a choice computes with a function made of `module`."""
    project, variables = as_function(module)
    read = bound(project_rows, project=project)
    return switch(read, SIZES, jnp.asarray(2), jnp.ones((8, 3)), variables)


class Reader(nn.Module):
    """A choice with a map that an interceptor may change."""

    @nn.compact
    def __call__(self):
        dense = nn.Dense(3)
        dense(jnp.ones((1, 3)))
        return chosen_of(dense)


def test_interceptors_reach_a_choice_that_was_traced_without_them():
    def doubled_map(next_method, args, kwargs, context):
        result = next_method(*args, **kwargs)
        return 2 * result if isinstance(context.module, nn.Dense) else result

    variables = Reader().init(jax.random.key(0))
    plain = Reader().apply(variables)
    with nn.intercept_methods(doubled_map):
        changed = Reader().apply(variables)
    advice = 'a kept program was used: Function must differ with the interceptors'
    np.testing.assert_allclose(changed, 2 * plain, rtol=1e-6, err_msg=advice)
    np.testing.assert_array_equal(Reader().apply(variables), plain, err_msg=advice)


class Shift:
    """A callable with state, which cannot be hashed."""

    def __init__(self):
        self.by = jnp.zeros(3)

    def __eq__(self, other):
        return True

    def __call__(self, x):
        return x + self.by


def test_callables_with_state_are_not_kept():
    shift = Shift()
    np.testing.assert_array_equal(chosen_of(shift), [2, 2, 2])
    shift.by = jnp.ones(3)
    np.testing.assert_array_equal(chosen_of(shift), [4, 4, 4], err_msg='see switching.as_function')


class Scaled(nn.Module):
    """A module with an array as an attribute, which linen cannot hash."""

    factor: jax.Array

    def __call__(self, x):
        return self.factor * x


@pytest.mark.parametrize('factor', [1.0, 3.0])
def test_modules_that_cannot_be_hashed_are_traced_by_themselves(factor):
    module = Scaled(jnp.full(3, factor)).bind({})
    np.testing.assert_array_equal(chosen_of(module), np.full(3, 2 * factor))
