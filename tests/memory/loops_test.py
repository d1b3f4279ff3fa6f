"""No recurrent memory has a loop over tokens: only one over chunks, forwards and backwards."""

import math
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from longmem_jax.author import RecurrentMemory, chunks
from longmem_jax.config.base import base, size
from longmem_jax.config.recipes import recipes, scale_of, use
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory import overflow
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.segment import Segment

TOKENS = 512  # so that loops over chunks are longer than those over the taps of a convolution


def main_layer(name):
    """The entry whose recipe a name of `:memory=` is."""
    return LAYERS[next(iter(recipes()[name](scale_of(base())).sections))]


RECURRENT = [
    name for name in recipes() if issubclass(main_layer(name).layer.module, RecurrentMemory)
]
# With code of their own. Infini-attention writes a segment at once; the hippocampus writes chunks, and
# solves the equations of a chunk in two blocks.
OTHERS = {'infini': 1, 'hippocampus': TOKENS // overflow.CHUNK * 2}


def nests(program, turns=1):
    """How often each loop of a jaxpr turns in all, those around it included; inf of an open loop."""
    if hasattr(program, 'eqns'):
        for equation in program.eqns:
            loop, inside = equation.primitive.name in ('scan', 'while'), turns
            if loop:
                inside *= equation.params.get('length', math.inf)
                yield inside
            yield from nests(list(equation.params.values()), inside)
    elif hasattr(program, 'jaxpr'):
        yield from nests(program.jaxpr, turns)
    elif isinstance(program, tuple | list):
        for part in program:
            yield from nests(part, turns)


def step_of(name, starts):
    """The jaxpr of the gradients of a layer that reads a segment, and its `chunk` or 0."""
    config = base()
    size(config, layers=1, width=32, heads=2, feed_forward=32)
    config.train.segment_length = config.evaluate.segment_length = TOKENS
    use(config, name)
    model = make_model(config.model, TOKENS)
    start = jnp.zeros((2, TOKENS) if starts else (2,), bool)
    segment = Segment(jnp.zeros((2, TOKENS), jnp.int32), jnp.ones((2, TOKENS), bool), start)

    def loss(params):
        logits, state, _ = model.apply(
            {'params': params}, segment, fresh_state(model, params, 2), train=False
        )
        floats = [
            leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return logits.sum() + sum(leaf.sum() for leaf in floats)

    program = jax.make_jaxpr(jax.grad(loss))(unbox(abstract_parameters(model)))
    return program, config.model[config.model.attention[0]].get('chunk', 0)


def allowed(name, chunk, starts):
    """The turns of the longest loop. Chunks that a definition aligns with documents may be more."""
    if name in OTHERS:
        return OTHERS[name]
    if not main_layer(name).layer.module.aligned:
        return TOKENS // chunk
    return 3 * (TOKENS // chunk) + 3 if starts else TOKENS // chunk + 1


def test_the_recurrent_names_of_the_registry_are_all_here():
    known = (
        'linear rfa t2r memsizer delta_net gated_delta_net kimi_delta retnet gla mamba2 rwkv7 '
        'ttt_linear ttt_mlp titans'
    )
    assert set(known.split()) <= set(RECURRENT)


# Starts inside, and several chunks at once, are of the library, not of a memory: one of each kind.
@pytest.mark.parametrize(
    'name, way',
    [
        *((name, 'plain') for name in (*RECURRENT, *OTHERS)),
        *((name, 'starts') for name in ('gated_delta_net', 'titans')),
        ('gated_delta_net', 'together'),
    ],
)
def test_no_loop_turns_as_often_as_there_are_tokens(name, way):
    with mock.patch.dict(chunks.TOGETHER, cpu=4 if way == 'together' else 1):
        program, chunk = step_of(name, way == 'starts')
    longest, most = max(nests(program), default=1), allowed(name, chunk, way == 'starts')
    assert longest <= most < TOKENS / 4, (
        f'{name} has a loop of {longest} turns for {TOKENS} tokens in chunks of {chunk}, allowed are '
        f'{most}: write `chunked` in products of matrices, and what needs no state in `within`'
    )
    assert longest == most, (
        f'{name}: the loop over chunks, of {most} turns, is gone: lower `allowed`'
    )
