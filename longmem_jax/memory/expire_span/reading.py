"""Reading the memories of Expire-Span, as one pure function.

A buffer of more than `block_size` entries is read block after block, so that keys, values, masks and
scores exist for one block at a time. The window and the segment are always read at once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers import fused_spans, near_positions
from longmem_jax.layers.attention_products import RunningMix, dot, empty_mix, mix
from longmem_jax.layers.fused_blocks import NEVER_SINCE
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.layers.weight_dropout import factor_by_column, memory_factor, rest_factor
from longmem_jax.memory.expire_span.spans import (
    ExpireSpanState,
    expire_spans,
    filled_columns,
    masks,
    ramp_loss_of_keys,
)


def blocks_of(size: int, block_size: int, chunk: int) -> tuple[int, int]:
    """Number and size of the blocks in which `size` entries are read: (1, size) if one is enough.

    Args:
      size: entries, static.
      block_size: most entries per block; 0 = no limit.
      chunk: blocks are multiples of it, which may make them larger than `block_size`.
    """
    if not block_size or size <= block_size:
        return 1, size
    chunks = -(-size // chunk)
    number = -(-chunks // max(block_size // chunk, 1))
    return number, -(-chunks // number) * chunk


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
    kernels: str = 'plain',
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """What a segment reads from the memory and itself: a pure function for `read_memory`.

    Args:
      size: number of entries of the buffer that are read, the first ones.
      params: `projector`, variables of `project`; `kernel` and `bias` of the spans; `table`, near
        positions.
      rows: of the segment `queries` (scaled), `keys`, `values` [batch, heads, length, head_dim],
        `spans` float [batch, length] and `num_valid` int32 [batch]; `state`, the memories; `limit`
        float32 [batch], upper limit of spans; `dropout` random keys [batch], if any.
      project: see `memory_projector`.
      max_span, pre_div, ramp, block_size: fields of `ExpireSpan`.
      dropout_rate, dropout_chunk: see `factor_by_column`.
      kernels: see `ModelSettings`; the fused kernel has blocks of its own.

    Returns:
      [batch, heads, length, head_dim]; the loss [batch]; and, detached and without the limit, the spans
      of the whole buffer (zeros where it is not read) and of the window.
    """
    state, queries = rows['state'], rows['queries']
    length, width = queries.shape[2], state.window.shape[1]
    fused = kernels == 'fused'
    number, block = blocks_of(size, 0 if fused else block_size, dropout_chunk)
    at_once = size if number == 1 else 0  # entries of the buffer that are read with the window

    def project_memory(hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        normal, keys, values = project(params['projector'], hidden)
        spans = expire_spans(normal, params['kernel'], params['bias'], max_span, pre_div)
        return keys, values, spans

    masked = functools.partial(_masked, rows=rows, ramp=ramp)
    memory = jnp.concatenate([state.buffer[:, :at_once], state.window], axis=1)
    keys, values, spans = project_memory(memory)
    keys = jnp.concatenate([keys, rows['keys']], axis=2)
    values = jnp.concatenate([values, rows['values']], axis=2)
    if fused:
        all_spans = jnp.concatenate([spans, rows['spans']], axis=1)
        out, loss = _read_fused(
            keys, values, all_spans, params, rows, size=size, ramp=ramp, dropout_rate=dropout_rate
        )
        return out, loss, _detached(spans[:, :size], spans[:, size:], state)
    keys = repeat_heads(keys, queries.shape[1])
    values = repeat_heads(values, queries.shape[1])
    near = near_positions.whole_segment(queries, params['table'], width)
    scores = dot(queries, keys)
    scores = scores + jnp.pad(near, [(0, 0)] * 3 + [(at_once, 0)]).astype(scores.dtype)
    recent = width - jnp.arange(width + length, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (queries.shape[0], width + length))
    soft, loss = masked(
        jnp.concatenate([state.distance[:, :at_once], recent], axis=1),
        jnp.concatenate([spans, rows['spans']], axis=1),
        filled_columns(at_once, state.count, width, state.window_count, length),
    )
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
    return out, loss, _detached(buffer_spans, spans[:, at_once:], state)


def _detached(
    buffer_spans: jax.Array, window_spans: jax.Array, state: ExpireSpanState
) -> tuple[jax.Array, jax.Array]:
    """Spans of the whole buffer, zeros where it is not read, and of the window, without gradient."""
    padding = [(0, 0), (0, state.buffer.shape[1] - buffer_spans.shape[1])]
    return jax.lax.stop_gradient((jnp.pad(buffer_spans, padding), window_spans))


def _read_fused(
    keys: jax.Array,
    values: jax.Array,
    spans: jax.Array,
    params: dict[str, Any],
    rows: dict[str, Any],
    *,
    size: int,
    ramp: int,
    dropout_rate: float,
) -> tuple[jax.Array, jax.Array]:
    """The same by the fused kernel, whose masks and scores exist for one block at a time.

    Args:
      keys, values: [batch, kv_heads, size + position_length + length, head_dim].
      spans: float [batch, the same], before the limit.
      params, rows, size, ramp, dropout_rate: as in `read_segment`.

    Returns:
      [batch, heads, length, head_dim]; the loss [batch].
    """
    state, length = rows['state'], rows['queries'].shape[2]
    width = state.window.shape[1]
    recent = width - jnp.arange(width + length, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (spans.shape[0], width + length))
    distance = jnp.concatenate([state.distance[:, :size], recent], axis=1)
    filled = filled_columns(size, state.count, width, state.window_count, length)
    since = jnp.where(filled, 1 - distance, NEVER_SINCE)
    spans = jnp.minimum(spans, rows['limit'][:, None].astype(spans.dtype))
    column = jnp.arange(size + width + length, dtype=jnp.int32)
    out = fused_spans.attend_spans(
        rows['queries'],
        keys,
        values,
        params['table'],
        offset=size + width,
        since=since,
        until=jnp.full_like(since, NEVER_SINCE),
        remaining=(spans - distance.astype(spans.dtype))[:, None],
        ramp=ramp,
        # The same for every size.
        numbers=jnp.where(column < size, column, column - size + fused_spans.LATER),
        dropout=dropout_rate,
        lane_keys=rows.get('dropout'),
    )
    loss = ramp_loss_of_keys(spans, distance, since, rows['num_valid'], ramp, length)
    return out, loss


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
