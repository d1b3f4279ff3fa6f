"""Initial parameters of a model of any kind."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.segment import Segment, Tree


def initial_parameters(model: nn.Module, key: jax.Array) -> Any:
    """Parameters, float32, with their logical axes, as linen boxes them; see `unbox`.

    A model that reads other things than segments of tokens has a method `initial` that reads an
    example of them.
    """
    if hasattr(model, 'initial'):  # it reads other things than segments of tokens
        return _float32(model.init(key, method='initial')['params'])
    segment = Segment(
        jnp.zeros((1, model.segment_length), jnp.int32),
        jnp.ones((1, model.segment_length), bool),
        jnp.ones((1,), bool),
    )

    def read(module: Any, segment: Segment) -> Any:
        state = module.initial_state(1)
        return module.nll(segment, segment.tokens, state, train=False)

    return _float32(model.init(key, segment, method=read)['params'])


@functools.lru_cache(maxsize=8)
def abstract_parameters(model: nn.Module) -> Any:
    """The shapes of `initial_parameters`, boxed; a model is traced once, since that takes long."""
    return jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))


def _float32(params: Tree) -> Tree:
    # With JAX_ENABLE_X64 they are drawn as float64.
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)


def unbox(params: Tree) -> Tree:
    """Parameters without the logical axes that `initial_parameters` boxes them in."""
    return nn.unbox(params)
