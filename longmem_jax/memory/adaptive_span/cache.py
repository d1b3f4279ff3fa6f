"""What a stream keeps of Adaptive-Span between the tokens of an open segment, and how it reads."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.kernels.cpu.attention_products import dot, mix
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.layers.switching import Projector
from longmem_jax.memory.adaptive_span.spans import span_mask, visible


@flax.struct.dataclass
class AdaptiveSpanCache:
    """What an open segment reads, and will write when it closes.

    Attributes:
      keys, values: [batch, kv_heads, max_span + segment_length, head_dim].
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      count: int32 [batch], as in the state.
    """

    keys: jax.Array
    values: jax.Array
    hidden: jax.Array
    count: jax.Array


def project_memory(
    size: int, operands: Any, _: tuple[()], *, project: Projector, length: int
) -> tuple[jax.Array, jax.Array]:
    """`keys` and `values` of a cache, for `switching.switch`.

    Args:
      size: vectors of the memory that are projected, the last ones; the others are zeros.
      operands: variables of `project`, and the memory.
      project: see `switching.memory_projector`.
      length: room after them, for the segment.
    """
    variables, hidden = operands
    before = hidden.shape[1] - size
    _, keys, values = project(variables, hidden[:, before:])
    room = [(0, 0), (0, 0), (before, length), (0, 0)]
    return jnp.pad(keys, room), jnp.pad(values, room)


def read_tokens(
    size: int, operands: Any, _: tuple[()], *, max_span: int, ramp: int, index: int | None
) -> jax.Array:
    """What the next tokens of an open segment read, for `switching.switch`.

    Args:
      size: vectors of the memory that are read, the last ones.
      operands: the cache; `queries` of the tokens (scaled) [batch, heads, n, head_dim]; `table` and
        `share` as in `reading.read_segment`; `position`, int32 [batch | 1, n], of the tokens in the
        segment.
      max_span, ramp: fields of `AdaptiveSpan`.
      index: position of the first token if it is known to the compiler, or None.

    Returns:
      [batch, heads, n, head_dim].
    """
    cache, queries, table, share, position = operands
    offset, end = None, cache.keys.shape[2]
    if index is not None:
        offset, end = size + index, max_span + index + queries.shape[2]
    keys, values = (
        repeat_heads(cached[:, :, max_span - size : end], queries.shape[1])
        for cached in (cache.keys, cache.values)
    )
    column = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, None]
    distance = size + position[..., None] - column
    scores = dot(queries, keys)
    scores = scores + near_positions.of_tokens(queries, table, offset, distance)
    seen = visible(distance, jnp.maximum(size - cache.count, 0), max_span)
    soft = None
    if share is not None:
        soft = span_mask(share.astype(scores.dtype), distance, max_span, ramp)
    return mix(scores, values, seen, soft, None)
