"""Scores by distance on GPUs, float32 [heads, lanes, queries, rows], of as many heads as have room.

Heads are in front, as in the product that makes them, whose result would be copied otherwise. With 8
lanes of 2,048 queries and 4,096 keys before these every head has 384 MiB. And offsets are int32 in
Triton: no array may have 2^31 numbers. So some heads are read after the others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.fused_plan import Inputs, Plan

NARROWEST = 16  # every side of Triton's products, which is a power of two
LARGEST = 1 << 28  # numbers of such an array; 1 GiB
# Where the axis of heads is; `columns` have none, `fetch` is not read.
AXIS = dict(
    queries=1, keys=1, values=1, positions=1, table=0, bias=0, remaining=1, seeds=1, out=1, sums=1,
    gradient=1,
)  # fmt: skip


def rows_read(plan: Plan, inputs: Inputs) -> tuple[int, int]:
    """The first row by distance that is not zero, and the one after the last that is read.

    Or few before and after these. Later rows are for keys after their query, which it does not see.
    """
    last = min(plan.rows, -(-(plan.farthest + 1) // NARROWEST) * NARROWEST)
    if inputs.bias is not None or plan.reach < 0:
        return 0, last
    return max(0, plan.farthest - plan.reach) // NARROWEST * NARROWEST, last


def rows_of(
    inputs: Inputs, first: int, last: int
) -> tuple[jax.Array, Callable[[jax.Array], dict[str, jax.Array]]]:
    """Scores by distance, float32 [heads, batch | 1, queries | 1, rows], and their derivatives.

    Args:
      inputs: of the attention.
      first, last: the rows, see `rows_read`.

    Returns:
      The scores, and a function of the derivative by them, [heads, batch, queries, rows], which
      returns the derivatives by `positions`, `table` and `bias`, those that are there.
    """
    bias, table, positions = inputs.bias, inputs.table, inputs.positions
    rows = jnp.float32(0) if bias is None else bias[:, None, :, first:last]

    def by_bias(change: jax.Array) -> dict[str, jax.Array]:
        """The derivative by the bias, if there is one."""
        if bias is None:
            return {}
        found = change.astype(jnp.float32).sum(axis=(1, 2))[:, None]
        return {'bias': jnp.pad(found, ((0, 0), (0, 0), (first, bias.shape[2] - last)))}

    if table is None or positions is None:
        return rows, by_bias
    queries = jnp.swapaxes(positions, 0, 1)
    of_table = 'rd' if table.shape[0] == 1 else 'hrd'  # one for all heads
    vectors = table[0, first:last] if table.shape[0] == 1 else table[:, first:last]

    def product(text: str, left: jax.Array, right: jax.Array) -> jax.Array:
        """Of arrays of the same dtype, in float32."""
        precision = precision_of(left.dtype)
        return jnp.einsum(
            text, left, right, precision=precision, preferred_element_type=jnp.float32
        )

    def derivatives(change: jax.Array) -> dict[str, jax.Array]:
        by_positions = product(f'hbqr,{of_table}->hbqd', change, vectors)
        # As matrices: a product over several axes would first bring their numbers together.
        shared = (table.shape[0], -1)
        by_table = product(
            'hnr,hnd->hrd',
            change.reshape(*shared, change.shape[3]),
            queries.reshape(*shared, queries.shape[3]),
        )
        return by_bias(change) | {
            'positions': jnp.swapaxes(by_positions, 0, 1).astype(queries.dtype),
            'table': jnp.pad(by_table, ((0, 0), (first, table.shape[1] - last), (0, 0))),
        }

    return rows + product(f'hbqd,{of_table}->hbqr', queries, vectors), derivatives


def precision_of(dtype: Any) -> Any:
    """Products of float32 are not in TF32, whose numbers would be those of half precision."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


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
    first, last = rows_read(plan, inputs)
    whole = batch * heads * queries * (last - first)
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
