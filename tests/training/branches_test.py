"""Operations of choices: counted before compilation, and those that did not run taken off."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment, trace_step
from longmem_jax.layers import switching
from longmem_jax.training import branches
from longmem_jax.training.branches import Choice

SIZES = (64, 128, 256)


def read(size, memory, queries):
    """A product, a softmax and a product with the first `size` rows."""
    return jax.nn.softmax(queries @ memory[:size].T) @ memory[:size]


def program(needed):
    """The value and the derivative of `read` with a size chosen on the device."""
    return jax.value_and_grad(
        lambda queries, memory: switching.switch(
            read, SIZES, jnp.asarray(needed), memory, queries
        ).sum()
    )


def flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()['flops']


def test_what_is_left_is_what_xla_counts_of_the_branch_that_ran():
    arguments = jnp.ones((32, 16)), jnp.ones((256, 16))
    traced = jax.jit(program(100)).trace(*arguments)
    found = list(branches.choices(traced.jaxpr.jaxpr, 1))
    assert [choice.sizes for choice in found] == [SIZES] * 2, 'forwards and backwards'
    whole = flops(program(100), *arguments)
    for index, size in enumerate(SIZES):

        def alone(queries, memory, size=size):
            return read(size, memory, queries).sum()

        report = {switching.label(SIZES): np.eye(3)[index]}
        left = whole - branches.not_run(found, report)
        # The backward pass computes the scores once more.
        expected = flops(alone, *arguments) + flops(jax.grad(alone), *arguments)
        assert left == pytest.approx(expected, rel=0.05), size


def test_the_sizes_that_were_taken_are_those_of_each_segment_layer_and_device():
    """Two of four took the smallest: half of what the largest has more than it did not run."""
    found = [Choice((8, 16, 32), (10.0, 20.0, 40.0)), Choice((16, 32), (3.0, 7.0))]
    report = {'sizes_8_16_32': [2.0, 0.0, 2.0], 'sizes_5_9': [0.0, 1.0]}
    assert branches.not_run(found, report) == pytest.approx(0.5 * (30.0 + 4.0))
    assert branches.all_known(found, report)
    assert not branches.all_known([*found, Choice((), (1.0, 2.0))], report), 'some other choice'
    assert not branches.all_known(found, ['sizes_5_9']), 'a memory that reports nothing'


def test_choices_of_other_kinds_have_no_sizes():
    choice = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, lambda x: x * x + x, jnp.negative, x))
    (found,) = branches.choices(choice.trace(jnp.ones(8)).jaxpr.jaxpr, 1)
    assert found == Choice((), (8.0, 16.0)), 'the branch for False is the first'
    platform = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=jnp.negative, default=jnp.sin))
    assert not list(branches.choices(platform.trace(jnp.ones(8)).jaxpr.jaxpr, 1))


@pytest.mark.parametrize(
    'name, devices',
    [
        ('adaptive_span', 1),
        ('expire_span', 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (('adaptive_span', 2), ('expire_span', 1))
        ),
    ],
)
def test_a_step_reports_every_choice_that_it_makes(name, devices):
    config = importlib.import_module(f'configs.{name}_enwik8').get_config('tiny')
    config.model.num_layers = 2
    config.model.attention, config.model.feed_forward = (name,) * 2, ('dense',) * 2
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:devices])
    traced = trace_step(Experiment(config, None, mesh))
    reports = [metric for metric in traced.out_info[1] if branches.is_report(metric)]
    found = list(branches.choices(traced.jaxpr.jaxpr, devices))
    assert reports and branches.all_known(found, reports), (
        'a switch of which no layer says what it took: add `switching.taken` to its Aux'
    )
    assert all(choice.operations == tuple(sorted(choice.operations)) for choice in found)


def test_a_program_of_the_devices_may_take_nothing():
    """An empty memory is made where its rows are."""
    mesh = jax.make_mesh((2,), ('memory',), devices=jax.devices()[:2])
    rows = jax.sharding.PartitionSpec('memory')
    make = jax.shard_map(lambda: jnp.zeros((4,)), mesh=mesh, in_specs=(), out_specs=rows)
    traced = jax.jit(make).trace()
    assert list(branches.choices(traced.jaxpr.jaxpr, 2)) == []
    assert [branches._split(equation) for equation in traced.jaxpr.jaxpr.eqns] == [2]


def test_every_device_takes_its_own_size():
    mesh = sharding.make_mesh(dict(data=2), jax.devices()[:2])
    needed = jnp.asarray([3, 60, 65, 1])
    whole = switching.taken(SIZES, needed)
    np.testing.assert_array_equal(whole['sizes_64_128_256'], [0, 1, 0])
    with jax.set_mesh(mesh):
        by_device = jax.jit(lambda needed: switching.taken(SIZES, needed))(needed)
    np.testing.assert_array_equal(by_device['sizes_64_128_256'], [0.5, 0.5, 0])
    assert not switching.taken((64,), needed), 'nothing is chosen'
