"""The kernels of the fused attention for NVIDIA GPUs, in Triton by Pallas.

The same `Plan`, `Inputs` and results as those for TPUs. A program has a block of queries, or of keys in
the backward pass, and loops over the blocks on the other side of which it sees something. Scores by
distance are a product before the kernel, of which programs read diagonals; see `gpu.by_distance`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels import fused_plan
from longmem_jax.kernels.attention_products import EPSILON, NEVER
from longmem_jax.kernels.fused_plan import Inputs, Plan
from longmem_jax.kernels.gpu import by_distance
from longmem_jax.kernels.pallas import pl, triton

BLOCK = 64  # queries, and keys; fewer for vectors that are wider than WIDE
WIDE = 128
WARPS, STAGES = 4, 2


def forward(plan: Plan, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """The attention, and the logarithms of the sums of weights; as `fused_forward.forward`."""
    return by_distance.forward(_forward_of, plan, inputs)


def backward(
    plan: Plan, inputs: Inputs, out: jax.Array, sums: jax.Array, gradient: jax.Array
) -> dict[str, jax.Array]:
    """Derivatives by the float arrays of `inputs`, by name; as `fused_backward.backward`."""
    # Scores by distance are computed again, and not kept from the forward pass of every layer.
    inputs, gradient = jax.lax.optimization_barrier((inputs, gradient))
    return by_distance.backward(_backward_of, plan, inputs, out=out, sums=sums, gradient=gradient)


def _forward_of(plan: Plan, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    call = _Call(plan, inputs)
    batch, heads, num_queries, _ = inputs.queries.shape
    out, sums = call(
        _forward,
        number=num_queries // call.queries,
        ranges=call.ranges(of_keys=False),
        more={},
        results={
            'out': (call.wide(num_queries), inputs.values.dtype),
            'sums': ((batch, heads, num_queries), jnp.float32),
        },
    )
    return call.narrow(out), sums[:, :, None]


def _backward_of(
    plan: Plan, inputs: Inputs, out: jax.Array, sums: jax.Array, gradient: jax.Array
) -> dict[str, jax.Array]:
    call = _Call(plan, inputs)
    batch, heads, num_queries, _ = inputs.queries.shape
    means = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)
    more = {'gradient': call.padded(gradient), 'sums': sums[:, :, 0], 'means': means}
    # Query heads that share keys are summed afterwards.
    key_dtype = inputs.keys.dtype if plan.group == 1 else jnp.float32
    by_keys: dict[str, Any] = {
        name: (call.wide(plan.num_keys), key_dtype) for name in ('keys', 'values')
    }
    if plan.ramp:
        by_keys['remaining'] = ((batch, heads, plan.num_keys), jnp.float32)
    found = dict(
        zip(
            by_keys,
            call(_keys, plan.num_keys // call.keys, call.ranges(of_keys=True), more, by_keys),
            strict=True,
        )
    )
    by_queries = {'queries': (call.wide(num_queries), inputs.queries.dtype)}
    if call.rows is not None:
        shape = (heads, batch, num_queries, call.last_row - call.first_row)
        by_queries['rows'] = (shape, inputs.queries.dtype)
    ranges = call.ranges(of_keys=False)
    found |= zip(
        by_queries,
        call(_queries, num_queries // call.queries, ranges, more, by_queries),
        strict=True,
    )
    if call.rows is not None:
        found |= call.by_distance(found.pop('rows'))
    if plan.ramp:
        found['remaining'] = found['remaining'][:, :, None]
    for name in ('queries', 'keys', 'values'):
        found[name] = call.narrow(found[name])
    return found


class _Call:
    """What forward and backward kernels read, and how they are called."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.plan, self.inputs = plan, inputs
        self.width = max(by_distance.NARROWEST, 1 << (inputs.queries.shape[3] - 1).bit_length())
        # Blocks of queries, keys and values have to fit into shared memory.
        block = max(by_distance.NARROWEST, min(BLOCK, BLOCK * WIDE // self.width))
        self.queries, self.keys = min(block, plan.block_queries), min(block, plan.block_keys)
        self.rows: jax.Array | None = None
        self.by_distance: Callable[[jax.Array], dict[str, jax.Array]] = lambda rows: {}
        self.first_row, self.last_row = by_distance.rows_read(plan, inputs)
        if inputs.table is not None or inputs.bias is not None:
            found = by_distance.rows_of(inputs, self.first_row, self.last_row)
            self.rows, self.by_distance = found

    def wide(self, length: int) -> tuple[int, ...]:
        """Shape of vectors of all heads of the queries."""
        return (*self.inputs.queries.shape[:2], length, self.width)

    def padded(self, array: jax.Array) -> jax.Array:
        """Vectors that are as wide as products need them."""
        more = self.width - array.shape[3]
        return jnp.pad(array, [(0, 0)] * 3 + [(0, more)]) if more else array

    def narrow(self, array: jax.Array) -> jax.Array:
        """The inverse of `padded`."""
        return array[..., : self.inputs.queries.shape[3]]

    def ranges(self, of_keys: bool) -> jax.Array:
        """For every block of queries the first block of keys that it sees, and the one after the last.

        Args:
          of_keys: instead, for every block of keys, blocks of queries.

        Returns:
          int32 [lanes | 1, heads | 1, blocks, 2].
        """
        plan, since, until = self.plan, self.inputs.columns[:, 0], self.inputs.columns[:, 1]
        since, until = since[:, None], until[:, None]
        if self.inputs.remaining is not None:
            last = jnp.ceil(self.inputs.remaining[:, :, 0] + plan.ramp)
            until = jnp.minimum(until, jnp.clip(last, -1, fused_plan.NEVER_SINCE).astype(jnp.int32))
        first = jnp.arange(0, plan.num_queries, self.queries, dtype=jnp.int32)[:, None]
        seen = jnp.maximum(since[:, :, None], first) < jnp.minimum(
            until[:, :, None], first + self.queries
        )
        seen = seen.reshape(*seen.shape[:3], -1, self.keys).any(axis=-1)
        seen = jnp.swapaxes(seen, 2, 3) if of_keys else seen
        begin = jnp.argmax(seen, axis=3)
        end = seen.shape[3] - jnp.argmax(seen[..., ::-1], axis=3)
        end = jnp.where(seen.any(axis=3), end, begin)
        return jnp.stack([begin, end], axis=-1).astype(jnp.int32)

    def __call__(
        self,
        kernel: Callable[..., None],
        number: int,
        ranges: jax.Array,
        more: dict[str, jax.Array],
        results: dict[str, tuple[tuple[int, ...], Any]],
    ) -> Any:
        """Runs a kernel on all lanes, heads and `number` blocks.

        Args:
          kernel: takes the references of all arrays by name.
          number: of blocks on its side.
          ranges: of the blocks on the other side.
          more: arrays that it reads beside the inputs.
          results: by name, shape and dtype.
        """
        plan, given = self.plan, self.inputs
        batch, heads = given.queries.shape[:2]
        arrays = {name: self.padded(getattr(given, name)) for name in ('queries', 'keys', 'values')}
        arrays |= {'columns': given.columns[:, None], 'ranges': ranges} | more
        if self.rows is not None:
            arrays['rows'] = self.rows
        if given.remaining is not None:
            arrays['remaining'] = given.remaining[:, :, 0]
        if given.seeds is not None:
            arrays['seeds'] = given.seeds.reshape(batch, heads, 1)

        def spec(name: str, shape: tuple[int, ...]) -> 'pl.BlockSpec':
            first = name.endswith('rows')  # heads are
            per_lane, own = (shape[1], shape[0]) if first else shape[:2]
            group = heads // own if own > 1 else 0

            def of(block: Any, head: Any, lane: Any) -> Any:
                mine = head if group == 1 else jax.lax.div(head, jnp.int32(group)) if group else 0
                both = (lane if per_lane > 1 else 0), mine
                return *(reversed(both) if first else both), *(0 for _ in shape[2:])

            return pl.BlockSpec((None, None, *shape[2:]), of)

        shapes = [jax.ShapeDtypeStruct(*result) for result in results.values()]
        zeros = {}
        if 'rows' in results:  # what nothing sees is not written
            shape, dtype = results['rows']
            # Of its own in every layer: XLA would share one array and copy it for each, all at once.
            zero, _ = jax.lax.optimization_barrier((jnp.zeros((), dtype), given.queries))
            zeros['zeros_rows'] = jnp.broadcast_to(zero, shape)
        given_names, written = [*arrays, *zeros], [f'd_{name}' for name in results]
        names = [*given_names, *written]

        def body(*refs: Any) -> None:
            kernel(self, dict(zip(names, refs, strict=True)))

        body.__name__ = f'fused_attention{kernel.__name__}'
        return pl.pallas_call(
            body,
            grid=(number, heads, batch),
            in_specs=[spec(name, array.shape) for name, array in (arrays | zeros).items()],
            out_specs=[
                spec(name, shape.shape) for name, shape in zip(written, shapes, strict=True)
            ],
            out_shape=shapes,
            input_output_aliases={len(arrays): list(results).index('rows')} if zeros else {},
            compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
            interpret=plan.interpret,
            name=body.__name__,
        )(*arrays.values(), *zeros.values())


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """[n, k] by [k, m] in float32."""
    return triton.dot(left, right, precision=by_distance.precision_of(left.dtype))


class _Block:
    """One block of scores: which keys its queries see, and with what weight."""

    def __init__(self, call: _Call, refs: dict[str, Any], query_block: Any, key_block: Any) -> None:
        plan = call.plan
        self.at_queries = pl.ds(query_block * call.queries, call.queries)
        self.at_keys = pl.ds(key_block * call.keys, call.keys)
        numbers = query_block * call.queries + jnp.arange(call.queries, dtype=jnp.int32)
        keys = key_block * call.keys + jnp.arange(call.keys, dtype=jnp.int32)
        since, until, drawn = (refs['columns'][row, self.at_keys] for row in range(3))
        self.numbers = numbers[:, None]
        self.seen = (self.numbers >= since[None]) & (self.numbers < until[None])
        self.soft = self.slope = None
        if plan.ramp:
            remaining = refs['remaining'][self.at_keys]
            self.soft, self.slope = fused_plan.soft_mask(remaining[None], self.numbers, plan.ramp)
            self.seen &= self.soft > 0
        self.factor = None
        if 'seeds' in refs:
            self.factor = fused_plan.dropout_factor(
                plan.dropout, refs['seeds'][0], self.numbers, drawn[None]
            )
        # Rows are by falling distance: the row of a query begins one further left than that before.
        row = plan.num_queries - 1 - call.first_row - self.numbers + keys[None]
        row = jnp.broadcast_to(row, self.seen.shape)
        whole = jnp.broadcast_to(self.numbers, self.seen.shape)
        self.has_row = (row >= 0) & (row < call.last_row - call.first_row)
        self.diagonal = (whole, row)
        if 'rows' in refs and refs['rows'].shape[0] == 1:
            self.along = (jnp.zeros_like(whole), row)
        else:
            self.along = self.diagonal

    def scores(self, refs: dict[str, Any], queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Scores, float32 [queries, keys]; `NEVER` where nothing is seen."""
        scores = _product(queries, keys.T)
        if 'rows' in refs:
            near = self.seen & self.has_row
            scores += triton.load(refs['rows'].at[self.along], mask=near, other=0.0)
        return jnp.where(self.seen, scores, NEVER)


def _forward(call: _Call, refs: dict[str, Any]) -> None:
    """A block of queries: an online softmax over blocks of keys (Milakov and Gimelshein, 2018)."""
    query_block = pl.program_id(0)
    at = pl.ds(query_block * call.queries, call.queries)
    queries = refs['queries'][at, :]

    def add(key_block: Any, before: Any) -> Any:
        highest, total, mixed = before
        block = _Block(call, refs, query_block, key_block)
        scores = block.scores(refs, queries, refs['keys'][block.at_keys, :])
        higher = jnp.maximum(highest, scores.max(axis=1))
        weights = jnp.where(block.seen, jnp.exp(scores - higher[:, None]), 0.0)
        added = weights.sum(axis=1)
        if block.soft is not None:
            # Sum of the softly masked weights, with that of the others as in `mix`.
            weights = weights * block.soft
            added = weights.sum(axis=1) + EPSILON * added
        if block.factor is not None:
            weights = weights * block.factor
        values = refs['values'][block.at_keys, :]
        decay = jnp.exp(highest - higher)
        mixed = mixed * decay[:, None] + _product(weights.astype(values.dtype), values)
        return higher, total * decay + added, mixed

    nothing = jnp.zeros((call.queries,), jnp.float32)
    begin = (nothing + NEVER, nothing, jnp.zeros((call.queries, call.width), jnp.float32))
    first, last = refs['ranges'][query_block, 0], refs['ranges'][query_block, 1]
    highest, total, mixed = jax.lax.fori_loop(first, last, add, begin)
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    refs['d_out'][at, :] = (mixed / total[:, None]).astype(refs['d_out'].dtype)
    refs['d_sums'][at] = jnp.where(empty, 0.0, highest + jnp.log(total))


def _changes(
    refs: dict[str, Any], block: _Block, queries: jax.Array, keys: jax.Array, values: jax.Array
) -> tuple[jax.Array, ...]:
    """Weights with dropout, derivatives by scores and by `remaining` (its terms), of a block."""
    at = block.at_queries
    scores = block.scores(refs, queries, keys)
    shares = jnp.where(block.seen, jnp.exp(scores - refs['sums'][at][:, None]), 0.0)
    weights = shares if block.soft is None else shares * block.soft
    to_weights = _product(refs['gradient'][at, :], values.T)
    dropped = weights
    if block.factor is not None:
        to_weights, dropped = to_weights * block.factor, weights * block.factor
    change = to_weights - refs['means'][at][:, None]
    # The derivative of the 1e-8 term is left out, as in `mix`.
    by_remaining = change if block.slope is None else shares * change * block.slope
    return dropped, weights * change, by_remaining


def _keys(call: _Call, refs: dict[str, Any]) -> None:
    """A block of keys: derivatives by keys, values and `remaining`, over blocks of queries."""
    key_block = pl.program_id(0)
    at = pl.ds(key_block * call.keys, call.keys)
    keys, values = refs['keys'][at, :], refs['values'][at, :]

    def add(query_block: Any, before: Any) -> Any:
        to_keys, to_values, to_remaining = before
        block = _Block(call, refs, query_block, key_block)
        queries, gradient = (
            refs['queries'][block.at_queries, :],
            refs['gradient'][block.at_queries, :],
        )
        dropped, to_scores, by_remaining = _changes(refs, block, queries, keys, values)
        to_values += _product(dropped.astype(gradient.dtype).T, gradient)
        to_keys += _product(to_scores.astype(queries.dtype).T, queries)
        return to_keys, to_values, to_remaining + by_remaining.sum(axis=0)

    zeros = jnp.zeros((call.keys, call.width), jnp.float32)
    first, last = refs['ranges'][key_block, 0], refs['ranges'][key_block, 1]
    begin = (zeros, zeros, jnp.zeros((call.keys,), jnp.float32))
    to_keys, to_values, to_remaining = jax.lax.fori_loop(first, last, add, begin)
    refs['d_keys'][at, :] = to_keys.astype(refs['d_keys'].dtype)
    refs['d_values'][at, :] = to_values.astype(refs['d_values'].dtype)
    if 'd_remaining' in refs:
        refs['d_remaining'][at] = to_remaining


def _queries(call: _Call, refs: dict[str, Any]) -> None:
    """A block of queries: derivatives by queries and by scores by distance, over blocks of keys."""
    query_block = pl.program_id(0)
    at = pl.ds(query_block * call.queries, call.queries)
    queries = refs['queries'][at, :]

    def add(key_block: Any, to_queries: Any) -> Any:
        block = _Block(call, refs, query_block, key_block)
        keys, values = refs['keys'][block.at_keys, :], refs['values'][block.at_keys, :]
        _, to_scores, _ = _changes(refs, block, queries, keys, values)
        if 'd_rows' in refs:
            change = to_scores.astype(refs['d_rows'].dtype)
            triton.store(refs['d_rows'].at[block.diagonal], change, mask=block.has_row)
        return to_queries + _product(to_scores.astype(keys.dtype), keys)

    first, last = refs['ranges'][query_block, 0], refs['ranges'][query_block, 1]
    zeros = jnp.zeros((call.queries, call.width), jnp.float32)
    to_queries = jax.lax.fori_loop(first, last, add, zeros)
    refs['d_queries'][at, :] = to_queries.astype(refs['d_queries'].dtype)
