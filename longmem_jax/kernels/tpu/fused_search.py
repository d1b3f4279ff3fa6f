"""Attention to the nearest rows of a ring in one kernel for TPUs: no list of rows, no gathers.

The k nearest rows of a query are those with a score of at least its k-th largest one, its limit. For
a block of queries, the rows pass twice: first the largest scores of bins of rows are kept, and the
limit is found among these; then the rows that reach it are attended to. Scores never leave fast memory.

A bin is every `block_rows`-th row, and keeps `LEVELS` scores. Where more than that of the k nearest
share a bin, the limit is lower: the query reads all of the k nearest, and a row more. For k = 32 of many
rows in 512 bins that happens to one query in about 4,000 by chance. Rows of exactly the limit are all
read, too.

Rows at a distance of a multiple of `block_rows` share a bin. Text that repeats itself at such distances
has more in one: if all nearest of 65,536 rows do, a query reads 157 rows, not 32; of 8,192 rows 45.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.attention_products import NEVER
from longmem_jax.kernels.float_order import as_floats, as_integers
from longmem_jax.kernels.fused_devices import compiled, on_devices
from longmem_jax.kernels.fused_plan import LANES
from longmem_jax.kernels.pallas import pl, pltpu
from longmem_jax.kernels.tpu import fused_blocks as blocks
from longmem_jax.kernels.tpu import fused_softmax as softmax
from longmem_jax.kernels.tpu.fused_forward import VMEM_LIMIT

BLOCK_QUERIES, BLOCK_ROWS = 512, 512
LEVELS = 3
MOST = 256  # the largest k: more would crowd the bins


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a search.

    Attributes:
      k: rows that a query reads.
      block_queries, block_rows: sizes of a block.
      interpret: run by Pallas's interpreter, on any machine.
    """

    k: int
    block_queries: int
    block_rows: int
    interpret: bool = False


def attend_nearest(
    queries: jax.Array, keys: jax.Array, values: jax.Array, count: jax.Array, k: int
) -> jax.Array:
    """Attention of every query to the k rows with the largest scores; none filled gives zeros.

    Args:
      queries: [batch, heads, queries, head_dim], scaled; bfloat16 or float32. They have derivatives,
        the rows have none.
      keys, values: [batch, heads, rows, head_dim].
      count: int32 [batch], the filled rows, the first ones; others may hold anything.
      k: at most `MOST`.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `queries`.
    """
    number = queries.shape[2]
    block_queries = min(BLOCK_QUERIES, -(-number // LANES) * LANES)
    plan = Plan(k, block_queries, min(BLOCK_ROWS, -(-keys.shape[2] // LANES) * LANES))
    padding = [(0, 0), (0, 0), (0, -number % block_queries), (0, 0)]
    keys, values = jax.lax.stop_gradient((keys, values))
    out = on_devices(
        functools.partial(_local, plan),
        dict(
            queries=jnp.pad(queries, padding),
            keys=keys,
            values=values,
            count=jnp.minimum(count, keys.shape[2]).astype(jnp.int32),
        ),
        {name: ('lanes', 'heads') for name in ('queries', 'keys', 'values')}
        | {'count': ('lanes',)},
        *keys.shape[:2],
    )
    return out[:, :, :number]


def _local(plan: Plan, queries: Any, keys: Any, values: Any, count: Any) -> jax.Array:
    return _attend(plan, queries, keys, values, count)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, *arrays: jax.Array) -> jax.Array:
    return compiled({'tpu': _forward}, plan, *arrays)[0]


def _attend_forward(plan: Plan, *arrays: jax.Array) -> tuple[jax.Array, Any]:
    found = compiled({'tpu': _forward}, plan, *arrays)
    return found[0], (arrays, found)


def _attend_backward(plan: Plan, residuals: Any, gradient: jax.Array) -> tuple[Any, ...]:
    arrays, (out, sums, limits) = residuals
    means = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)[:, :, None]
    return (
        compiled({'tpu': _backward}, plan, *arrays, gradient, sums, means, limits),
        None,
        None,
        None,
    )


_attend.defvjp(_attend_forward, _attend_backward)


def _filled(refs: dict[str, Any], plan: Plan, block: Any, count: Any) -> tuple[Any, ...]:
    """Scores of a block, `NEVER` for rows that are not filled, and its keys and values, there zero."""
    first = block * plan.block_rows
    row = first + jax.lax.broadcasted_iota(jnp.int32, (plan.block_rows, 1), 0)
    column = first + jax.lax.broadcasted_iota(jnp.int32, (1, plan.block_rows), 1)
    queries = refs['queries'][...]

    def rows(name: str) -> jax.Array:
        held = refs[name][...].astype(jnp.float32)
        return jnp.where(row < count, held, 0.0).astype(queries.dtype)

    keys = rows('keys')
    scores = jnp.where(column < count, blocks.product(queries, keys, (1, 1)), NEVER)
    return scores, keys, functools.partial(rows, 'values')


def _limit(best: Any, k: int) -> jax.Array:
    """A number that k of the scores of each row reach, by halving: float32 [queries, 1].

    Args:
      best: reference to float32 [levels, queries, bins], at least k scores per query, or `NEVER`.
      k: of equal scores at the limit, more than k reach it.
    """
    largest = best[0].max(axis=1, keepdims=True)
    low = as_integers(jnp.full(largest.shape, NEVER, jnp.float32))

    def is_open(limits: tuple[jax.Array, jax.Array]) -> jax.Array:
        low, high = limits
        return jnp.max(jnp.where(high > low + 1, 1.0, 0.0)) > 0

    def halve(limits: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = limits
        middle = (low & high) + ((low ^ high) >> 1)  # the mean, which does not overflow
        number = as_floats(middle)
        reach = jnp.zeros(number.shape, jnp.float32)
        for level in range(LEVELS):
            reach += jnp.where(best[level] >= number, 1.0, 0.0).sum(axis=1, keepdims=True)
        enough = reach >= k
        high = jnp.where(enough, jnp.where(reach == k, middle + 1, high), middle)
        return jnp.where(enough, middle, low), high

    low, _ = jax.lax.while_loop(is_open, halve, (low, as_integers(largest) + 1))
    return as_floats(low)


def _forward_kernel(counts: Any, *given: Any, plan: Plan) -> None:
    names = ['queries', 'keys', 'values', 'out', 'sums', 'limits']
    refs = dict(zip([*names, 'best', 'limit', 'highest', 'total', 'mixed'], given, strict=True))
    count, reads, block = counts[pl.program_id(1)], pl.program_id(3) == 1, pl.program_id(4)
    is_filled, is_last = block * plan.block_rows < count, block == pl.num_programs(4) - 1
    best = refs['best']

    @pl.when(~reads & (block == 0))
    def _() -> None:
        best[...] = jnp.full(best.shape, NEVER, jnp.float32)
        softmax.begin(refs)

    @pl.when(~reads & is_filled)
    def _() -> None:
        scores, _, _ = _filled(refs, plan, block, count)
        for level in range(LEVELS):
            kept = best[level]
            best[level] = jnp.maximum(kept, scores)
            scores = jnp.minimum(kept, scores)

    @pl.when(~reads & is_last)
    def _() -> None:
        limit = refs['limit']
        limit[...] = jnp.broadcast_to(_limit(best, plan.k), limit.shape)

    @pl.when(reads & is_filled)
    def _() -> None:
        scores, _, values = _filled(refs, plan, block, count)
        limit = blocks.wide(refs['limit'][...], plan.block_rows)
        seen = (scores >= limit) & (scores > NEVER)
        weights, decay = softmax.weigh(refs, scores, seen)
        softmax.add(refs, decay, weights.sum(axis=1, keepdims=True), weights, values())

    @pl.when(reads & is_last)
    def _() -> None:
        softmax.end(refs)
        refs['limits'][...] = blocks.as_row(refs['limit'][...])


def _backward_kernel(counts: Any, *given: Any, plan: Plan) -> None:
    names = ['queries', 'keys', 'values', 'gradient', 'sums', 'means', 'limits', 'd_queries']
    refs = dict(zip([*names, 'to_queries'], given, strict=True))
    count, block = counts[pl.program_id(1)], pl.program_id(3)
    to_queries = refs['to_queries']

    @pl.when(block == 0)
    def _() -> None:
        to_queries[...] = jnp.zeros(to_queries.shape, jnp.float32)

    @pl.when(block * plan.block_rows < count)
    def _() -> None:
        scores, keys, values = _filled(refs, plan, block, count)
        limits, sums, means = (
            blocks.wide(blocks.as_columns(refs[name][...]), plan.block_rows)
            for name in ('limits', 'sums', 'means')
        )
        seen = (scores >= limits) & (scores > NEVER)
        shares = jnp.exp(scores - sums)
        to_weights = blocks.product(refs['gradient'][...], values(), (1, 1))
        change = to_weights - means
        to_scores = jnp.where(seen, shares * change, 0.0).astype(keys.dtype)
        to_queries[...] += blocks.product(to_scores, keys, (1, 0))

    @pl.when(block == pl.num_programs(3) - 1)
    def _() -> None:
        refs['d_queries'][...] = to_queries[...].astype(refs['d_queries'].dtype)


def _specs(plan: Plan, width: int) -> 'tuple[pl.BlockSpec, pl.BlockSpec]':
    """Blocks of vectors, and of numbers, of the queries."""

    def vectors(head: Any, lane: Any, query: Any, *_: Any) -> Any:
        return lane, head, query, 0

    def numbers(head: Any, lane: Any, query: Any, *_: Any) -> Any:
        return lane, head, 0, query

    return (
        pl.BlockSpec((None, None, plan.block_queries, width), vectors),
        pl.BlockSpec((None, None, 1, plan.block_queries), numbers),
    )


def _fetched(plan: Plan, count: Any, block: Any) -> Any:
    """The block of rows that is in fast memory at a block: the last filled one stays after it."""
    last = jax.lax.div(jnp.maximum(count - 1, 0), jnp.int32(plan.block_rows))
    return jnp.minimum(block, last)


def _cost(queries: Any, keys: Any, products: int, moved: int) -> 'pl.CostEstimate':
    """Costs with all rows filled; `moved`: bytes."""
    pairs = queries.size // queries.shape[3] * keys.shape[2]
    return pl.CostEstimate(
        flops=2 * products * pairs * queries.shape[3], transcendentals=pairs, bytes_accessed=moved
    )


def _bytes(array: Any) -> int:
    return array.size * array.dtype.itemsize


def _forward(
    plan: Plan, queries: jax.Array, keys: jax.Array, values: jax.Array, count: jax.Array
) -> tuple[jax.Array, ...]:
    """The attention; log sums of weights, and limits, float32 [batch, heads, 1, queries]."""
    batch, heads, number, width = queries.shape
    vectors, numbers = _specs(plan, width)

    def keys_of(head: Any, lane: Any, query: Any, reads: Any, block: Any, counts: Any) -> Any:
        return lane, head, _fetched(plan, counts[lane], block), 0

    def values_of(head: Any, lane: Any, query: Any, reads: Any, block: Any, counts: Any) -> Any:
        return lane, head, _fetched(plan, counts[lane], block * reads), 0

    query_blocks = number // plan.block_queries
    columns = jax.ShapeDtypeStruct((batch, heads, 1, number), jnp.float32)
    again = query_blocks * (2 * _bytes(keys) + _bytes(values))
    return pl.pallas_call(
        functools.partial(_forward_kernel, plan=plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads, batch, query_blocks, 2, pl.cdiv(keys.shape[2], plan.block_rows)),
            in_specs=[
                vectors,
                pl.BlockSpec((None, None, plan.block_rows, width), keys_of),
                pl.BlockSpec((None, None, plan.block_rows, width), values_of),
            ],
            out_specs=[vectors, numbers, numbers],
            scratch_shapes=[
                pltpu.VMEM((LEVELS, plan.block_queries, plan.block_rows), jnp.float32),
                pltpu.VMEM((plan.block_queries, LANES), jnp.float32),
                pltpu.VMEM((plan.block_queries, LANES), jnp.float32),
                pltpu.VMEM((plan.block_queries, LANES), jnp.float32),
                pltpu.VMEM((plan.block_queries, width), jnp.float32),
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(queries.shape, queries.dtype), columns, columns],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=('parallel',) * 3 + ('arbitrary',) * 2,
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        cost_estimate=_cost(queries, keys, 3, again + 2 * _bytes(queries)),
        interpret=plan.interpret,
        name='fused_search_forward',
    )(count, queries, keys, values)


def _backward(
    plan: Plan,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    count: jax.Array,
    gradient: jax.Array,
    *by_query: jax.Array,
) -> jax.Array:
    """The derivative by the queries; `by_query`: sums, means and limits."""
    batch, heads, number, width = queries.shape
    vectors, numbers = _specs(plan, width)

    def rows_of(head: Any, lane: Any, query: Any, block: Any, counts: Any) -> Any:
        return lane, head, _fetched(plan, counts[lane], block), 0

    rows = pl.BlockSpec((None, None, plan.block_rows, width), rows_of)
    query_blocks = number // plan.block_queries
    again = query_blocks * (_bytes(keys) + _bytes(values))
    return pl.pallas_call(
        functools.partial(_backward_kernel, plan=plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads, batch, query_blocks, pl.cdiv(keys.shape[2], plan.block_rows)),
            in_specs=[vectors, rows, rows, vectors, numbers, numbers, numbers],
            out_specs=vectors,
            scratch_shapes=[pltpu.VMEM((plan.block_queries, width), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct(queries.shape, queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=('parallel',) * 3 + ('arbitrary',),
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        cost_estimate=_cost(queries, keys, 3, again + 3 * _bytes(queries)),
        interpret=plan.interpret,
        name='fused_search_backward',
    )(count, queries, keys, values, gradient, *by_query)
