"""Softmax attention in one kernel, for TPUs and for NVIDIA GPUs, whose scores never leave fast memory.

The same numbers as `attention.attend` and `attention_products.mix` up to rounding. Scores by distance
(Transformer-XL's table, T5's and ALiBi's biases), windows and the soft masks of learned spans are
computed block by block, and blocks that no query sees are skipped. `fused_rules` passes it `Rules`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from longmem_jax.kernels.fused_devices import compiled, on_devices
from longmem_jax.kernels.fused_plan import LANES, NEVER_SINCE, READ, Inputs, Plan
from longmem_jax.kernels.gpu import fused_attention as gpu
from longmem_jax.kernels.tpu.fused_backward import backward
from longmem_jax.kernels.tpu.fused_forward import forward

FORWARD = {'tpu': forward, 'cuda': gpu.forward}
BACKWARD = {'tpu': backward, 'cuda': gpu.backward}
# Largest blocks: products of this size keep the matrix unit busy, and their scores fit. On TPUs both
# are multiples of 128.
BLOCK_QUERIES, BLOCK_KEYS = 256, 512


@dataclasses.dataclass(frozen=True)
class ByDistance:
    """Scores that depend on the distance from query to key, for a static distance of query 0 to key 0.

    Attributes:
      offset: key index of query 0.
      queries: [batch, heads, queries, head_dim], scaled, that meet `table`; None = no table.
      table: [heads | 1, distances, head_dim], from distance 0 on.
      bias: float [heads, distances], from distance 0 on, added to the scaled scores; None = none.
      zero_beyond: distances beyond the table score 0, otherwise they have its last row.
    """

    offset: int
    queries: jax.Array | None = None
    table: jax.Array | None = None
    bias: jax.Array | None = None
    zero_beyond: bool = False


def draw_seeds(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Seeds of dropout, int32 `shape`."""
    return jax.lax.bitcast_convert_type(jax.random.bits(key, shape, jnp.uint32), jnp.int32)


def attend_fused(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    since: jax.Array,
    until: jax.Array,
    by_distance: ByDistance | None = None,
    remaining: jax.Array | None = None,
    ramp: int = 0,
    numbers: jax.Array | None = None,
    dropout: float = 0.0,
    seeds: jax.Array | None = None,
) -> jax.Array:
    """Attention in which query i sees the keys with since <= i < until; none seen gives zeros.

    Args:
      queries: [batch, heads, queries, head_dim], scaled; bfloat16 or float32.
      keys, values: [batch, kv_heads, keys, head_dim]; kv_heads divides heads.
      since, until: int32 [batch | 1, keys], numbers of queries.
      by_distance: scores by distance; None = none.
      remaining: float32 [batch | 1, heads | 1, keys], tokens from query 0 on until the soft mask of
        a key begins to fall, to 0 within `ramp` tokens, as in `attention_products.mix`; None = no
        soft mask. It has a derivative.
      ramp: above 0 with `remaining`.
      numbers: int32 [keys], of the keys in the draws of dropout; None = 0, 1, ...
      dropout: share of the weights that is dropped, in other draws than those of the plain attention.
      seeds: int32 [batch, heads], of dropout; needed if it is above 0.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `values`.
    """
    heads, num_queries = queries.shape[1:3]
    num_keys = keys.shape[2]
    by_distance = ByDistance(0) if by_distance is None else by_distance
    block_queries = min(BLOCK_QUERIES, -(-num_queries // LANES) * LANES)
    block_keys = min(BLOCK_KEYS, -(-num_keys // LANES) * LANES)
    plan = Plan(
        block_queries=block_queries,
        block_keys=block_keys,
        num_queries=-(-num_queries // block_queries) * block_queries,
        num_keys=-(-num_keys // block_keys) * block_keys,
        num_heads=heads,
        group=heads // keys.shape[1],
        shared_table=by_distance.table is not None and by_distance.table.shape[0] < heads,
        ramp=ramp if remaining is not None else 0,
        offset=by_distance.offset,
        dropout=dropout,
    )
    if by_distance.zero_beyond and by_distance.table is not None:
        plan = dataclasses.replace(plan, reach=by_distance.table.shape[1] - 1)
    more_queries, more_keys = plan.num_queries - num_queries, plan.num_keys - num_keys

    def padded(array: jax.Array, axis: int, more: int, value: Any = 0) -> jax.Array:
        if not more:
            return array
        padding = [(0, more if i == axis else 0) for i in range(array.ndim)]
        return jnp.pad(array, padding, constant_values=value)

    if numbers is None:
        numbers = jnp.arange(num_keys, dtype=jnp.int32)
    since, until, numbers = jnp.broadcast_arrays(since, until, numbers[None])
    columns = jnp.stack(
        [
            padded(since, 1, more_keys, NEVER_SINCE),
            *(padded(a, 1, more_keys) for a in (until, numbers)),
        ],
        axis=1,
    ).astype(jnp.int32)
    positions, table, bias = by_distance.queries, by_distance.table, by_distance.bias
    if positions is not None and table is not None:
        positions = padded(positions, 2, more_queries)
        table = _by_falling_distance(table, plan, by_distance.zero_beyond)
    if bias is not None:
        bias = _by_falling_distance(bias.astype(jnp.float32)[:, :, None], plan, False)
        bias = jnp.swapaxes(bias, 1, 2)
    if remaining is not None:
        remaining = padded(remaining.astype(jnp.float32), 2, more_keys)[:, :, None]
    inputs = Inputs(
        queries=padded(queries, 2, more_queries),
        keys=padded(keys, 2, more_keys),
        values=padded(values, 2, more_keys),
        positions=positions,
        table=table,
        bias=bias,
        remaining=remaining,
        columns=columns,
        fetch=_fetched(plan, columns, remaining),
        seeds=seeds if dropout else None,
    )
    along: dict[str, tuple[str, ...]] = {name: ('lanes', 'heads') for name in Inputs._fields}
    along |= {'table': ('heads',), 'bias': ('heads',), 'columns': ('lanes',)}
    out = on_devices(
        lambda **arrays: _local(plan, Inputs(**arrays)),
        inputs._asdict(),
        along,
        inputs.queries.shape[0],
        inputs.keys.shape[1],
    )
    return out[:, :, :num_queries]


def _by_falling_distance(table: jax.Array, plan: Plan, zero_beyond: bool) -> jax.Array:
    """Rows [heads | 1, plan.rows, ...] from `plan.farthest` down; below distance 0 any row."""
    table = table[:, : plan.farthest + 1][:, ::-1]
    beyond = plan.farthest + 1 - table.shape[1]
    before = jnp.zeros_like(table[:, :1]) if zero_beyond else table[:, :1]
    below = plan.rows - (plan.farthest + 1)
    parts = [jnp.repeat(before, beyond, axis=1), table[:, : plan.rows]]
    parts.append(jnp.repeat(jnp.zeros_like(table[:, :1]), max(below, 0), axis=1))
    return jnp.concatenate(parts, axis=1)[:, : plan.rows]


def _fetched(plan: Plan, columns: jax.Array, remaining: jax.Array | None) -> jax.Array:
    """`Inputs.fetch` as [lanes | 1, heads | 1, blocks of queries, blocks of keys]."""
    since, until = columns[:, None, 0], columns[:, None, 1]
    if remaining is not None:
        last = jnp.ceil(jax.lax.stop_gradient(remaining[:, :, 0]) + plan.ramp)
        until = jnp.minimum(until, jnp.clip(last, -1, NEVER_SINCE).astype(jnp.int32))
    first = jnp.arange(plan.blocks[0], dtype=jnp.int32)[:, None] * plan.block_queries
    from_query = jnp.maximum(since[:, :, None], first)
    to_query = jnp.minimum(until[:, :, None], first + plan.block_queries)
    seen = (from_query < to_query).reshape(
        *from_query.shape[:1], -1, plan.blocks[0], plan.blocks[1], plan.block_keys
    )
    number = jnp.arange(plan.blocks[1], dtype=jnp.int32)
    some = seen.any(axis=-1)
    last = jax.lax.cummax(jnp.where(some, number, -1), axis=3)
    return jnp.where(last < 0, jnp.argmax(some, axis=3, keepdims=True).astype(jnp.int32), last)


def _local(plan: Plan, inputs: Inputs) -> jax.Array:
    """The attention of the lanes and heads of one device."""
    plan = dataclasses.replace(
        plan,
        num_heads=inputs.queries.shape[1],
        per_lane=inputs.fetch.shape[0] > 1,
        per_head=inputs.fetch.shape[1] > 1,
    )
    inputs = inputs._replace(
        fetch=inputs.fetch.reshape(-1),
        seeds=None if inputs.seeds is None else inputs.seeds.reshape(-1),
    )
    return _attend(plan, inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, inputs: Inputs) -> jax.Array:
    return _attend_forward(plan, inputs)[0]


def _attend_forward(plan: Plan, inputs: Inputs) -> tuple[jax.Array, Any]:
    out, sums = (checkpoint_name(x, READ) for x in compiled(FORWARD, plan, inputs))
    return out, (inputs, out, sums)


def _attend_backward(plan: Plan, residuals: Any, gradient: jax.Array) -> tuple[Inputs]:
    inputs, out, sums = residuals
    found: dict[str, jax.Array] = compiled(BACKWARD, plan, inputs, out, sums, gradient)
    if plan.group > 1:
        for name in ('keys', 'values'):
            batch, heads, *rest = found[name].shape
            grouped = found[name].reshape(batch, heads // plan.group, plan.group, *rest)
            found[name] = grouped.sum(axis=2)
    if inputs.remaining is not None:
        axes = [axis for axis in (0, 1) if inputs.remaining.shape[axis] == 1]
        found['remaining'] = found['remaining'].sum(axis=axes, keepdims=True)
    gradients: dict[str, Any] = {
        name: found[name].astype(array.dtype) if name in found else None
        for name, array in inputs._asdict().items()
    }
    return (Inputs(**gradients),)


_attend.defvjp(_attend_forward, _attend_backward)
