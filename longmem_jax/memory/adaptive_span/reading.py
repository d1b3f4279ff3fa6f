"""How Adaptive-Span reads: the attention of a segment to the last vectors of the memory and itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.attention.weight_dropout import factor_by_column
from longmem_jax.kernels.cpu.attention_products import dot, mix
from longmem_jax.kernels.tpu import fused_spans
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.memory.adaptive_span.spans import span_weights, visible


def read_segment(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    *,
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    ramp: int,
    dropout_rate: float,
    dropout_chunk: int,
    kernels: str = 'plain',
) -> jax.Array:
    """What a segment reads from the memory and itself: a pure function for `read_memory`.

    Args:
      size: number of vectors of the memory that are read, the last ones.
      params: `projector`, variables of `project`; `table`, near positions; `share`, spans as shares
        of `max_span`, float [heads | 1], or None if all heads see `max_span`.
      rows: of the segment `queries` (scaled), `keys`, `values` [batch, heads, length, head_dim];
        `memory` [batch, max_span, d_model], of which the last `count` (int32 [batch]) are filled;
        `dropout` random keys [batch], if any.
      project: see `memory_projector`.
      max_span, ramp: fields of `AdaptiveSpan`.
      dropout_rate, dropout_chunk: see `factor_by_column`.
      kernels: see `ModelSettings`.

    Returns:
      [batch, heads, length, head_dim].
    """
    if kernels == 'fused':
        _, keys, values = project(params['projector'], rows['memory'][:, max_span - size :])
        return fused_spans.attend_window(
            rows['queries'],
            jnp.concatenate([keys, rows['keys']], axis=2),
            jnp.concatenate([values, rows['values']], axis=2),
            params['table'][:size],
            count=rows['count'],
            max_span=max_span,
            span=None if params['share'] is None else params['share'] * max_span,
            ramp=ramp,
            dropout=dropout_rate,
            lane_keys=rows.get('dropout'),
        )
    scores, values, seen, soft = scores_of_segment(size, params, rows, project, max_span, ramp)
    dropout = None
    if dropout_rate:
        dropout = factor_by_column(
            dropout_rate, rows['dropout'], scores, size, dropout_chunk, newest_first=True
        )
    return mix(scores, values, seen, soft, dropout)


def scores_of_segment(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    ramp: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments of `mix` for `read_segment`; the arguments are as there.

    Returns:
      Scores [batch, heads, length, size + length], float32 at least; values [batch, heads,
      size + length, head_dim] of all heads; bool, what may be seen; and the soft mask, None without
      spans. The last two broadcast to the scores.
    """
    queries, share = rows['queries'], params['share']
    length = queries.shape[2]
    _, keys, values = project(params['projector'], rows['memory'][:, max_span - size :])
    keys = repeat_heads(jnp.concatenate([keys, rows['keys']], axis=2), queries.shape[1])
    values = repeat_heads(jnp.concatenate([values, rows['values']], axis=2), queries.shape[1])
    scores = dot(queries, keys)
    scores = scores + near_positions.whole_segment(queries, params['table'][:size], size)
    index = jnp.arange(length, dtype=jnp.int32)[None, :, None]
    distance = size + index - jnp.arange(size + length, dtype=jnp.int32)[None, None]
    seen = visible(distance, jnp.maximum(size - rows['count'], 0), max_span)
    soft = None
    if share is not None:
        # One per lane: sums of its derivative over lanes would be slow.
        by_lane = jnp.broadcast_to(distance, (scores.shape[0], *distance.shape[1:]))
        soft = span_weights(share.astype(scores.dtype), by_lane, max_span, ramp)
    return scores, values, seen, soft
