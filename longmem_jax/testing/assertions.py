"""Comparisons whose failures state the broken promise, where, by how much, and what to do."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

NOT_FINITE = (
    'the layer gives numbers that are not finite, so no promise can be checked: look for a log of 0, '
    'a division by 0, a decay above 1; set jax.config.update("jax_debug_nans", True)'
)


def _indices(bad: np.ndarray, axes: tuple[str, ...]) -> str:
    """'segment 1; row 0; position 3, 4': where `bad` is True along its first axes."""
    if not axes:
        return ''
    where = np.asarray(bad.any(axis=tuple(range(len(axes), bad.ndim))))
    return '; '.join(
        f'{axis} {", ".join(map(str, np.unique(index)))}'
        for axis, index in zip(axes, np.nonzero(where), strict=True)
    )


def assert_close(
    found: Any,
    wanted: Any,
    broken: str,
    fix: str,
    *,
    axes: tuple[str, ...] = (),
    atol: float,
    rtol: float = 1e-6,
) -> None:
    """Two pytrees are equal to `atol + rtol * |wanted|`.

    Args:
      found, wanted: pytrees of arrays of equal shapes.
      broken: what has happened when they differ: 'padding at positions (0, 1) changed the logits'.
      fix: what to do then.
      axes: names of the first axes of every leaf; their indices are in the message.
      atol, rtol: tolerance; both 0 = equal in every bit.
    """
    same: Any = jax.tree.structure(found)
    assert same == jax.tree.structure(wanted), f'{broken}: other leaves. {fix}'
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    for (path, leaf), other in pairs:
        leaf, other = (np.asarray(part, np.float64) for part in (leaf, other))
        name = f' ({jax.tree_util.keystr(path)})' if path else ''
        assert leaf.shape == other.shape, f'{broken}{name}: {leaf.shape}, not {other.shape}. {fix}'
        with np.errstate(invalid='ignore'):
            difference = np.where(leaf == other, 0.0, np.abs(leaf - other))
        bad = ~(difference <= atol + rtol * np.abs(other))  # NaN is bad
        if bad.any():
            where = _indices(bad, axes)
            at = f'{name}{" at " if where else ""}{where}'
            if not (np.isfinite(leaf).all() or np.isfinite(other).all()):
                raise AssertionError(f'{NOT_FINITE}. Found where {broken}{at}.')
            allowed = atol + rtol * np.abs(other)[bad].max()
            raise AssertionError(
                f'{broken}{at}: {bad.sum()} of {bad.size} values, '
                f'by up to {difference[bad].max():.2g}, allowed {allowed:.2g}.\n{fix}'
            )


def assert_equal(
    found: Any, wanted: Any, broken: str, fix: str, *, axes: tuple[str, ...] = ()
) -> None:
    """Two pytrees are equal in every bit; arguments as in `assert_close`."""
    assert_close(found, wanted, broken, fix, axes=axes, atol=0.0, rtol=0.0)


def assert_differs(found: Any, other: Any, broken: str, fix: str, *, by: float = 0.0) -> None:
    """Some value of two arrays differs by more than `by`."""
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(other, np.float64)).max()
    assert np.isfinite(difference), f'{NOT_FINITE}. Found instead of: {broken}.'
    assert difference > by, f'{broken}: the largest difference is {difference:.2g}.\n{fix}'


def assert_same_types(found: Any, wanted: Any, broken: str, fix: str) -> None:
    """Two pytrees have the same leaves, shapes and dtypes."""
    found, wanted = (
        {
            jax.tree_util.keystr(path): f'{leaf.dtype}{list(leaf.shape)}'
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (found, wanted)
    )
    changed = [
        f'{path}: {found.get(path, "no leaf")}, not {wanted.get(path, "a leaf")}'
        for path in sorted({*found, *wanted})
        if found.get(path) != wanted.get(path)
    ]
    assert not changed, f'{broken}: {"; ".join(changed)}.\n{fix}'


def assert_finite(tree: Any, broken: str, fix: str) -> None:
    """No leaf has NaN or infinity."""
    bad = [
        jax.tree_util.keystr(path) or 'NaN or infinity'
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if not np.isfinite(leaf).all()
    ]
    assert not bad, f'{broken}: {", ".join(bad)}.\n{fix}'


def _ends_after_one_turn(equation: Any) -> bool:
    """Whether a `while` of a jaxpr waits on a carried flag that its body sets to False."""
    condition, body = (equation.params[name].jaxpr for name in ('cond_jaxpr', 'body_jaxpr'))
    carried = condition.invars[equation.params['cond_nconsts'] :]
    if condition.eqns or condition.outvars[0] not in carried:
        return False
    after = body.outvars[carried.index(condition.outvars[0])]
    return isinstance(after, Literal) and not after.val


def assert_no_open_loop(program: Any, broken: str, fix: str) -> None:
    """No loop of a jaxpr, or of one inside it, runs for as long as its data say.

    A loop of one turn or none, which stands for a branch, may.
    """
    whiles = [each for each in equations(program) if each.primitive.name == 'while']
    loops = sum(not _ends_after_one_turn(equation) for equation in whiles)
    assert not loops, f'{broken}: {loops} open loops.\n{fix}'


def equations(program: Any) -> Iterator[Any]:
    """All equations of a jaxpr, and of those inside it."""
    waiting = [program]
    while waiting:
        part = waiting.pop()
        if hasattr(part, 'eqns'):
            for equation in part.eqns:
                yield equation
                waiting += equation.params.values()
        elif hasattr(part, 'jaxpr'):
            waiting.append(part.jaxpr)
        elif isinstance(part, (tuple, list)):
            waiting += part
