"""The toys of `longmem_jax.testing` and programs that read segments with them, shared by the tests."""

import functools

import jax
import jax.numpy as jnp

from longmem_jax.in_place import readable_state
from longmem_jax.segment import read_segments
from longmem_jax.testing.toys import (  # noqa: F401  (for the tests, which import all from here)
    BATCH,
    LENGTH,
    SEGMENTS,
    VOCAB,
    drawn,
    every_layer,
    model_config,
    moved,
    own_code,
    parameters,
    random_segments,
    toy,
    with_config,
)
from longmem_jax.training.optimizer import parameter_path

OWN_CODE = own_code()


@functools.partial(jax.jit, static_argnums=0, static_argnames=('train', 'method'))
def apply(model, params, *inputs, train=False, method=None):
    """`model.apply` of a method with `train`, compiled: operation by operation takes far longer."""
    return model.apply({'params': params}, *inputs, train=train, method=method)


@functools.partial(jax.jit, static_argnums=0, static_argnames='train')
def reports(model, params, segments, state=None, *, train=False):
    """Reads segments in order; returns the logits, the states after each, and each one's `Aux`."""
    if state is None:
        state = model.apply({'params': params}, segments.start.shape[1], method='initial_state')

    def read(state, segment, key):
        rngs = {'dropout': key, 'memory': key}
        logits, state, aux = model.apply(
            {'params': params}, segment, state, train=train, rngs=rngs if train else None
        )
        return state, (logits, readable_state(state), aux)

    return read_segments(read, state, segments, jax.random.key(0))[1]


def run(model, params, segments, state=None):
    """`reports` without the `Aux`."""
    return reports(model, params, segments, state)[:2]


def by_path(params):
    """Leaves of parameters by their path, such as `block_0/attention/gate`."""
    return {parameter_path(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}


@functools.partial(jax.jit, static_argnums=0)
def stream(model, params, tokens, state):
    """Reads a segment in two goes, as a stream does; logits, and the state after it."""

    def part(module):
        cache = module.open_segment(state, BATCH)
        first, cache = module.extend(tokens[:, :2], cache, 0)
        rest, cache = module.extend(tokens[:, 2:], cache, jnp.full((BATCH,), 2, jnp.int32))
        count = jnp.full((BATCH,), LENGTH, jnp.int32)
        return jnp.concatenate([first, rest], 1), module.close_segment(state, cache, count)

    return model.apply({'params': params}, method=part)
