"""Adaptive-Span: every head learns how far back it looks (Sukhbaatar et al., 2019).

Each layer keeps its last `max_span` input vectors, without gradient; a query sees the `max_span`
positions before it, never itself, under a soft mask whose reach is learned per head or per layer.
Keys beyond the reach of all heads are not read: attention runs in one of a few static sizes, the
smallest that holds the widest span. With `per = 'none'` the span is fixed, which is the
Transformer-XL of the Expire-Span paper.
"""

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
from longmem_jax.memory.adaptive_span.maths import AdaptiveSpanState, reach, remember, span_mask
from longmem_jax.memory.adaptive_span.reading import (
    AdaptiveSpanCache,
    Params,
    Rows,
    project_memory,
    read_segment,
    read_tokens,
)
from longmem_jax.segment import Aux, Segment, mean_count

MARGIN = 64  # tokens kept beyond the span when memory is trimmed, for spans that grow


class AdaptiveSpan(nn.Module):
    """Attention within learned spans.

    `Aux.losses['adaptive_span']` is `max_span * mean(share)`, the mean span in tokens; its weight is
    `config.train.loss_weights.adaptive_span`. `Aux.per_head['span']` are the spans of the heads in
    tokens. The optimizer keeps shares in [0, 1]; it finds them by their name, `span_share`.

    Attributes:
      max_span: L, the longest span, in tokens.
      ramp: R, tokens over which the mask falls.
      per: one span per 'head' or per 'layer'; 'none' = fixed at max_span.
      initial_share: initial span of all heads, as a share of max_span.
      start: a document begins with 'empty' memory, or with `max_span` 'zeros' vectors that are
        attended to, as in the authors' code.
      trim_memory: also forget vectors beyond the widest span + 64; they are missing if the span
        grows. False keeps all of max_span.
      num_sizes: largest number of window sizes; each is half of the next and compiled by itself, and a
        step uses the smallest that holds the widest span.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    max_span: int = 8192
    ramp: int = 32
    per: str = 'head'
    initial_share: float = 0.0
    start: str = 'empty'
    trim_memory: bool = False
    num_sizes: int = 6

    def setup(self) -> None:
        settings = self.settings
        self.projections = Projections(settings)
        fixed = self.per == 'none'
        self.sizes = sizes_below(
            self.max_span, 1 if fixed else self.num_sizes, settings.segment_length
        )
        if not fixed:
            axis, num_spans = ('heads', settings.num_heads) if self.per == 'head' else (None, 1)
            self.span_share = self.param(
                'span_share',
                initializers.with_axes(nn.initializers.constant(self.initial_share), (axis,)),
                (num_spans,),
            )

    def _share(self) -> jax.Array | None:
        """Spans as shares of `max_span`, [heads | 1]; None if they are fixed."""
        return None if self.per == 'none' else self.span_share

    def _reach(self) -> jax.Array:
        """Number of vectors of the memory that are read, int32 scalar."""
        if self.per == 'none':
            return jnp.asarray(self.max_span, jnp.int32)
        return reach(jax.lax.stop_gradient(self.span_share), self.max_span, self.ramp)

    def _limit(self) -> jax.Array | None:
        """Number of vectors kept at most, int32 scalar; None = `max_span`."""
        if not self.trim_memory or self.per == 'none':
            return None
        return jnp.minimum(self._reach() + MARGIN, self.max_span)

    def initial_state(self, batch_size: int) -> AdaptiveSpanState:
        """An empty window, or one of zero vectors."""
        filled = self.max_span if self.start == 'zeros' else 0
        shape = (batch_size, self.max_span, self.settings.d_model)
        return AdaptiveSpanState(
            jnp.zeros(shape, self.settings.dtype), jnp.full((batch_size,), filled, jnp.int32)
        )

    def params(self) -> tuple[Any, Params]:
        """`project` of `reading`, and what the layer learns."""
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )
        return project, Params(variables, self._share(), self.shared())

    def rows(
        self, normal: jax.Array, state: AdaptiveSpanState, dropout: Dropout | None = None
    ) -> Rows:
        """The segment, of normalised vectors, and its memory."""
        return Rows(
            queries=self.projections.scaled_queries(normal),
            keys=self.projections.keys(normal),
            values=self.projections.values(normal),
            memory=jax.lax.stop_gradient(state.hidden),
            count=state.count,
            dropout=dropout,
        )

    def in_span(self, distance: jax.Array) -> jax.Array:
        """The mask over distances, int32 [n], as a mean over the heads: float32 [n]."""
        if self.per == 'none':
            return jnp.ones(distance.shape, jnp.float32)
        mask = span_mask(self.span_share, distance, self.max_span, self.ramp)
        return mask.mean(axis=0).astype(jnp.float32)

    def __call__(
        self, x: jax.Array, state: AdaptiveSpanState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, AdaptiveSpanState, Aux]:
        """Attends to memory and segment, then writes; x, y are [batch, length, d_model]."""
        dropout = draw_dropout(self, x.shape[0], train)
        rows, reach = self.rows(self.normalize(x), state, dropout), self._reach()
        project, params = self.params()
        fields = dict(max_span=self.max_span, ramp=self.ramp, kernels=self.settings.kernels)
        read = bound(read_segment, project=project, **fields)
        needed = jnp.full(x.shape[:1], reach)
        out = read_memory(read, self.sizes, needed, params, rows)
        new = remember(state, x, segment.num_valid, self._limit())
        losses, per_head = {}, {}
        metrics = {'memory_size': mean_count(jnp.minimum(state.count, reach))}
        if self.per != 'none':
            losses['adaptive_span'] = self.max_span * self.span_share.mean()
            metrics['span_mean'] = jax.lax.stop_gradient(losses['adaptive_span'])
            metrics['span_max'] = jax.lax.stop_gradient(self.max_span * self.span_share.max())
        if self.per == 'head':
            per_head['span'] = jax.lax.stop_gradient(self.max_span * self.span_share)
        aux = Aux(losses, metrics, per_head)
        return self.projections.out(out), new, aux

    def open_segment(self, state: AdaptiveSpanState, batch_size: int) -> AdaptiveSpanCache:
        """Projects the vectors of the memory within reach, once for all tokens of the segment."""
        settings, (project, params) = self.settings, self.params()
        read = bound(project_memory, project=project, length=settings.segment_length)
        keys, values = switch(read, self.sizes, self._reach(), params.projector, state.hidden)
        hidden = jnp.zeros((batch_size, settings.segment_length, settings.d_model), settings.dtype)
        return AdaptiveSpanCache(keys, values, hidden, state.count)

    def extend(
        self, x: jax.Array, cache: AdaptiveSpanCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, AdaptiveSpanCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        normal = self.normalize(x)
        keys, values = self.projections.keys(normal), self.projections.values(normal)
        cache = with_tokens(cache, index, x, keys=keys, values=values)
        operands = cache, self.projections.scaled_queries(normal), self.shared(), self._share()
        fields = dict(max_span=self.max_span, ramp=self.ramp)
        out = read_next(read_tokens, self.sizes, self._reach(), index, *operands, **fields)
        return self.projections.out(out), cache

    def close_segment(
        self, state: AdaptiveSpanState, cache: AdaptiveSpanCache, count: jax.Array
    ) -> AdaptiveSpanState:
        """Writes the first `count` tokens of the open segment."""
        return remember(state, cache.hidden, count, self._limit())
