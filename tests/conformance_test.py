"""The promises of `longmem_jax.testing.conformance`, for every entry of the registry.

A memory joins by its line in `longmem_jax/memory/registry.py`. Goldens are in `golden_test.py`.
One memory: `pytest tests/conformance_test.py -k NAME`.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from longmem_jax.devices.sharding import lanes_sharding, make_mesh, parameter_shardings
from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.parameters import initial_parameters
from longmem_jax.testing import conformance, gradients, recurrent
from longmem_jax.testing.assertions import assert_close
from longmem_jax.testing.gradients import Single, assert_gradients_close
from longmem_jax.testing.programs import EVERY, Entry, entry, reading, segments_of
from longmem_jax.testing.segments import LOGITS, STATES


def of_package(name):
    """The package of an entry's layer, such as `longmem_jax.memory.decayed` or `longmem_jax.layers`."""
    parts = LAYERS[name].layer.module.__module__.split('.')
    return '.'.join(parts[: 2 if parts[1] == 'layers' else 3])


# The first entry of every package; those after it share its code and are in the slow tier.
FIRST = {of_package(name): name for name, _ in reversed(conformance.cases())}
# Chunks of a recurrent memory are compared with its steps, with starts inside and with gradients; what
# the shared code around them makes of both is in the fast tier for one of these memories.
OF_ONE = {'gradients', 'starts_inside'}


def is_quick(name, promise):
    """Whether a promise of an entry is in the fast tier."""
    if promise in OF_ONE and recurrent.is_recurrent(name):
        return name == 'delta'
    return name in FIRST.values()


QUICK = {case for case in conformance.cases() if is_quick(*case)}
CASES = [
    pytest.param(*case, id='-'.join(case), marks=() if case in QUICK else pytest.mark.slow)
    for case in conformance.cases(long=True)
]


@pytest.mark.parametrize('name, promise', CASES)
def test_promise(name, promise):
    conformance.check(name, promise)


@pytest.mark.slow
@pytest.mark.parametrize('name', dict.fromkeys(name for name, _ in conformance.cases()))
def test_sharded_is_unsharded(name):
    sizes, one = dict(data=2, fsdp=2, tensor=2), entry(name)
    mesh = make_mesh(sizes)
    boxed = jax.eval_shape(lambda: initial_parameters(one.model, jax.random.key(0)))
    params = jax.device_put(one.params, parameter_shardings(mesh, boxed))
    segments = jax.device_put(segments_of(), lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        read = jax.jit(reading(one.model))
        (_, (logits, states, _)), gradient = read(params, one.begin, segments, EVERY)
    broken = f'devices {sizes} changed the'
    fix = (
        'Name the logical axes of the parameters as other layers do, and let no shape or random '
        'number depend on the number of devices.'
    )
    plain = one.plain
    assert_close(logits, plain.logits, f'{broken} logits', fix, axes=LOGITS, atol=1e-5)
    assert_close(states, plain.states, f'{broken} states', fix, axes=STATES, atol=1e-5)
    assert_gradients_close(gradient, plain.gradient, f'{broken} gradients', fix)


def test_a_layer_that_ignores_the_starts_it_takes_is_found(monkeypatch):
    monkeypatch.setattr(LAYERS['transformer_xl'].layer.module, 'takes_starts', True, raising=False)
    assert ('transformer_xl', 'starts_inside') in conformance.cases('transformer_xl')
    with pytest.raises(AssertionError, match='starts inside a segment give other logits'):
        conformance.PROMISES['starts_inside'](Entry('transformer_xl'))


@pytest.mark.parametrize('axis, says', [(2, 'tokens from position 2'), (1, 'the tokens of row 0')])
def test_what_training_alone_reads_is_found(axis, says):
    def read(segments):
        tokens = np.roll(segments.tokens, -1 if axis == 2 else 1, axis)
        logits = np.stack([tokens] * 2, axis=-1).astype(np.float32)
        return SimpleNamespace(logits=logits, aux=SimpleNamespace(statistics={}))

    with pytest.raises(AssertionError, match=says):
        conformance.PROMISES['apart_in_training'](SimpleNamespace(read_training=read))


@pytest.mark.parametrize('narrow', [True, False])
def test_a_gradient_that_is_no_slope_is_told_from_one_of_float32(narrow):
    """A step of 1e-6 does not change a loss that is rounded to float32."""
    dtype = np.float32 if narrow else np.float64

    def apply(variables, segment, state, train):
        return (variables['params'].astype(dtype) * 2,)

    def read(state, segment, params=None):
        return (0.0 if narrow else params is not None and params.sum() * 3, (np.ones(2),))

    with jax.enable_x64(True):
        single = Single.__new__(Single)
        single.model, single.params, single.read = SimpleNamespace(apply=apply), np.ones(2), read
        with pytest.raises(AssertionError, match='is not the slope') as error:
            gradients._right(single, None, None)
    assert ('`jnp.promote_types(self.settings.dtype, jnp.float32)`' in str(error.value)) == narrow


def test_an_entry_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match='transformer_xl'):
        conformance.cases('transformer_xxl')
