"""Memories that choose what they read on every device: gradients do not depend on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.devices.sharding import lanes_sharding, make_mesh, parameter_shardings
from longmem_jax.models.parameters import initial_parameters
from longmem_jax.segment import read_segments
from tests.toys import random_segments, toy

LANES = 8


def uneven(params):
    """Parameters with spans that differ, so that devices choose different sizes."""
    params = jax.tree.map(lambda leaf: leaf, params)
    own = params['block_0']['attention']
    if 'span_kernel' in own:
        own['span_kernel'] = jax.random.normal(jax.random.key(0), (16,))
    if 'span_share' in own:
        own['span_share'] = jnp.linspace(0.1, 0.6, own['span_share'].size)
    return params


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, sizes',
    [
        ('expire_span:blocks', dict(data=2, fsdp=2, tensor=2)),
        ('adaptive_span:trimmed', dict(data=8)),
        ('compressive:sliding', dict(data=8)),
    ],
    ids=str,
)
def test_sharded_gradients_are_unsharded(name, sizes):
    """Of the loss and all auxiliary losses, through several segments."""
    model, params = toy(name, layers=1)
    params, segments = uneven(params), random_segments(batch=LANES)

    def value(params, segments):
        def read(state, segment, key):
            logits, state, aux = model.apply({'params': params}, segment, state, train=False)
            total = jnp.square(jax.nn.log_softmax(logits)).mean() + 10 * sum(aux.losses.values())
            return state, total

        state = model.apply({'params': params}, LANES, method='initial_state')
        return read_segments(read, state, segments, jax.random.key(0))[1].sum()

    gradient = jax.jit(jax.value_and_grad(value))
    wanted, expected = gradient(params, segments)
    mesh = make_mesh(sizes)
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    placed = jax.device_put(params, parameter_shardings(mesh, boxed))
    spread = jax.device_put(segments, lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        found, sharded = gradient(placed, spread)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    pairs = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(sharded), strict=True)
    for (path, own), other in pairs:
        scale = max(float(np.abs(own).max()), 1e-3)
        np.testing.assert_allclose(
            np.asarray(other) / scale, np.asarray(own) / scale, atol=2e-5, err_msg=str(path)
        )
