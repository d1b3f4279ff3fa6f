"""Expire-Span: every memory has a learned span, then is really deleted (Sukhbaatar et al., 2021).

The last `position_length` tokens of a lane (batch row) are always kept, in a window. Memories that leave
it and have not expired are kept in a buffer of fixed capacity, live ones in front. Attention and writing
run in one of a few static sizes, the smallest that holds the live memories of the device's lanes, so
the cost of a step depends on what is alive, not on the capacity.

As in the authors' code, spans are recomputed in every segment from the kept vectors and the current
weights, and a query never attends to itself.

The equations are in `maths`, what a segment reads in `reading`, the mask and its derivative in
`attention/span_attention` and `attention/ramp`.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.span_attention import Dropout, draw_dropout, read_next, with_tokens
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.switching import (
    bound,
    memory_projector,
    read_memory,
    sizes_below,
    switch,
)
from longmem_jax.memory.expire_span.maths import (
    ExpireSpanState,
    cut,
    empty_state,
    expire_spans,
    memory_size,
)
from longmem_jax.memory.expire_span.reading import (
    ExpireSpanCache,
    Params,
    Rows,
    draw_shortening,
    project_buffer,
    read_segment,
    read_tokens,
    with_room,
)
from longmem_jax.memory.expire_span.writing import write
from longmem_jax.segment import Aux, Segment, count_round, mean_count


def _of_spans(spans: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
    """Metrics of the spans [batch, length] of a segment, whose tokens are `valid`."""
    counted = valid.astype(jnp.float32)
    spans = spans.astype(jnp.float32) * counted
    return {
        'span_mean': spans.sum() / jnp.maximum(counted.sum(), 1.0),
        'span_max': spans.max(),
    }


class ExpireSpan(nn.Module):
    """Attention to memories that have not expired.

    Gradients reach the span parameters through the recomputed spans of kept vectors; the vectors
    themselves are detached. `Aux.losses['expire_span']` is `ramp_loss`, averaged over lanes; its
    weight alpha is `config.train.loss_weights.expire_span`.

    Attributes:
      max_span: L, the longest span, in tokens.
      ramp: R, tokens over which the mask falls.
      capacity: largest number of entries per layer and lane, including those of the window, for
        which space is reserved. It may be far below max_span, since expired entries need no space.
        If it is full, the entries that would expire first are dropped and counted in the metric
        `dropped`. 0 = max_span + ramp + position_length, which never overflows.
      position_length: number of distances with a position term; this many of the last tokens are
        kept whatever their span.
      pre_div: divisor of the hidden vector in Eq. 8; 1 gives Eq. 3.
      initial_share: initial span, as a share of max_span.
      shorten: limit spans to a random share of max_span in every training step.
      start: a document begins with 'empty' memory, or with `position_length` 'zeros' vectors that
        are attended to, as in the authors' code.
      num_sizes: largest number of buffer sizes; each is half of the next and compiled by itself, and a
        step uses the smallest that holds what is alive.
      block_size: entries of the buffer that are read at a time, to save space; the results are the
        same. A quarter more is read at once. 0 = all at once. The fused kernel chooses its blocks.
      limit: cuts longer spans to this many tokens, such as in evaluation (Fig. 9); 0 = no limit.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    max_span: int = 16_384
    ramp: int = 128
    capacity: int = 0
    position_length: int = 512
    pre_div: float = 1.0
    initial_share: float = 0.1
    shorten: bool = False
    start: str = 'empty'
    num_sizes: int = 6
    block_size: int = 1024
    limit: int = 0

    def setup(self) -> None:
        settings = self.settings
        self.projections = Projections(settings)
        zeros = initializers.with_axes(nn.initializers.zeros, ('norm',))
        self.span_kernel = self.param('span_kernel', zeros, (settings.d_model,))
        bias = -math.log(1 / self.initial_share - 1)
        self.span_bias = self.param('span_bias', nn.initializers.constant(bias), ())
        longest = min(self.max_span, self.limit or self.max_span) + self.ramp
        self.room = (self.capacity - self.position_length) if self.capacity else longest
        always = self.position_length + settings.segment_length
        self.sizes = sizes_below(self.room, self.num_sizes, always)

    def _spans(self, normal: jax.Array) -> jax.Array:
        """Spans of normalised vectors [batch, n, d_model], float [batch, n]."""
        return expire_spans(normal, self.span_kernel, self.span_bias, self.max_span, self.pre_div)

    def spans(self, x: jax.Array) -> jax.Array:
        """Spans of the layer's inputs [batch, n, d_model] in tokens, float32 [batch, n]."""
        return cut(self._spans(self.normalize(x)), self.limit)

    def initial_state(self, batch_size: int) -> ExpireSpanState:
        """Empty memories, or zero vectors in the window."""
        zeros = self.start == 'zeros'
        return empty_state(self.settings, batch_size, self.position_length, self.room, zeros)

    def params(self) -> tuple[Any, Params]:
        """`project` of `reading`, and what the layer learns."""
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )
        return project, Params(variables, self.span_kernel, self.span_bias, self.shared())

    def rows(
        self,
        normal: jax.Array,
        state: ExpireSpanState,
        num_valid: jax.Array,
        share: Any = 1.0,
        dropout: Dropout | None = None,
    ) -> Rows:
        """The segment and its memories; spans are at most `share` of `max_span`, and `limit`."""
        limit = jnp.minimum(share * self.max_span, self.limit or self.max_span)
        return Rows(
            queries=self.projections.scaled_queries(normal),
            keys=self.projections.keys(normal),
            values=self.projections.values(normal),
            spans=self._spans(normal),
            num_valid=num_valid,
            limit=jnp.full(num_valid.shape, limit, jnp.float32),
            state=jax.lax.stop_gradient(state),
            dropout=dropout,
        )

    def __call__(
        self, x: jax.Array, state: ExpireSpanState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, ExpireSpanState, Aux]:
        """Attends to memories and segment, then writes; x, y are [batch, length, d_model]."""
        share = draw_shortening(segment.key) if train and self.shorten else 1.0
        dropout = draw_dropout(self, x.shape[0], train)
        rows = self.rows(self.normalize(x), state, segment.num_valid, share, dropout)
        project, params = self.params()
        fields = dict(max_span=self.max_span, pre_div=self.pre_div, ramp=self.ramp)
        how = dict(block_size=self.block_size, kernels=self.settings.kernels)
        # read_segment(size, params, rows), with the smallest of `sizes` that holds what is alive.
        read = bound(read_segment, project=project, **fields, **how)
        out, loss, spans = read_memory(read, self.sizes, state.count, params, rows)
        spans = jax.lax.stop_gradient((*spans, rows.spans))
        old, recent, own = (cut(each, self.limit) for each in spans)
        near = jnp.concatenate([recent, own], axis=1)
        new = write(self.sizes, self.ramp, rows.state, x, segment.num_valid, old, near)
        metrics = {
            'memory_size': mean_count(memory_size(rows.state, old, recent, self.ramp)),
            **_of_spans(own, segment.valid),
            'dropped': mean_count(count_round(new.dropped, -state.dropped)),
        }
        return self.projections.out(out), new, Aux({'expire_span': loss.mean()}, metrics)

    def open_segment(self, state: ExpireSpanState, batch_size: int) -> ExpireSpanCache:
        """Projects the live memories, once for all tokens of the segment."""
        settings, (project, params) = self.settings, self.params()
        fields = dict(project=project, max_span=self.max_span, pre_div=self.pre_div)
        read = bound(project_buffer, **fields)
        old = switch(read, self.sizes, state.count.max(), params, state.buffer)
        recent = project_buffer(self.position_length, params, state.window, **fields)
        hidden = jnp.zeros((batch_size, settings.segment_length, settings.d_model), settings.dtype)
        keys, values, spans = with_room(old, recent, settings.segment_length)
        held = state.distance, state.count, state.window_count
        return ExpireSpanCache(keys, values, spans, hidden, *held)

    def extend(
        self, x: jax.Array, cache: ExpireSpanCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, ExpireSpanCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        normal = self.normalize(x)
        keys, values = self.projections.keys(normal), self.projections.values(normal)
        spans = self._spans(normal)
        cache = with_tokens(cache, index, x, keys=keys, values=values, spans=spans)
        operands = cache, self.projections.scaled_queries(normal), self.shared()
        fields = dict(width=self.position_length, ramp=self.ramp, limit=self.limit)
        out = read_next(read_tokens, self.sizes, cache.count.max(), index, *operands, **fields)
        return self.projections.out(out), cache

    def close_segment(
        self, state: ExpireSpanState, cache: ExpireSpanCache, count: jax.Array
    ) -> ExpireSpanState:
        """Writes the first `count` tokens of the open segment."""
        spans = cut(cache.spans, self.limit)
        old, recent = spans[:, : self.room], spans[:, self.room :]
        return write(self.sizes, self.ramp, state, cache.hidden, count, old, recent)
