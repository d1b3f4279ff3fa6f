"""Reading the memories of Expire-Span, as one pure function.

A buffer of many more than `block_size` entries is read block after block, so that keys, values,
masks and scores exist for one block at a time. The window and the segment are always read at once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.attention.weight_dropout import factor_by_column, memory_factor, rest_factor
from longmem_jax.kernels.cpu.attention_products import RunningMix, dot, empty_mix, mix, weights_of
from longmem_jax.kernels.cpu.by_distance import add_at
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.memory.expire_span.ramp import masks
from longmem_jax.memory.expire_span.spans import expire_spans, filled_columns


def blocks_of(size: int, block_size: int, chunk: int) -> tuple[int, int]:
    """Number and size of the blocks in which `size` entries are read: (1, size) if one is enough.

    Args:
      size: entries, static.
      block_size: entries per block; 0 = no limit. Up to a quarter more are one block, too.
      chunk: blocks are multiples of it, which may make them larger than `block_size`.
    """
    if not block_size or 4 * size <= 5 * block_size:
        return 1, size
    chunks = -(-size // chunk)
    number = -(-chunks // max(block_size // chunk, 1))
    return number, -(-chunks // number) * chunk


def with_near(differentiable: tuple[Any, dict[str, Any]], *, width: int) -> tuple[Any, Any]:
    """Parameters and inputs of `read_segment`, of those with a `table` of near positions.

    Args:
      differentiable: parameters, and inputs by name.
      width: tokens of the window.

    Returns:
      The parameters without the table; the inputs, and as `near` the scores by distance of window and
      segment, [batch, heads, length, width + length].
    """
    params, inputs = differentiable
    others = {name: value for name, value in params.items() if name != 'table'}
    near = near_positions.whole_segment(inputs['queries'], params['table'], width)
    return others, inputs | {'near': near}


def read_segment(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    *,
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    pre_div: float,
    ramp: int,
    block_size: int,
    dropout_rate: float,
    dropout_chunk: int,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """What a segment reads from the memory and itself: a pure function for `read_memory`.

    Args:
      size: number of entries of the buffer that are read, the first ones.
      params: `projector`, variables of `project`; `kernel` and `bias` of the spans.
      rows: of the segment `queries` (scaled), `keys`, `values` [batch, heads, length, head_dim],
        `near`, see `with_near`, `spans` float [batch, length] and `num_valid` int32 [batch]; `state`,
        the memories; `limit` float32 [batch], upper limit of spans; `dropout` random keys [batch], if
        any.
      project: see `memory_projector`.
      max_span, pre_div, ramp, block_size: fields of `ExpireSpan`.
      dropout_rate, dropout_chunk: see `factor_by_column`.

    Returns:
      [batch, heads, length, head_dim]; the loss [batch]; and, detached and without the limit, the spans
      of the whole buffer (zeros where it is not read) and of the window.
    """
    state, queries = rows['state'], rows['queries']
    number, block = blocks_of(size, block_size, dropout_chunk)
    at_once = size if number == 1 else 0  # entries of the buffer that are read with the window

    project_memory = _projector(params, project, max_span, pre_div)
    masked = functools.partial(_masked, rows=rows, ramp=ramp)
    scores, values, soft, loss, spans = _at_once(at_once, params, rows, project_memory, ramp)
    dropout = None
    if number == 1:
        if dropout_rate:
            dropout = factor_by_column(dropout_rate, rows['dropout'], scores, size, dropout_chunk)
        out = mix(scores, values, soft > 0, soft, dropout)
        buffer_spans = spans[:, :size]
    else:
        if dropout_rate:
            dropout = rest_factor(dropout_rate, rows['dropout'], scores)
        running = empty_mix(queries).add(scores, values, soft, dropout)

        def read_block(
            carry: tuple[RunningMix, jax.Array], inputs: tuple[jax.Array, ...]
        ) -> tuple[tuple[RunningMix, jax.Array], jax.Array]:
            running, loss = carry
            index, hidden, distance = inputs
            keys, values, spans = project_memory(hidden)
            scores = dot(queries, repeat_heads(keys, queries.shape[1]))
            column = index * block + jnp.arange(block, dtype=jnp.int32)[None]
            soft, block_loss = masked(distance, spans, column < state.count[:, None])
            dropout = None
            if dropout_rate:
                first = index * (block // dropout_chunk)
                dropout = memory_factor(dropout_rate, rows['dropout'], scores, dropout_chunk, first)
            values = repeat_heads(values, queries.shape[1])
            running = running.add(scores, values, soft, dropout)
            return (running, loss + block_loss), jax.lax.stop_gradient(spans)

        (running, loss), by_block = jax.lax.scan(
            jax.checkpoint(read_block, prevent_cse=False),
            (running, loss),
            (
                jnp.arange(number, dtype=jnp.int32),
                _in_blocks(state.buffer[:, :size], number, block),
                _in_blocks(state.distance[:, :size], number, block),
            ),
        )
        out = running.result(values.dtype)
        buffer_spans = jnp.swapaxes(by_block, 0, 1).reshape(queries.shape[0], -1)[:, :size]
    padding = [(0, 0), (0, state.buffer.shape[1] - size)]
    return (
        out,
        loss,
        jax.lax.stop_gradient((jnp.pad(buffer_spans, padding), spans[:, at_once:])),
    )


def weights_of_segment(
    params: dict[str, Any],
    rows: dict[str, Any],
    *,
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    pre_div: float,
    ramp: int,
) -> jax.Array:
    """The weights of the whole buffer, the window and the segment, for inspection.

    Args:
      params, rows, project, max_span, pre_div, ramp: as in `read_segment`.

    Returns:
      [batch, heads, length, keys].
    """
    project_memory = _projector(params, project, max_span, pre_div)
    room = rows['state'].buffer.shape[1]
    scores, _, soft, _, _ = _at_once(room, params, rows, project_memory, ramp)
    return weights_of(scores, soft > 0, soft)


def _projector(
    params: dict[str, Any],
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    pre_div: float,
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
    """Keys, values and spans of vectors of the memory."""

    def project_memory(hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        normal, keys, values = project(params['projector'], hidden)
        spans = expire_spans(normal, params['kernel'], params['bias'], max_span, pre_div)
        return keys, values, spans

    return project_memory


def _at_once(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    project_memory: Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    ramp: int,
) -> tuple[jax.Array, ...]:
    """What is read at once: the first `size` entries of the buffer, the window and the segment.

    Returns:
      Scores [batch, heads, length, keys], values of all heads, the soft mask and the loss, see `masks`,
      and the spans of buffer and window, [batch, size + width].
    """
    state, queries = rows['state'], rows['queries']
    length, width = queries.shape[2], state.window.shape[1]
    memory = jnp.concatenate([state.buffer[:, :size], state.window], axis=1)
    keys, values, spans = project_memory(memory)
    keys = repeat_heads(jnp.concatenate([keys, rows['keys']], axis=2), queries.shape[1])
    values = repeat_heads(jnp.concatenate([values, rows['values']], axis=2), queries.shape[1])
    scores = add_at(dot(queries, keys), rows['near'], size)
    recent = width - jnp.arange(width + length, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (queries.shape[0], width + length))
    soft, loss = _masked(
        jnp.concatenate([state.distance[:, :size], recent], axis=1),
        jnp.concatenate([spans, rows['spans']], axis=1),
        filled_columns(size, state.count, width, state.window_count, length),
        rows=rows,
        ramp=ramp,
    )
    return scores, values, soft, loss, spans


def _masked(
    distance: jax.Array, spans: jax.Array, filled: jax.Array, *, rows: dict[str, Any], ramp: int
) -> tuple[jax.Array, jax.Array]:
    """Soft mask [batch, 1, length, keys] in the dtype of scores, and loss [batch]; see `masks`.

    Args:
      distance: int32 [batch, keys], from the first query of the segment.
      spans: float [batch, keys], before the limit.
      filled: bool [batch, keys].
      rows, ramp: as in `read_segment`.
    """
    length = rows['queries'].shape[2]
    distance = distance[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :, None]
    spans = jnp.minimum(spans, rows['limit'][:, None].astype(spans.dtype))
    soft, loss = masks(distance, spans, filled, rows['num_valid'], ramp)
    return soft[:, None], loss


def _in_blocks(rows: jax.Array, number: int, block: int) -> jax.Array:
    """[batch, n, ...] as [number, batch, block, ...], with zeros at the end."""
    padding = [(0, 0), (0, number * block - rows.shape[1])] + [(0, 0)] * (rows.ndim - 2)
    rows = jnp.pad(rows, padding)
    return jnp.moveaxis(rows.reshape(rows.shape[0], number, block, *rows.shape[2:]), 1, 0)
