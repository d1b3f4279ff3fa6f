"""The part of recurrent memories that reads and writes, without what makes their inputs."""

import jax
import jax.numpy as jnp

from longmem_jax.author import RecurrentMemory
from longmem_jax.author.chunks import read_tokens
from longmem_jax.memory.registry import LAYERS
from tests import toys
from tests.toys import BATCH, every_layer, model_config

NAMES = [
    name
    for name in every_layer()
    if name.partition(':')[0] in LAYERS
    and issubclass(LAYERS[name.partition(':')[0]].layer, RecurrentMemory)
]


def of_layer(name, params, method, *arrays):
    """`method(layer, *arrays)` of the first layer of a toy with these parameters."""
    model, _ = toys.moved(name)
    return model.apply(
        {'params': params},
        *arrays,
        method=lambda model, *arrays: method(model.stack.blocks[0].attention, *arrays),
    )


def some_inputs(name, length):
    """Inputs of the step for `length` random tokens per lane, and a memory that was written before."""
    _, params = toys.moved(name)
    width = model_config(name).d_model

    def read(layer, before, x):
        every = jnp.ones(before.shape[:2], bool)
        _, state, _ = layer.read(before, layer.initial_state(BATCH), every)
        return layer.given(x, state, jnp.full((BATCH,), length, jnp.int32))[0], state.memory

    keys = jax.random.split(jax.random.key(0))
    x = [jax.random.normal(key, (BATCH, length, width)) for key in keys]
    return jax.jit(lambda params, *x: of_layer(name, params, read, *x))(params, *x)


def read_inputs(name, inputs, memory, valid, start, *, by_steps=False):
    """`chunks.read_tokens` with the functions of a toy's layer: the memory, and y of tokens."""
    _, params = toys.moved(name)

    def of_tokens(leaf):
        return jnp.where(valid.reshape(BATCH, 1, -1, *[1] * (leaf.ndim - 3)), leaf, 0)

    def read(layer, inputs, memory):
        chunked = None if by_steps else layer.chunked
        given = (layer.state(), memory, jax.tree.map(of_tokens, inputs), valid, start, 3)
        memory, y = read_tokens(layer.step, chunked, *given)
        return memory, jax.tree.map(of_tokens, y)

    return of_layer(name, params, read, inputs, memory)
