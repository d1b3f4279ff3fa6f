"""How Adaptive-Span reads the vectors within reach: pure functions for `switching`."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.span_attention import ATTEND, Dropout, attend, weights
from longmem_jax.layers.switching import Projector
from longmem_jax.memory.adaptive_span.maths import KeySpans, key_spans


class Params(flax.struct.PyTreeNode):
    """What a layer learns.

    Attributes:
      projector: variables of norm, keys and values, see `memory_projector`.
      share: spans as shares of `max_span`, float [heads | 1]; None = all heads see `max_span`.
      table: near positions.
    """

    projector: Any
    share: jax.Array | None
    table: jax.Array


class Rows(flax.struct.PyTreeNode):
    """A segment and the memory before it.

    Attributes:
      queries (scaled), keys, values: of the segment, [batch, heads, length, head_dim].
      memory: [batch, max_span, d_model], detached.
      count: int32 [batch], its filled vectors, the last ones.
      dropout: None = none.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    memory: jax.Array
    count: jax.Array
    dropout: Dropout | None = None


def _joined(
    size: int, params: Params, rows: Rows, project: Projector, max_span: int, ramp: int
) -> tuple[jax.Array, jax.Array, KeySpans]:
    """Keys, values and spans of the last `size` vectors of the memory and of the segment."""
    _, keys, values = project(params.projector, rows.memory[:, max_span - size :])
    keys = jnp.concatenate([keys, rows.keys], axis=2)
    values = jnp.concatenate([values, rows.values], axis=2)
    return keys, values, key_spans(size, keys.shape[2], rows.count, params.share, max_span, ramp)


def read_segment(
    size: int,
    params: Params,
    rows: Rows,
    *,
    project: Projector,
    max_span: int,
    ramp: int,
    kernels: str,
) -> jax.Array:
    """What a segment reads from the last `size` vectors and itself, [batch, heads, length, head_dim]."""
    keys, values, seen = _joined(size, params, rows, project, max_span, ramp)
    return ATTEND[kernels](
        rows.queries, keys, values, params.table[:size], seen, offset=size, dropout=rows.dropout
    )


def weights_of_segment(
    params: Params, rows: Rows, project: Projector, max_span: int, ramp: int
) -> jax.Array:
    """The weights of the memory and the segment, [batch, heads, length, max_span + length]."""
    keys, _, seen = _joined(max_span, params, rows, project, max_span, ramp)
    return weights(rows.queries, keys, params.table, seen, offset=max_span)


class AdaptiveSpanCache(flax.struct.PyTreeNode):
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
    size: int, variables: Any, hidden: jax.Array, *, project: Projector, length: int
) -> tuple[jax.Array, jax.Array]:
    """`keys` and `values` of a cache: of the last `size` vectors, with zeros before and after them."""
    before = hidden.shape[1] - size
    _, keys, values = project(variables, hidden[:, before:])
    room = [(0, 0), (0, 0), (before, length), (0, 0)]
    return jnp.pad(keys, room), jnp.pad(values, room)


def read_tokens(
    size: int,
    cache: AdaptiveSpanCache,
    queries: jax.Array,
    table: jax.Array,
    share: jax.Array | None,
    first: jax.Array | None,
    *,
    index: int | None,
    max_span: int,
    ramp: int,
) -> jax.Array:
    """What the next tokens of an open segment read, [batch, heads, n, head_dim].

    Args:
      size: vectors of the memory that are read, the last ones.
      cache: with these tokens.
      queries: of the tokens, scaled.
      table, share: as in `Params`.
      first: position of the first token in the segment, int32 [batch]; None = `index`.
      index: the same as an int, if it is known to the compiler.
      max_span, ramp: fields of `AdaptiveSpan`.
    """
    end = None if index is None else max_span + index + queries.shape[2]
    keys, values = (array[:, :, max_span - size : end] for array in (cache.keys, cache.values))
    seen = key_spans(size, keys.shape[2], cache.count, share, max_span, ramp)
    at = first if index is None else index
    assert at is not None  # one of both is given
    return attend(queries, keys, values, table[:size], seen, offset=size, first=at)
