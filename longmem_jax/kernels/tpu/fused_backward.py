"""The backward kernel of the fused attention: all derivatives in one pass over the blocks.

Scores are computed once more from the queries and keys. For a block of keys, all blocks of queries come
one after another. All sums stay in fast memory: derivatives of keys and values over the blocks of
queries, of queries over the blocks of keys, of tables by distance over both and over lanes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels import fused_plan
from longmem_jax.kernels.fused_plan import Inputs, Plan
from longmem_jax.kernels.pallas import pl, pltpu
from longmem_jax.kernels.tpu import fused_blocks as blocks
from longmem_jax.kernels.tpu.fused_forward import VMEM_LIMIT, scores, specs


def _kernel(*given: Any, plan: Plan, names: list[str], outputs: list[str], dropped: bool) -> None:
    lane, head, query_block, key_block = _order(*(pl.program_id(axis) for axis in range(4)))
    fetch, given = given[0], given[1:]
    if dropped:
        seeds, given = given[0], given[1:]
    names = [*names, 'gradient', 'sums', 'means', *(f'd_{name}' for name in outputs)]
    names += ['scores', 'to_queries', 'to_keys', 'to_values']
    if 'positions' in outputs:
        names.append('to_positions')
    refs = dict(zip(names, given, strict=True))
    is_first_query, is_first_key = query_block == 0, key_block == 0
    is_last_query = query_block == plan.blocks[0] - 1
    is_last_key = key_block == plan.blocks[1] - 1

    def clear(condition: Any, *names: str) -> None:
        @pl.when(condition)
        def _() -> None:
            for name in names:
                refs[name][...] = jnp.zeros(refs[name].shape, refs[name].dtype)

    clear(is_first_query, 'to_keys', 'to_values')
    if plan.ramp:
        clear(is_first_query, 'd_remaining')
    clear(is_first_query & is_first_key, 'to_queries')
    begins = is_first_query & is_first_key & (lane == 0)
    if 'positions' in outputs:
        clear(is_first_query & is_first_key, 'to_positions')
        clear(begins & (head == 0) if plan.shared_table else begins, 'd_table')
    if 'bias' in outputs:
        clear(begins, 'd_bias')

    @pl.when(plan.is_read(fetch, lane, head, query_block, key_block))
    def _() -> None:
        scores(refs, plan, query_block, key_block, refs['scores'])
        queries = blocks.query_numbers(plan, query_block)
        height = plan.block_queries
        rows = pl.ds(pl.multiple_of(query_block * height, height), height)
        columns = refs['columns'][...]
        seen = fused_plan.seen(columns, queries)
        if plan.ramp:
            soft, slope = fused_plan.soft_mask(refs['remaining'][...], queries, plan.ramp)
            seen = seen & (soft > 0)

        def by_query(name: str) -> jax.Array:
            return blocks.wide(blocks.as_columns(refs[name][...]), plan.block_keys)

        shares = jnp.exp(refs['scores'][...] - by_query('sums'))
        shares = jnp.where(seen, shares, 0.0)
        weights = shares * soft if plan.ramp else shares
        gradient, keys, values = refs['gradient'][...], refs['keys'][...], refs['values'][...]
        to_weights = blocks.product(gradient, values, (1, 1))
        if dropped:
            seed = seeds[lane * plan.num_heads + head]
            factor = fused_plan.dropout_factor(plan.dropout, seed, queries, columns[2:3])
            to_weights = to_weights * factor
            dropped_weights = weights * factor
        else:
            dropped_weights = weights
        dropped_weights = dropped_weights.astype(gradient.dtype)
        refs['to_values'][...] += blocks.product(dropped_weights, gradient, (0, 0))
        change = to_weights - by_query('means')
        if plan.ramp:
            # The derivative of the 1e-8 term is left out, as in `mix`.
            refs['d_remaining'][...] += (shares * change * slope).sum(axis=0, keepdims=True)
        to_scores = weights * change
        narrow = to_scores.astype(keys.dtype)
        refs['to_queries'][rows, :] += blocks.product(narrow, keys, (1, 0))
        refs['to_keys'][...] += blocks.product(narrow, refs['queries'][...], (0, 0))
        _add_by_distance(refs, plan, query_block, key_block, to_scores, rows)

    @pl.when(is_last_query)
    def _() -> None:
        for name in ('keys', 'values'):
            refs[f'd_{name}'][...] = refs[f'to_{name}'][...].astype(refs[f'd_{name}'].dtype)

    @pl.when(is_last_query & is_last_key)
    def _() -> None:
        for name in ('queries', 'positions'):
            if name in outputs:
                refs[f'd_{name}'][...] = refs[f'to_{name}'][...].astype(refs[f'd_{name}'].dtype)


def _add_by_distance(
    refs: dict[str, Any],
    plan: Plan,
    query_block: Any,
    key_block: Any,
    to_scores: jax.Array,
    rows: Any,
) -> None:
    """Adds a block's derivatives by the table, by the queries that meet it, and by the bias.

    Args:
      refs: arrays of the kernel, by name.
      plan: of the attention.
      query_block, key_block: numbers of the block.
      to_scores: derivative by its scores, float32 [block_queries, block_keys].
      rows: slice of its queries among all of them.
    """
    if 'table' not in refs and 'bias' not in refs:
        return
    place = pl.ds(plan.first_row(query_block, key_block), plan.width)

    def add_table(by_distance: jax.Array) -> None:
        table, positions = refs['table'][place, :], refs['positions'][...]
        by_distance = by_distance.astype(table.dtype)
        refs['to_positions'][rows, :] += blocks.product(by_distance, table, (1, 0))
        refs['d_table'][place, :] += blocks.product(by_distance, positions, (0, 0))

    if 'bias' in refs:
        by_distance = blocks.unskew(to_scores, plan.width)
        refs['d_bias'][:, place] += by_distance.sum(axis=0, keepdims=True)
        if 'table' in refs:
            add_table(by_distance)
        return

    @pl.when(plan.is_near(query_block, key_block))
    def _() -> None:
        add_table(blocks.unskew(to_scores, plan.width))


def _order(head: Any, lane: Any, key_block: Any, query_block: Any) -> tuple[Any, ...]:
    """Lane, head, block of queries and block of keys of a step."""
    return lane, head, query_block, key_block


def backward(
    plan: Plan, inputs: Inputs, out: jax.Array, sums: jax.Array, gradient: jax.Array
) -> dict[str, jax.Array]:
    """Derivatives by the float arrays of `inputs`, by name.

    Args:
      plan, inputs: of the attention.
      out, sums: what `forward` returned.
      gradient: derivative by `out`, of its shape and dtype.
    """
    batch, heads, _, head_dim = inputs.queries.shape
    means = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)[:, :, None]
    names, arrays, in_specs = specs(plan, inputs, _order)
    scalars = [inputs.fetch] if inputs.seeds is None else [inputs.fetch, inputs.seeds]

    def of_sums(*index: Any) -> Any:
        lane, head, query, _ = _order(*index[:4])
        return lane, head, 0, query

    def of_lane(*index: Any) -> Any:
        lane, head, _, _ = _order(*index[:4])
        return lane, head, 0, 0

    def of_keys(*index: Any) -> Any:
        lane, head, _, key = _order(*index[:4])
        return lane, head, key, 0

    def of_remaining(*index: Any) -> Any:
        lane, head, _, key = _order(*index[:4])
        return lane, head, 0, key

    row = pl.BlockSpec((None, None, 1, plan.block_queries), of_sums)
    by_keys = pl.BlockSpec((None, None, plan.block_keys, head_dim), of_keys)
    by_lane = pl.BlockSpec((None, None, plan.num_queries, head_dim), of_lane)
    in_specs_of = dict(zip(names, in_specs, strict=True))
    # Query heads that share keys are summed afterwards.
    key_dtype = inputs.keys.dtype if plan.group == 1 else jnp.float32
    key_shape = jax.ShapeDtypeStruct((batch, heads, plan.num_keys, head_dim), key_dtype)
    results = {
        'queries': (by_lane, jax.ShapeDtypeStruct(inputs.queries.shape, inputs.queries.dtype)),
        'keys': (by_keys, key_shape),
        'values': (by_keys, key_shape),
    }
    if inputs.table is not None:
        results['positions'] = results['queries']
        shape = jax.ShapeDtypeStruct(inputs.table.shape, jnp.float32)
        results['table'] = (in_specs_of['table'], shape)
    if inputs.bias is not None:
        shape = jax.ShapeDtypeStruct(inputs.bias.shape, jnp.float32)
        results['bias'] = (in_specs_of['bias'], shape)
    if inputs.remaining is not None:
        results['remaining'] = (
            pl.BlockSpec((None, None, 1, plan.block_keys), of_remaining),
            jax.ShapeDtypeStruct((batch, heads, 1, plan.num_keys), jnp.float32),
        )
    scratch = [
        pltpu.VMEM((plan.block_queries, plan.block_keys), jnp.float32),
        pltpu.VMEM((plan.num_queries, head_dim), jnp.float32),
        pltpu.VMEM((plan.block_keys, head_dim), jnp.float32),
        pltpu.VMEM((plan.block_keys, head_dim), jnp.float32),
    ]
    if inputs.table is not None:
        scratch.append(pltpu.VMEM((plan.num_queries, head_dim), jnp.float32))
    # Queries come once for every block of keys.
    again = {'queries', 'positions'}
    moved = [(getattr(inputs, name), plan.blocks[1] if name in again else 1) for name in names]
    moved += [(gradient, plan.blocks[1]), *((shape, 1) for _, shape in results.values())]
    found = pl.pallas_call(
        functools.partial(
            _kernel,
            plan=plan,
            names=names,
            outputs=list(results),
            dropped=inputs.seeds is not None,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(heads, batch, plan.blocks[1], plan.blocks[0]),
            in_specs=[*in_specs, in_specs_of['queries'], row, row],
            out_specs=[spec for spec, _ in results.values()],
            scratch_shapes=scratch,
        ),
        out_shape=[shape for _, shape in results.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(
                'arbitrary' if plan.shared_table else 'parallel',
                'arbitrary',
                'arbitrary',
                'arbitrary',
            ),
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        cost_estimate=blocks.cost(plan, inputs, (5, 3), moved),
        interpret=plan.interpret,
        name='fused_attention_backward',
    )(*scalars, *arrays, gradient, sums, means)
    return dict(zip(results, found, strict=True))
