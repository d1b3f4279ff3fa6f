"""The promise of recurrent memories: chunks are steps, also with padding and starts inside."""

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.author import RecurrentMemory, chunks
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models import stack
from longmem_jax.testing import toys
from longmem_jax.testing.assertions import assert_close
from longmem_jax.testing.programs import ROWS, Entry, at, forward, segments_of
from longmem_jax.testing.segments import LOGITS, join, split, started
from longmem_jax.testing.toys import BATCH, SEGMENTS, every_layer, model_config


def is_recurrent(name: str) -> bool:
    """Whether an entry, or 'NAME:VARIANT', is a `RecurrentMemory`."""
    found = LAYERS.get(name.partition(':')[0])
    return found is not None and issubclass(found.layer.module, RecurrentMemory)


def takes_starts(name: str) -> bool:
    """Whether all layers of an entry's toy say that a start may be at any token."""
    found = LAYERS.get(name.partition(':')[0])
    says = found is not None and getattr(found.layer.module, 'takes_starts', False)
    return says and stack.takes_starts(model_config(name))


def names() -> list[str]:
    """All recurrent memories and their variants."""
    return list(filter(is_recurrent, every_layer()))


def of_layer(name: str, params: Any, method: Any, *arrays: Any) -> Any:
    """`method(layer, *arrays)` of the first layer of a toy with these parameters."""
    return toys.moved(name)[0].apply(
        {'params': params},
        *arrays,
        method=lambda model, *arrays: method(model.stack.blocks[0].attention, *arrays),
    )


def some_inputs(name: str, length: int, start: Any) -> tuple[Any, Any]:
    """Inputs of the step for `length` random tokens per lane, and a state that was written before."""
    width = model_config(name).d_model

    def read(layer: Any, before: jax.Array, x: jax.Array) -> Any:
        every = jnp.ones(before.shape[:2], bool)
        _, state, _ = layer.read(before, layer.initial_state(BATCH), every)
        state = state.replace(carried={})  # this is the first layer: nothing was handed on to it
        return layer.given(x, state, jnp.full((BATCH,), length, jnp.int32), start)[0], state

    keys = jax.random.split(jax.random.key(0))
    x = [jax.random.normal(key, (BATCH, length, width)) for key in keys]
    params = toys.moved(name)[1]
    return jax.jit(lambda params, *x: of_layer(name, params, read, *x))(params, *x)


def read_inputs(
    name: str, inputs: Any, state: Any, valid: Any, start: Any, *, by_steps: bool = False
) -> tuple[Any, Any]:
    """`RecurrentMemory.write_tokens` of a toy's layer: the memory, and y of tokens."""

    def of_tokens(leaf: jax.Array) -> jax.Array:
        shape = (BATCH, 1, -1, *[1] * (leaf.ndim - 3))
        return jnp.where(valid.reshape(shape), leaf, jnp.zeros_like(leaf))

    def read(layer: Any, inputs: Any, state: Any) -> tuple[Any, Any]:
        given = (state, jax.tree.map(of_tokens, inputs), valid, start)
        memory, y = layer.write_tokens(*given, 0 if layer.aligned else 3, by_steps)
        return memory, jax.tree.map(of_tokens, y)

    return of_layer(name, toys.moved(name)[1], read, inputs, state)


def starts_inside(entry: Entry) -> None:
    """Documents that begin at any position are read as in pieces, with padding between them."""
    random = np.random.default_rng(3)
    segments = started(segments_of(SEGMENTS - 1), (4, 0, 2, 1))
    start, valid = segments.start, random.random(segments.valid.shape) < 0.8
    start[1:, 0] |= random.random(start[1:, 0].shape) < 0.4
    valid[1, 1], start[1, 1, 2], valid[2, 2, 3:], start[2, 2, 4] = False, True, False, True
    segments = segments.replace(valid=valid, start=start)
    pieces = jax.device_get(split(segments, start.size))

    @jax.jit
    def read(params: Any, segments: Any, used: Any) -> Any:
        state = fresh_state(entry.model, params, ROWS)
        return forward(entry.model)(params, state, segments, used)[1]

    logits, states, _ = read(entry.params, segments, None)
    in_pieces, piece_states, _ = read(entry.params, pieces.segments, pieces.used)
    broken = 'starts inside a segment give other {} than pieces'
    fix = (
        '`segment.start` is bool [batch, length]: the state is reset before these tokens. In '
        '`chunked`, what is read of the state before the chunk is multiplied by `sight.before`, and '
        'what is left of writes by `sight.at_end`.'
    )
    wanted = np.where(valid[..., None], join(pieces, in_pieces), 0)
    found = np.where(valid[..., None], logits, 0)
    assert_close(found, wanted, broken.format('logits'), fix, axes=LOGITS, atol=2e-5)
    number = int(np.flatnonzero(pieces.used)[-1])  # pieces after it are not read
    found, wanted = at(states, -1), at(piece_states, number)
    assert_close(found, wanted, broken.format('states'), fix, axes=('row',), atol=2e-5)


def _floats(memory: Any) -> list[Any]:
    """The leaves that have gradients; a count has none."""
    return [leaf for leaf in jax.tree.leaves(memory) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _with_floats(memory: Any, floats: list[Any]) -> Any:
    """The memory with others of these leaves."""
    others = iter(floats)
    return jax.tree.map(
        lambda leaf: next(others) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, memory
    )


def chunks_are_steps(entry: Entry) -> None:
    """Values and gradients of `chunked` and `step`, with padding and starts inside of chunks.

    Here two chunks at once do what needs no state, as on GPUs. Without starts, and one by one,
    `decode` compares the values and `gradients` the slopes.
    """
    length, name = 8, entry.name
    number = np.arange(length)
    valid = number < np.asarray([length, 5])[:, None]
    inside = np.isin(number, (1, 2, 5)) & (np.arange(BATCH)[:, None] == 0)
    fix = (
        '`chunked` must be `step` for n tokens: `sight.pairs` are the pairs of one document, '
        '`sight.before` and `sight.at_end` tell what is seen of the state before and after; inputs of '
        'zeros, the padding, must write nothing, so decays are logarithms.'
    )

    @functools.partial(jax.jit, static_argnums=2)
    @functools.partial(jax.value_and_grad, has_aux=True)
    def read(given: Any, state: Any, by_steps: bool) -> Any:
        inputs, floats = given
        state = state.replace(memory=_with_floats(state.memory, floats))
        found = read_inputs(name, inputs, state, valid, inside, by_steps=by_steps)
        random = np.random.default_rng(0)
        weights = [random.normal(size=leaf.shape) for leaf in jax.tree.leaves(found)]
        total = sum(
            (leaf * w).sum() for leaf, w in zip(jax.tree.leaves(found), weights, strict=True)
        )
        return total, found

    inputs, state = some_inputs(name, length, inside)
    given = ((inputs, _floats(state.memory)), state)
    (_, wanted), slopes = jax.device_get(read(*given, True))
    with mock.patch.dict(chunks.TOGETHER, cpu=2, gpu=2, tpu=2):
        (_, found), found_slopes = jax.device_get(read(*given, False))
    for what, part, right in (
        ('memories', found[0], wanted[0]),
        ('reads', found[1], wanted[1]),
        ('gradients', found_slopes, slopes),
    ):
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(right))
        assert_close(part, right, f'chunks give other {what} than steps', fix, atol=2e-5 * largest)
