"""Reading the memories of Expire-Span, as one pure function."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers import near_positions
from longmem_jax.layers.attention_products import dot, mix
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.layers.weight_dropout import factor_by_column
from longmem_jax.memory.expire_span.spans import expire_spans, masks


def read_segment(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    *,
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    pre_div: float,
    ramp: int,
    dropout_rate: float,
    dropout_chunk: int,
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
      max_span, pre_div, ramp: fields of `ExpireSpan`.
      dropout_rate, dropout_chunk: see `factor_by_column`.

    Returns:
      [batch, heads, length, head_dim]; the loss [batch]; and, detached, the spans of the whole buffer
      (zeros where it is not read) and of the window.
    """
    state, queries = rows['state'], rows['queries']
    length, width = queries.shape[2], state.window.shape[1]
    memory = jnp.concatenate([state.buffer[:, :size], state.window], axis=1)
    memory, keys, values = project(params['projector'], memory)
    spans = expire_spans(memory, params['kernel'], params['bias'], max_span, pre_div)
    keys = repeat_heads(jnp.concatenate([keys, rows['keys']], axis=2), queries.shape[1])
    values = repeat_heads(jnp.concatenate([values, rows['values']], axis=2), queries.shape[1])
    near = near_positions.whole_segment(queries, params['table'], width)
    scores = dot(queries, keys)
    scores = scores + jnp.pad(near, [(0, 0)] * 3 + [(size, 0)]).astype(scores.dtype)
    index = jnp.arange(length, dtype=jnp.int32)[None, :, None]
    old = state.distance[:, None, :size] + index
    recent = width + index - jnp.arange(width + length, dtype=jnp.int32)[None, None]
    recent = jnp.broadcast_to(recent, (old.shape[0], *recent.shape[1:]))
    all_spans = jnp.concatenate([spans, rows['spans']], axis=1)
    soft, loss = masks(
        jnp.concatenate([old, recent], axis=2),
        jnp.minimum(all_spans, rows['limit'][:, None].astype(spans.dtype)),
        size,
        width,
        state.count,
        state.window_count,
        rows['num_valid'],
        ramp,
    )
    dropout = None
    if dropout_rate:
        dropout = factor_by_column(dropout_rate, rows['dropout'], scores, size, dropout_chunk)
    soft = soft[:, None].astype(scores.dtype)
    out = mix(scores, values, soft > 0, soft, dropout)
    buffer_spans = jnp.pad(spans[:, :size], [(0, 0), (0, state.buffer.shape[1] - size)])
    return out, loss, jax.lax.stop_gradient((buffer_spans, spans[:, size:]))
