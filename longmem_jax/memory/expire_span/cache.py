"""What a stream keeps of Expire-Span between the tokens of an open segment, and how it reads."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.kernels.cpu.attention_products import dot, mix
from longmem_jax.layers.projections import repeat_heads
from longmem_jax.layers.switching import Projector
from longmem_jax.memory.expire_span.ramp import masks
from longmem_jax.memory.expire_span.spans import cut, expire_spans, filled_columns


@flax.struct.dataclass
class ExpireSpanCache:
    """What an open segment reads, and will write when it closes.

    Attributes:
      old_keys, old_values: [batch, kv_heads, capacity - position_length, head_dim].
      old_spans: float32 [batch, capacity - position_length].
      keys, values: [batch, kv_heads, position_length + segment_length, head_dim].
      spans: float32 [batch, position_length + segment_length].
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      distance, count, window_count: as in the state.
    """

    old_keys: jax.Array
    old_values: jax.Array
    old_spans: jax.Array
    keys: jax.Array
    values: jax.Array
    spans: jax.Array
    hidden: jax.Array
    distance: jax.Array
    count: jax.Array
    window_count: jax.Array

    def before(self, end: int | jax.Array) -> 'ExpireSpanCache':
        """With the keys of window and segment below `end` if it is an int; see `KeyValues.before`."""
        if not isinstance(end, int):
            return self
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return self.replace(keys=keys, values=values, spans=self.spans[:, :end])


def project_buffer(
    size: int,
    operands: Any,
    _: tuple[()],
    *,
    project: Projector,
    max_span: int,
    pre_div: float,
    limit: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`old_keys`, `old_values` and `old_spans` of a cache, for `switching.switch`.

    Args:
      size: entries of the buffer that are projected, the first ones; the others are zeros.
      operands: variables of `project`, kernel and bias of the spans, and the buffer.
      project, max_span, pre_div, limit: as in `reading.read_segment`, and of `ExpireSpan`.
    """
    variables, kernel, bias, buffer = operands
    normal, keys, values = project(variables, buffer[:, :size])
    padding = [(0, 0), (0, buffer.shape[1] - size)]
    spans = cut(expire_spans(normal, kernel, bias, max_span, pre_div), limit)
    return (
        jnp.pad(keys, [(0, 0), *padding, (0, 0)]),
        jnp.pad(values, [(0, 0), *padding, (0, 0)]),
        jnp.pad(spans, padding),
    )


def read_tokens(size: int, operands: Any, _: tuple[()], *, width: int, ramp: int) -> jax.Array:
    """What the next tokens of an open segment read, for `switching.switch`.

    Args:
      size: entries of the buffer that are read, the first ones.
      operands: the cache; of the tokens `queries` (scaled) [batch, heads, n, head_dim]; `near`, their
        scores by distance, and `recent`, their distances, of window and segment; `position`, int32
        [batch, n, 1], theirs in the segment.
      width: `position_length` of `ExpireSpan`.
      ramp: R of Eq. 5.

    Returns:
      [batch, heads, n, head_dim].
    """
    cache, queries, near, recent, position = operands
    length = cache.keys.shape[2] - width
    all_queries = jnp.full(position.shape[:1], length, jnp.int32)
    keys, values = (
        repeat_heads(jnp.concatenate([old[:, :, :size], new], axis=2), queries.shape[1])
        for old, new in ((cache.old_keys, cache.keys), (cache.old_values, cache.values))
    )
    scores = dot(queries, keys)
    scores = scores + jnp.pad(near, [(0, 0)] * 3 + [(size, 0)]).astype(scores.dtype)
    soft, _ = masks(
        jnp.concatenate([cache.distance[:, None, :size] + position, recent], axis=2),
        jnp.concatenate([cache.old_spans[:, :size], cache.spans], axis=1),
        filled_columns(size, cache.count, width, cache.window_count, length),
        all_queries,
        ramp,
    )
    soft = soft[:, None].astype(scores.dtype)
    return mix(scores, values, soft > 0, soft, None)
