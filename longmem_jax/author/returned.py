"""What the author's functions return, checked while they are traced: the error names the function."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.errors import UsageError


def require_inputs(memory: str, given: Any, heads: int, n: int) -> None:
    """Raises `UsageError` unless `inputs` gave arrays [heads, n, ...]; groups of heads may share one."""
    if not isinstance(given, (tuple, list)):
        raise UsageError(
            f'{memory}.inputs: gave a {type(given).__name__}; return a tuple of arrays, such as (k, v)'
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


def require_output(memory: str, y: Any, shape: Sequence[int]) -> None:
    """Raises `UsageError` unless `output` gave an array [n, d_model]."""
    if jnp.shape(y) != tuple(shape):
        raise UsageError(
            f'{memory}.output: gave the shape {list(jnp.shape(y))}: must be [n, d_model], here '
            f'{list(shape)}; self.projections.out makes it of [heads, n, head_dim]'
        )


def require_new_state(function: str, before: Any, returned: Any) -> tuple[Any, Any]:
    """What `step` or `chunked` returned: a state like the one `before`, and what is read.

    Raises:
      UsageError: it is something else.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UsageError(f'{function}: must return two things, the new state and y')
    found, wanted = _shown(returned[0]), _shown(before)
    if found != wanted:
        raise UsageError(
            f'{function}: gives the new state {found}: must be like that of `state`, {wanted}'
        )
    return returned


def _shown(state: Any) -> str:
    """Shape and dtype of every leaf, and the containers."""
    return str(jax.tree.map(lambda leaf: f'{leaf.dtype}{list(jnp.shape(leaf))}', state))
