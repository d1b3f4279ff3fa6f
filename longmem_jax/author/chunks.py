"""Reading a sequence by a memory's step: token by token, or in chunks where it has such a form.

Everything here has lanes and heads in front; the functions of the author have neither. Where chunks
begin is a matter of speed, but for memories that are aligned: see `author.aligned`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author import aligned
from longmem_jax.author.called import call, named
from longmem_jax.author.returned import axes_hint, require_new_state
from longmem_jax.devices import hardware
from longmem_jax.layers.sight import sight
from longmem_jax.segment import select_lanes

State = Any
Step = Callable[..., tuple[State, Any]]
# Chunks that do at once what needs no state, by platform; else one. It keeps a GPU busy, but on CPUs and
# TPUs what is ready for many chunks leaves fast memory.
TOGETHER = {'gpu': 16}
GIVEN = 'what `inputs` and `constants` return'


def of_author(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with full precision of products and the usual promotion of types and shapes."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with (
            jax.default_matmul_precision('highest'),
            jax.numpy_rank_promotion('allow'),
            jax.numpy_dtype_promotion('standard'),
        ):
            return function(*arguments)

    return call


def _over_heads(function: Step, constants: tuple[Any, ...]) -> Step:
    """`function(state, flags, *inputs)` of one lane and head, for [batch, heads, ...]."""
    call = of_author(lambda state, flags, inputs, given: function(state, flags, *inputs, *given))
    of_lanes = jax.vmap(jax.vmap(call, (0, None, 0, 0)), (0, 0, 0, None))
    return lambda state, flags, inputs: of_lanes(state, flags, inputs, constants)


def read_tokens(
    step: Step,
    chunked: Step | None,
    initial: State,
    state: State,
    inputs: tuple[jax.Array, ...],
    valid: jax.Array,
    start: jax.Array | None,
    chunk: int,
    constants: tuple[Any, ...] = (),
    before: jax.Array | None = None,
    within: Callable[..., Any] | None = None,
) -> tuple[State, Any]:
    """Reads and writes a sequence; every token reads after its own write.

    Args:
      step: `(state, *inputs of a token, *constants) -> (state, y)` of one lane and head.
      chunked: `(state, sight, *inputs [n, ...], *constants) -> (state, y [n, ...])`, the same for n
        tokens, in which inputs of zeros, the padding, write nothing; None = token by token.
      initial: the state of a document's begin, of one lane and head.
      state: leaves [batch, heads, ...].
      inputs: arrays [batch, heads, n, ...], zero at padding.
      valid: bool [batch, n]; padding comes last.
      start: bool [batch, n], documents begin with these tokens; None = with none.
      chunk: tokens at once; the backward pass keeps only the states between chunks.
      constants: arrays [heads, ...] that all tokens share.
      before: int32 [batch], tokens of the document before these, of memories that are aligned: their
        chunks begin at its multiples of `chunk`; None = wherever.
      within: `(sight, *inputs [n, ...], *constants)`, what tokens of a chunk do to each other whatever
        the state is, a tuple that `chunked` gets in place of inputs and constants. Many chunks do this
        at once, and only the rest one after the other. None = the inputs themselves.

    Returns:
      The state after the last token, and y with leaves [batch, heads, n, ...].
    """

    heads = jax.tree.leaves(state)[0].shape[1]

    def asked(
        what: str, function: Step, words: str, state: State, *given: Any
    ) -> tuple[State, Any]:
        returned = call(what, function, (state, *given), words, axes_hint(initial, heads))
        return require_new_state(named(what, function), state, returned)

    def one(state: State, flags: Any, *token: jax.Array) -> tuple[State, Any]:
        is_token, starts = flags
        if starts is not None:
            state = select_lanes(starts, initial, state)
        new, y = asked('step', step, f'the state, and {GIVEN}', state, *token)
        return select_lanes(is_token, new, state), y

    def by_tokens(state: State, flags: Any, *given: jax.Array) -> tuple[State, Any]:
        tokens, fixed = given[: len(inputs)], given[len(inputs) :]
        return jax.lax.scan(
            lambda state, each: one(state, each[0], *each[1], *fixed), state, (flags, tokens)
        )

    # A count may come first among the arrays of a state.
    dtype = next(
        (each.dtype for each in jax.tree.leaves(state) if jnp.issubdtype(each.dtype, jnp.floating)),
        jnp.float32,
    )

    def prepared(flags: Any, *tokens: jax.Array) -> Any:
        if within is None:
            return tokens
        of_chunk = sight(len(flags[0]), flags[1], dtype)
        return call('within', within, (of_chunk, *tokens), f'the sight, and {GIVEN}')

    def continued(state: State, flags: Any, *ready: Any) -> tuple[State, Any]:
        assert chunked is not None
        words = f'the state, the sight, and {GIVEN if within is None else "what `within` returns"}'
        return asked(
            'chunked', chunked, words, state, sight(len(flags[0]), flags[1], dtype), *ready
        )

    def at_once(state: State, flags: Any, *tokens: jax.Array) -> tuple[State, Any]:
        valid, starts = flags
        if before is not None and starts is not None:  # all tokens of a chunk share a part of it
            state, starts = select_lanes(starts[0], initial, state), starts.at[0].set(False)
        return continued(state, (valid, starts), *prepared((valid, starts), *tokens))

    length, flags = valid.shape[1], (valid, start)
    if length == 1:
        first = jax.tree.map(lambda leaf: leaf[:, 0], flags)
        tokens = tuple(leaf[:, :, 0] for leaf in inputs)
        state, y = _over_heads(one, constants)(state, first, tokens)
        return state, jax.tree.map(lambda leaf: leaf[:, :, None], y)
    read = _over_heads(by_tokens if chunked is None else at_once, constants)
    if chunked is not None and before is not None:
        where = aligned.chunks(before, valid, start, chunk)
        return aligned.read_chunks(read, where, state, inputs, flags)
    chunk = min(chunk, length)
    chunks = -(-length // chunk)
    if chunks == 1:
        return read(state, flags, inputs)
    most = TOGETHER.get(hardware.platform(), 1) if within else 1
    groups = -(-chunks // most)
    together = -(-chunks // groups)
    chunks = groups * together

    def cut(leaf: jax.Array, axis: int) -> jax.Array:
        widths = [(0, 0)] * leaf.ndim
        widths[axis] = (0, chunks * chunk - length)
        leaf = jnp.pad(leaf, widths)
        shape = (*leaf.shape[:axis], chunks, chunk, *leaf.shape[axis + 1 :])
        leaf = jnp.moveaxis(leaf.reshape(shape), axis, 0)
        return leaf if together == 1 else leaf.reshape(groups, together, *leaf.shape[1:])

    def join(leaf: jax.Array) -> jax.Array:
        leaf = leaf if together == 1 else leaf.reshape(chunks, *leaf.shape[2:])
        leaf = jnp.moveaxis(leaf, 0, 2)
        shape = (*leaf.shape[:2], chunks * chunk, *leaf.shape[4:])
        return leaf.reshape(shape)[:, :, :length]

    def as_lanes(leaf: jax.Array) -> jax.Array:
        """[chunks, batch, ...] to [batch x chunks, ...]: every device keeps its lanes."""
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])

    def apart(leaf: jax.Array) -> jax.Array:
        """The inverse of `as_lanes`."""
        return jnp.swapaxes(leaf.reshape(-1, together, *leaf.shape[1:]), 0, 1)

    ahead = _over_heads(lambda _, *given: prepared(*given), constants)
    rest = _over_heads(continued, ())

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(state: State, part: Any) -> tuple[State, Any]:
        if together == 1:
            return read(state, *part)
        ready = jax.tree.map(apart, ahead((), *jax.tree.map(as_lanes, part)))
        return jax.lax.scan(lambda state, chunk: rest(state, *chunk), state, (part[0], ready))

    parts = (
        jax.tree.map(lambda leaf: cut(leaf, 1), flags),
        jax.tree.map(lambda leaf: cut(leaf, 2), inputs),
    )
    state, y = jax.lax.scan(body, state, parts)
    return state, jax.tree.map(join, y)
