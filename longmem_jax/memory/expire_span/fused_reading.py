"""Reading the memories of Expire-Span by the fused attention, a block of masks and scores at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.tpu import fused_spans
from longmem_jax.kernels.tpu.fused_blocks import NEVER_SINCE
from longmem_jax.memory.expire_span.ramp import ramp_loss_of_keys
from longmem_jax.memory.expire_span.spans import expire_spans, filled_columns


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
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """`reading.read_segment`, with the same results; dropout has other draws.

    The arguments are the same, but `params` has the `table` of near positions, and `rows` has no `near`.
    """
    state, length = rows['state'], rows['queries'].shape[2]
    width = state.window.shape[1]
    memory = jnp.concatenate([state.buffer[:, :size], state.window], axis=1)
    normal, keys, values = project(params['projector'], memory)
    old_spans = expire_spans(normal, params['kernel'], params['bias'], max_span, pre_div)
    spans = jnp.concatenate([old_spans, rows['spans']], axis=1)
    spans = jnp.minimum(spans, rows['limit'][:, None].astype(spans.dtype))
    recent = width - jnp.arange(width + length, dtype=jnp.int32)[None]
    recent = jnp.broadcast_to(recent, (spans.shape[0], width + length))
    distance = jnp.concatenate([state.distance[:, :size], recent], axis=1)
    filled = filled_columns(size, state.count, width, state.window_count, length)
    since = jnp.where(filled, 1 - distance, NEVER_SINCE)
    column = jnp.arange(size + width + length, dtype=jnp.int32)
    out = fused_spans.attend_spans(
        rows['queries'],
        jnp.concatenate([keys, rows['keys']], axis=2),
        jnp.concatenate([values, rows['values']], axis=2),
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
    buffer_spans = jnp.pad(old_spans[:, :size], [(0, 0), (0, state.buffer.shape[1] - size)])
    return out, loss, jax.lax.stop_gradient((buffer_spans, old_spans[:, size:]))
