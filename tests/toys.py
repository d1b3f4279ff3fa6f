"""The toys of `longmem_jax.testing` and programs that read segments with them, shared by the tests."""

import functools

import jax

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
