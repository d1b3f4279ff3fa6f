"""The forward kernel of the fused attention: an online softmax over blocks of keys.

For a block of queries, blocks of keys come one after another; a running maximum, the sum of weights
and the weighted sum of values stay in fast memory (Milakov and Gimelshein, 2018). Scores never leave it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels import fused_plan
from longmem_jax.kernels.attention_products import EPSILON
from longmem_jax.kernels.fused_plan import Inputs, Plan
from longmem_jax.kernels.pallas import pl, pltpu
from longmem_jax.kernels.tpu import fused_blocks as blocks
from longmem_jax.kernels.tpu import fused_softmax as softmax

VMEM_LIMIT = (
    64 * 2**20
)  # bytes of fast memory that a kernel may use; the chips have 64 MiB at least


def specs(
    plan: Plan, inputs: Inputs, order: Any
) -> 'tuple[list[str], list[jax.Array], list[pl.BlockSpec]]':
    """Names, arrays and blocks of what both kernels read, without the prefetched scalars.

    Args:
      plan, inputs: of the attention.
      order: `(grid indices) -> (lane, head, query block, key block)`.
    """
    head_dim = inputs.queries.shape[3]
    by_remaining = (1, 1) if inputs.remaining is None else inputs.remaining.shape[:2]

    def of_queries(*index: Any) -> Any:
        lane, head, query, _ = order(*index[:4])
        return lane, head, query, 0

    def of_keys(*index: Any) -> Any:
        lane, head, query, key = order(*index[:4])
        shared = head if plan.group == 1 else jax.lax.div(head, jnp.int32(plan.group))
        return lane, shared, plan.fetched(index[4], lane, head, query, key), 0

    def of_heads(array: jax.Array) -> Any:
        def index_of(*index: Any) -> Any:
            return (order(*index[:4])[1] if array.shape[0] > 1 else 0), 0, 0

        return index_of

    def of_remaining(*index: Any) -> Any:
        lane, head, query, key = order(*index[:4])
        key = plan.fetched(index[4], lane, head, query, key)
        lanes, heads = by_remaining
        return (lane if lanes > 1 else 0), (head if heads > 1 else 0), 0, key

    def of_columns(*index: Any) -> Any:
        lane, head, query, key = order(*index[:4])
        key = plan.fetched(index[4], lane, head, query, key)
        return (lane if inputs.columns.shape[0] > 1 else 0), 0, key

    query_block = pl.BlockSpec((None, None, plan.block_queries, head_dim), of_queries)
    key_block = pl.BlockSpec((None, None, plan.block_keys, head_dim), of_keys)
    found = {'queries': query_block, 'keys': key_block, 'values': key_block}
    if inputs.table is not None:
        found['positions'] = query_block
        shape = (None, *inputs.table.shape[1:])
        found['table'] = pl.BlockSpec(shape, of_heads(inputs.table))
    if inputs.bias is not None:
        found['bias'] = pl.BlockSpec((None, 1, plan.rows), of_heads(inputs.bias))
    if inputs.remaining is not None:
        found['remaining'] = pl.BlockSpec((None, None, 1, plan.block_keys), of_remaining)
    found['columns'] = pl.BlockSpec((None, 3, plan.block_keys), of_columns)
    return list(found), [getattr(inputs, name) for name in found], list(found.values())


def scores(refs: dict[str, Any], plan: Plan, query_block: Any, key_block: Any, place: Any) -> None:
    """Writes the scores of a block to `place`, float32 [block_queries, block_keys]."""
    content = blocks.product(refs['queries'][...], refs['keys'][...], (1, 1))
    if 'table' not in refs and 'bias' not in refs:
        place[...] = content
        return
    first = plan.first_row(query_block, key_block)
    if 'bias' in refs:
        row = refs['bias'][:, pl.ds(first, plan.width)]
        rows = jnp.broadcast_to(row, (plan.block_queries, plan.width))
    if 'table' in refs and plan.reach < 0:
        table = refs['table'][pl.ds(first, plan.width), :]
        by_distance = blocks.product(refs['positions'][...], table, (1, 1))
        rows = by_distance + rows if 'bias' in refs else by_distance
        place[...] = content + blocks.skew(rows, plan.block_keys)
        return
    if 'bias' in refs:
        content = content + blocks.skew(rows, plan.block_keys)
    place[...] = content
    if 'table' in refs:

        @pl.when(plan.is_near(query_block, key_block))
        def _() -> None:
            table = refs['table'][pl.ds(first, plan.width), :]
            rows = blocks.product(refs['positions'][...], table, (1, 1))
            place[...] += blocks.skew(rows, plan.block_keys)


def _kernel(*given: Any, plan: Plan, names: list[str], dropped: bool) -> None:
    lane, head, query_block, key_block = _order(*(pl.program_id(axis) for axis in range(4)))
    fetch, given = given[0], given[1:]
    if dropped:
        seeds, given = given[0], given[1:]
    refs = dict(
        zip([*names, 'out', 'sums', 'scores', 'highest', 'total', 'mixed'], given, strict=True)
    )

    @pl.when(key_block == 0)
    def _() -> None:
        softmax.begin(refs)

    @pl.when(plan.is_read(fetch, lane, head, query_block, key_block))
    def _() -> None:
        scores(refs, plan, query_block, key_block, refs['scores'])
        queries = blocks.query_numbers(plan, query_block)
        columns = refs['columns'][...]
        seen = fused_plan.seen(columns, queries)
        if plan.ramp:
            soft, _ = fused_plan.soft_mask(refs['remaining'][...], queries, plan.ramp)
            seen = seen & (soft > 0)
        weights, decay = softmax.weigh(refs, refs['scores'][...], seen)
        added = weights.sum(axis=1, keepdims=True)
        if plan.ramp:
            # Sum of the softly masked weights, with that of the others as in `mix`.
            weights = weights * soft
            added = weights.sum(axis=1, keepdims=True) + EPSILON * added
        if dropped:
            seed = seeds[lane * plan.num_heads + head]
            weights = weights * fused_plan.dropout_factor(plan.dropout, seed, queries, columns[2:3])
        softmax.add(refs, decay, added, weights, refs['values'][...])

    @pl.when(key_block == plan.blocks[1] - 1)
    def _() -> None:
        softmax.end(refs)


def _order(head: Any, lane: Any, query_block: Any, key_block: Any) -> tuple[Any, ...]:
    """Lane, head, block of queries and block of keys of a step: lanes of one head share its table."""
    return lane, head, query_block, key_block


def forward(plan: Plan, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """The attention.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `values`, zeros where nothing is seen; and the
      logarithms of the sums of all weights, float32 [batch, heads, 1, queries], 0 where nothing is seen.
    """
    batch, heads, _, head_dim = inputs.queries.shape
    names, arrays, in_specs = specs(plan, inputs, _order)
    scalars = [inputs.fetch] if inputs.seeds is None else [inputs.fetch, inputs.seeds]

    def of_sums(*index: Any) -> Any:
        lane, head, query, _ = _order(*index[:4])
        return lane, head, 0, query

    out_shape = [
        jax.ShapeDtypeStruct(inputs.queries.shape, inputs.values.dtype),
        jax.ShapeDtypeStruct((batch, heads, 1, plan.num_queries), jnp.float32),
    ]
    # Keys and values come once for every block of queries.
    again = {'keys', 'values', 'columns', 'remaining'}
    moved = [(getattr(inputs, name), plan.blocks[0] if name in again else 1) for name in names]
    moved += [(shape, 1) for shape in out_shape]
    return pl.pallas_call(
        functools.partial(_kernel, plan=plan, names=names, dropped=inputs.seeds is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(heads, batch, *plan.blocks),
            in_specs=in_specs,
            out_specs=[
                in_specs[0],
                pl.BlockSpec((None, None, 1, plan.block_queries), of_sums),
            ],
            scratch_shapes=[
                pltpu.VMEM((plan.block_queries, plan.block_keys), jnp.float32),
                pltpu.VMEM((plan.block_queries, blocks.LANES), jnp.float32),
                pltpu.VMEM((plan.block_queries, blocks.LANES), jnp.float32),
                pltpu.VMEM((plan.block_queries, head_dim), jnp.float32),
            ],
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=('parallel', 'parallel', 'parallel', 'arbitrary'),
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        cost_estimate=blocks.cost(plan, inputs, (2, 1), moved),
        interpret=plan.interpret,
        name='fused_attention_forward',
    )(*scalars, *arrays)
