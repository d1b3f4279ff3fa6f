"""The operations of a step that chooses on the device what it computes, as many as ran.

XLA counts a choice as its largest branch. The program before compilation (a jaxpr) has all branches, and
layers report in `Aux.sizes` which ones were taken: the difference is taken off XLA's count.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jax.interpreters import partial_eval

# Counted as XLA does: nothing for what moves numbers, and not as operations what it calls
# transcendental; one for every other number that is computed.
MOVES = frozenset(
    'broadcast_in_dim concatenate copy dynamic_slice dynamic_update_slice gather iota pad reshape rev '
    'scatter slice split squeeze transpose bitcast_convert_type sharding_constraint random_wrap '
    'random_unwrap optimization_barrier name'.split()
)
TRANSCENDENTAL = frozenset(
    'cbrt cos erf erf_inv exp exp2 expm1 log log1p logistic pow rsqrt sin sqrt tan tanh'.split()
)
_LABEL = re.compile(r'.*\bsizes((?:_\d+)+)')  # of `layers.switching.label`


@dataclasses.dataclass(frozen=True)
class Choice:
    """A place where a program chooses.

    Attributes:
      sizes: of the memory that the branches read; () = other branches.
      operations: of each branch on one device, bodies of loops once.
    """

    sizes: tuple[int, ...]
    operations: tuple[float, ...]


def choices(jaxpr: Any, devices: int, scope: str = '') -> Iterator[Choice]:
    """All choices of a program, a jaxpr split over `devices`, between branches that differ in their
    operations.
    """
    for equation in jaxpr.eqns:
        inside = f'{scope}/{equation.source_info.name_stack}'
        if equation.primitive.name == 'cond':
            operations = tuple(
                operations_of(_needed(branch.jaxpr), devices)
                for branch in equation.params['branches']
            )
            # A platform is not chosen on the device.
            if len(set(operations)) > 1 and not equation.params.get('branches_platforms'):
                found = _LABEL.match(inside)
                sizes = tuple(map(int, found[1].split('_')[1:])) if found else ()
                yield Choice(sizes if len(sizes) == len(operations) else (), operations)
            continue
        for inner in _inner(equation):
            yield from choices(inner, devices // _split(equation), inside)


def operations_of(jaxpr: Any, devices: int) -> float:
    """Operations on one of `devices`: bodies of loops once, of branches the largest."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, _inner(equation)
        out = sum(math.prod(var.aval.shape) for var in equation.outvars)
        estimate = equation.params.get('cost_estimate')
        if name == 'cond':
            total += max(operations_of(branch, devices) for branch in inner)
        elif estimate is not None:  # a kernel
            total += estimate.flops / devices
        elif inner and not name.startswith(('reduce', 'scatter')):
            total += sum(operations_of(each, devices // _split(equation)) for each in inner)
        elif name == 'dot_general':
            (contracted, _), _ = equation.params['dimension_numbers']
            shape = equation.invars[0].aval.shape
            total += 2 * out * math.prod(shape[axis] for axis in contracted) / devices
        elif name.startswith('reduce') or name == 'cumsum':
            total += math.prod(equation.invars[0].aval.shape) / devices
        elif name not in MOVES | TRANSCENDENTAL:
            total += out / devices
    return total


def not_run(found: list[Choice], metrics: Mapping[str, Any]) -> float:
    """Operations of one segment that were counted and did not run.

    `metrics`: `layers.switching.label` of sizes to how many times each was taken, float [sizes].

    Raises:
      KeyError: nothing says which branch of a choice was taken; see `all_known`.
    """
    reports = {_sizes(name): np.asarray(taken, float) for name, taken in metrics.items()}
    spared = 0.0
    for choice in found:
        sizes = _reported(choice, reports)
        share = reports[sizes] / max(reports[sizes].sum(), 1e-9)
        # What reads 64 or 128 of a memory is reported; what only has a size of 128 took that.
        index = np.searchsorted(choice.sizes, sizes)
        spared += max(choice.operations) - float(share @ np.asarray(choice.operations)[index])
    return spared


def all_known(found: list[Choice], names: Any) -> bool:
    """Whether the names of metrics, as in `not_run`, say of every choice which branch was taken."""
    reports = [_sizes(name) for name in names]
    return all(_reported(choice, reports) is not None for choice in found)


def is_report(name: str) -> bool:
    """Whether a metric says which sizes of a memory were read, by its name."""
    return name.startswith('sizes_')


def _reported(choice: Choice, reports: Any) -> tuple[int, ...] | None:
    """The sizes of the report that says what was chosen: the same ones, or more; None = no report."""
    more = [sizes for sizes in reports if choice.sizes and set(choice.sizes) <= set(sizes)]
    return min(more, key=len, default=None)


def _sizes(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split('_')[1:]))


def _needed(jaxpr: Any) -> Any:
    """Without what no result depends on, which XLA leaves out."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _inner(equation: Any) -> list[Any]:
    """The programs inside an operation."""
    values = [
        each
        for value in equation.params.values()
        for each in (value if isinstance(value, tuple | list) else [value])
    ]
    values = [getattr(value, 'jaxpr', value) for value in values]
    return [value for value in values if hasattr(value, 'eqns')]


def _split(equation: Any) -> int:
    """Devices that the program inside an operation is one's share of; 1 = it is the whole."""
    if equation.primitive.name != 'shard_map':
        return 1
    (program,) = _inner(equation)
    # Some programs take nothing, such as those that make an empty memory.
    sizes = [
        [math.prod(var.aval.shape) for var in (*part.invars, *part.outvars)]
        for part in (equation, program)
    ]
    return max((whole // share for whole, share in zip(*sizes, strict=True) if share), default=1)
