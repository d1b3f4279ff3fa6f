"""How Expire-Span reads the used part of its buffer: pure functions for `switching`."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.span_attention import ATTEND, Dropout, attend, weights
from longmem_jax.layers.switching import Projector
from longmem_jax.memory.expire_span.maths import (
    ExpireSpanState,
    cut,
    expire_spans,
    key_spans,
    ramp_loss,
)


def draw_shortening(key: jax.Array | None) -> jax.Array:
    """The random share of `max_span` that limits spans in a training step (Sec. 4.2), in [0, 1)."""
    if key is None:
        raise ValueError(
            "shorten = True draws random numbers in training: pass rngs={'memory': key}"
        )
    return jax.random.uniform(key)


class Params(flax.struct.PyTreeNode):
    """What a layer learns.

    Attributes:
      projector: variables of norm, keys and values, see `memory_projector`.
      kernel, bias: w and b of Eq. 3.
      table: near positions.
    """

    projector: Any
    kernel: jax.Array
    bias: jax.Array
    table: jax.Array


class Rows(flax.struct.PyTreeNode):
    """A segment and the memories before it.

    Attributes:
      queries (scaled), keys, values: of the segment, [batch, heads, length, head_dim].
      spans: float [batch, length].
      num_valid: int32 [batch].
      limit: float32 [batch], upper limit of spans.
      state: the memories, detached.
      dropout: None = none.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    spans: jax.Array
    num_valid: jax.Array
    limit: jax.Array
    state: ExpireSpanState
    dropout: Dropout | None = None


def _joined(
    size: int,
    params: Params,
    rows: Rows,
    project: Projector,
    max_span: int,
    pre_div: float,
    ramp: int,
) -> tuple[Any, ...]:
    """Keys and values of buffer, window and segment, their `KeySpans`, and the spans of the memories."""
    state = rows.state
    memory = jnp.concatenate([state.buffer[:, :size], state.window], axis=1)
    normal, keys, values = project(params.projector, memory)
    old_spans = expire_spans(normal, params.kernel, params.bias, max_span, pre_div)
    spans = jnp.concatenate([old_spans, rows.spans], axis=1)
    spans = jnp.minimum(spans, rows.limit[:, None].astype(spans.dtype))
    width, distance = state.window.shape[1], state.distance[:, :size]
    seen = key_spans(spans, distance, state.count, width, state.window_count, ramp)
    keys = jnp.concatenate([keys, rows.keys], axis=2)
    return keys, jnp.concatenate([values, rows.values], axis=2), seen, old_spans


def read_segment(
    size: int,
    params: Params,
    rows: Rows,
    *,
    project: Projector,
    max_span: int,
    pre_div: float,
    ramp: int,
    block_size: int,
    kernels: str,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """What a segment reads from the first `size` entries of the buffer, the window, and itself.

    Returns:
      [batch, heads, length, head_dim]; the loss [batch]; and, detached and without the limit, the spans
      of the whole buffer (zeros where it is not read) and of the window.
    """
    keys, values, seen, spans = _joined(size, params, rows, project, max_span, pre_div, ramp)
    room, width = rows.state.buffer.shape[1], rows.state.window.shape[1]
    out = ATTEND[kernels](
        rows.queries,
        keys,
        values,
        params.table,
        seen,
        offset=size + width,
        dropout=rows.dropout,
        block_size=block_size,
    )
    loss = ramp_loss(seen, rows.num_valid, rows.queries.shape[2])
    old = jnp.pad(spans[:, :size], [(0, 0), (0, room - size)])
    return out, loss, jax.lax.stop_gradient((old, spans[:, size:]))


def weights_of_segment(params: Params, rows: Rows, **fields: Any) -> jax.Array:
    """The weights of the whole buffer, the window and the segment, [batch, heads, length, keys]."""
    room, width = rows.state.buffer.shape[1], rows.state.window.shape[1]
    keys, _, seen, _ = _joined(room, params, rows, **fields)
    return weights(rows.queries, keys, params.table, seen, offset=room + width)


class ExpireSpanCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes: of buffer, window and segment.

    Attributes:
      keys, values: [batch, kv_heads, capacity + segment_length, head_dim].
      spans: float32 [batch, capacity + segment_length], without the limit.
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      distance, count, window_count: as in the state.
    """

    keys: jax.Array
    values: jax.Array
    spans: jax.Array
    hidden: jax.Array
    distance: jax.Array
    count: jax.Array
    window_count: jax.Array


def project_buffer(
    size: int,
    params: Params,
    buffer: jax.Array,
    *,
    project: Projector,
    max_span: int,
    pre_div: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Keys, values and spans of the first `size` entries, and zeros for the others."""
    normal, keys, values = project(params.projector, buffer[:, :size])
    padding = [(0, 0), (0, buffer.shape[1] - size)]
    spans = expire_spans(normal, params.kernel, params.bias, max_span, pre_div)
    keys, values = (jnp.pad(array, [(0, 0), *padding, (0, 0)]) for array in (keys, values))
    return keys, values, jnp.pad(spans, padding)


def with_room(
    old: tuple[jax.Array, ...], recent: tuple[jax.Array, ...], length: int
) -> list[jax.Array]:
    """Keys, values and spans of buffer and window, with zeros for the `length` tokens of a segment."""
    joined = []
    for axis, *both in zip((2, 2, 1), old, recent, strict=True):
        shape = (*both[1].shape[:axis], length, *both[1].shape[axis + 1 :])
        joined.append(jnp.concatenate([*both, jnp.zeros(shape, both[1].dtype)], axis=axis))
    return joined


def read_tokens(
    size: int,
    cache: ExpireSpanCache,
    queries: jax.Array,
    table: jax.Array,
    first: jax.Array | None,
    *,
    index: int | None,
    width: int,
    ramp: int,
    limit: int,
) -> jax.Array:
    """What the next tokens of an open segment read, [batch, heads, n, head_dim].

    Args:
      size: entries of the buffer that are read, the first ones.
      cache: with these tokens.
      queries: of the tokens, scaled.
      table: near positions.
      first: position of the first token in the segment, int32 [batch]; None = `index`.
      index: the same as an int, if it is known to the compiler.
      width, ramp, limit: fields of `ExpireSpan`; width = `position_length`.
    """
    room = cache.distance.shape[1]
    end = None if index is None else room + width + index + queries.shape[2]
    keys, values = (
        jnp.concatenate([array[:, :, :size], array[:, :, room:end]], axis=2)
        for array in (cache.keys, cache.values)
    )
    spans = jnp.concatenate([cache.spans[:, :size], cache.spans[:, room:end]], axis=1)
    distance = cache.distance[:, :size]
    seen = key_spans(cut(spans, limit), distance, cache.count, width, cache.window_count, ramp)
    at = first if index is None else index
    assert at is not None  # one of both is given
    return attend(queries, keys, values, table, seen, offset=size + width, first=at)
