"""Some heads after the others, where scores by distance of all of them would be too large an array.

They are one float32 array [heads, lanes, queries, rows]: with 8 lanes of 2,048 queries and 4,096 keys
before these every head has 512 MiB. And offsets are int32 in Triton: no array may have 2^31 numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.fused_plan import Inputs, Plan

LARGEST = 1 << 28  # numbers of such an array; 1 GiB
# Where the axis of heads is; `columns` have none, `fetch` is not read.
AXIS = dict(
    queries=1, keys=1, values=1, positions=1, table=0, bias=0, remaining=1, seeds=1, out=1, sums=1,
    gradient=1,
)  # fmt: skip


def forward(
    function: Callable[..., tuple[jax.Array, jax.Array]], plan: Plan, inputs: Inputs
) -> tuple[jax.Array, jax.Array]:
    """`function(plan, inputs)` of all heads: the attention, and its sums."""
    groups = number(plan, inputs)
    if groups == 1:
        return function(plan, inputs)
    split, rest = _split(inputs._asdict(), groups, inputs.queries.shape)
    found = jax.lax.map(lambda part: function(plan, _inputs(rest, part)), split)
    out, sums = (_joined(array, 1) for array in found)
    return out, sums


def backward(
    function: Callable[..., dict[str, jax.Array]],
    plan: Plan,
    inputs: Inputs,
    **others: jax.Array,
) -> dict[str, jax.Array]:
    """`function(plan, inputs, **others)` of all heads: derivatives by name."""
    groups = number(plan, inputs)
    if groups == 1:
        return function(plan, inputs, **others)
    split, rest = _split(inputs._asdict() | others, groups, inputs.queries.shape)

    def one(part: dict[str, jax.Array]) -> dict[str, jax.Array]:
        own = {name: part.pop(name) for name in others}
        return function(plan, _inputs(rest, part), **own)

    found: dict[str, jax.Array] = jax.lax.map(lambda part: one(dict(part)), split)
    # A table that heads share has a part of its derivative from each group.
    return {
        name: array.sum(axis=0)
        if name == 'table' and name not in split
        else _joined(array, AXIS[name])
        for name, array in found.items()
    }


def number(plan: Plan, inputs: Inputs) -> int:
    """Of groups: the fewest that are small enough; they do not part heads that share keys."""
    if inputs.table is None and inputs.bias is None:
        return 1
    batch, heads, queries, _ = inputs.queries.shape
    shared = heads // plan.group
    whole = batch * heads * queries * plan.rows
    return next(
        groups
        for groups in range(1, shared + 1)
        if shared % groups == 0 and (whole // groups <= LARGEST or groups == shared)
    )


def _split(
    arrays: dict[str, Any], groups: int, shape: tuple[int, ...]
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Arrays with groups of heads in front, and those that all heads share."""
    if arrays['seeds'] is not None:
        arrays = arrays | {'seeds': arrays['seeds'].reshape(shape[:2])}
    split, rest = {}, {}
    for name, array in arrays.items():
        axis = AXIS.get(name)
        if array is None or axis is None or array.shape[axis] == 1:
            rest[name] = array
            continue
        cut = (*array.shape[:axis], groups, -1, *array.shape[axis + 1 :])
        split[name] = jnp.moveaxis(array.reshape(cut), axis, 0)
    return split, rest


def _inputs(rest: dict[str, Any], part: dict[str, jax.Array]) -> Inputs:
    seeds = part.get('seeds')
    return Inputs(**rest | part | {'seeds': None if seeds is None else seeds.reshape(-1)})


def _joined(array: jax.Array, axis: int) -> jax.Array:
    """The inverse of `_split`, of one array."""
    array = jnp.moveaxis(array, 0, axis)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
