"""Calls of the methods of a layer: what they return is checked, and an error names the method."""

from typing import Any

import jax

from longmem_jax.author.called import shown
from longmem_jax.errors import UsageError
from longmem_jax.segment import Aux, Segment, State


def initial(layer: Any, batch_size: int) -> State:
    """The state that a layer begins with; raises `UsageError` unless every leaf is [batch, ...]."""
    state = layer.initial_state(batch_size)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if getattr(leaf, 'shape', ())[:1] != (batch_size,):
            raise UsageError(
                f'{type(layer).__name__}.initial_state: state{jax.tree_util.keystr(path)} is '
                f'{shown(leaf)}: must be an array [batch, ...], here [{batch_size}, ...]'
            )
    return state


def read(layer: Any, x: Any, state: State, segment: Segment, train: bool) -> tuple[Any, State, Aux]:
    """A layer reads a segment: (y, the new state, `Aux`).

    Raises:
      UsageError: it is something else, y is not like `x`, or the new state not like `state`.
    """
    where, returned = f'{type(layer).__name__}.__call__', layer(x, state, segment, train=train)
    y, new, aux = _parts(where, returned, 'y', 'the new state', 'an Aux')
    if not isinstance(aux, Aux):
        raise UsageError(
            f'{where}: gave {shown(aux)} as its Aux: must be Aux(losses={{}}, metrics={{}}) of '
            'longmem_jax.segment, with numbers by name'
        )
    _require_like_x(where, y, x)
    _require_like(where, 'the new state', new, 'the state before', state)
    return y, new, aux


def extended(
    layer: Any, x: Any, cache: Any, index: int | jax.Array, count: jax.Array
) -> tuple[Any, Any]:
    """A layer reads the next tokens of an open segment: (y, the cache); raises as `read`."""
    where = f'{type(layer).__name__}.extend'
    y, new = _parts(where, layer.extend(x, cache, index, count), 'y', 'the cache')
    _require_like_x(where, y, x)
    _require_like(where, 'the cache', new, 'the cache before', cache)
    return y, new


def closed(layer: Any, state: State, cache: Any, count: jax.Array) -> State:
    """The state after a layer has closed a segment; raises as `read`."""
    where, new = f'{type(layer).__name__}.close_segment', layer.close_segment(state, cache, count)
    _require_like(where, 'the new state', new, 'the state before', state)
    return new


def _parts(where: str, returned: Any, *names: str) -> tuple[Any, ...]:
    if not isinstance(returned, tuple) or len(returned) != len(names):
        raise UsageError(
            f'{where}: gave {shown(returned)}; return {len(names)} things: {", ".join(names)}'
        )
    return returned


def _require_like_x(where: str, y: Any, x: Any) -> None:
    if getattr(y, 'shape', None) != x.shape:
        raise UsageError(
            f'{where}: gave {shown(y)} as y, what it read: must have the shape of x, {list(x.shape)}'
        )


def _require_like(where: str, what: str, new: Any, like: str, old: Any) -> None:
    """Raises unless two states have leaves of the same names, shapes and dtypes."""
    found, wanted = _leaves(new), _leaves(old)
    for name in wanted | found:
        if found.get(name) != wanted.get(name):
            needed = wanted.get(name)
            raise UsageError(
                f'{where}: {what}{name} is {found.get(name, "not there")}: must be '
                f'{needed or "left out"}, as in {like}, which begins as `initial_state` says'
                + ('; every leaf is [batch, ...], and its dtype stays' if needed else '')
            )


def _leaves(state: Any) -> dict[str, str]:
    """Leaves by path; without what blocks of a model hand on, which is there in some only."""
    state = state.replace(carried={}) if hasattr(state, 'carried') else state
    return {
        jax.tree_util.keystr(path): shown(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
