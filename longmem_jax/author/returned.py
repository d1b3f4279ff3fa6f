"""What the author's functions return, checked while they are traced: the error names the function."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author.called import shown
from longmem_jax.errors import UsageError, visible


def require_inputs(memory: str, given: Any, heads: int, n: int) -> None:
    """Raises `UsageError` unless `inputs` gave arrays [heads, n, ...]; groups of heads may share one."""
    if not isinstance(given, (tuple, list)):
        raise UsageError(
            f'{memory}.inputs: gave {shown(given)}; return a tuple of arrays, such as (k, v) or (v,)'
        )
    for number, leaf in enumerate(given):
        shape = getattr(leaf, 'shape', None)
        if shape is None or len(shape) < 2 or not shape[0] or heads % shape[0] or shape[1] != n:
            what = type(leaf).__name__ if shape is None else f'an array {list(shape)}'
            raise UsageError(
                f'{memory}.inputs: number {number} is {what}: must be an array [heads, n, ...], here '
                f'[{heads}, {n}, ...], or with a number of heads that divides {heads}'
            )


def require_logged(memory: str, logged: Mapping[str, Any], n: int) -> None:
    """Raises `UsageError` unless all that `lane.log` was given is [heads, n] or [n]."""
    for name, values in logged.items():
        shape = jnp.shape(values)
        if name == 'memory_size':
            raise UsageError(
                f'{memory}: lane.log({name}=...): every memory has that; use another name'
            )
        if len(shape) not in (1, 2) or shape[-1] != n:
            raise UsageError(
                f'{memory}: lane.log({name}=...) has the shape {list(shape)}: must be [heads, n] '
                f'or [n], with n = {n}'
            )


def require_output(memory: str, y: Any, shape: Sequence[int], read: Any, hint: str = '') -> None:
    """Raises `UsageError` unless `output` gave an array [n, d_model]; `read`: its `y`."""
    if not hasattr(y, 'dtype') or jnp.shape(y) != tuple(shape):
        raise UsageError(
            f'{memory}.output: gave {shown(y)}: must be [n, d_model], here {list(shape)}; of '
            f'[heads, n, head_dim] self.projections.out makes it. y is {shown(read)}. {hint}'.strip()
        )


def require_state(memory: str, state: Any) -> Any:
    """What `state` gave: at least one array, and nothing else; raises `UsageError`."""
    leaves = jax.tree.leaves(state)
    if not leaves or not all(hasattr(leaf, 'dtype') for leaf in leaves):
        what = next((leaf for leaf in leaves if not hasattr(leaf, 'dtype')), state)
        raise UsageError(
            f'{memory}.state: gave {visible(repr(what), 60)}; return an array, or a dict, tuple or '
            'PyTreeNode of arrays, of one lane and head, such as '
            'jnp.zeros((self.settings.head_dim,), self.float32)'
        )
    return state


def axes_hint(state: Any, heads: int) -> str:
    """What may be wrong where the arrays of a state, of one lane and head, begin with `heads`."""
    if not any(
        jnp.ndim(leaf) > 1 and jnp.shape(leaf)[0] == heads for leaf in jax.tree.leaves(state)
    ):
        return ''
    return (
        f'`state` gives {shown(state)}: it must be of one lane and head, and the library adds both '
        'axes. Is there one too many?'
    )


def require_new_state(function: str, before: Any, returned: Any) -> tuple[Any, Any]:
    """What `step` or `chunked` returned: a state like the one `before`, and what is read.

    Raises:
      UsageError: it is something else.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UsageError(
            f'{function}: gave {shown(returned)}; return two things, the new state and y, what is read'
        )
    found, wanted = shown(returned[0]), shown(before)
    if found != wanted:
        cast = ''
        if re.sub(r'\w+\[', '[', found) == re.sub(r'\w+\[', '[', wanted):
            cast = '; cast it, such as new.astype(old.dtype), and declare it in `state` as self.float32'
        raise UsageError(
            f'{function}: gives the new state {found}: must be like that of `state`, {wanted}{cast}'
        )
    return returned
