"""Adaptive-Span: every head learns how far back it looks (Sukhbaatar et al., 2019).

Each layer keeps its last `max_span` input vectors, without gradient; a query sees the `max_span`
positions before it, never itself, under a soft mask whose reach is learned per head or per layer.
Keys beyond the reach of all heads are not read: attention runs in one of a few static sizes, the
smallest that holds the widest span. With `per = 'none'` the span is fixed, which is the
Transformer-XL of the Expire-Span paper.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import STARTS, Entry, Graft, ModelSettings, Recipe, Scale
from longmem_jax.faults import at_least, between, one_of
from longmem_jax.layers import fused_spans, near_positions
from longmem_jax.layers.attention_products import dot, mix, weights_of
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.layers.self_attention import write_at
from longmem_jax.layers.switching import memory_projector, read_memory, sizes_below, switch
from longmem_jax.layers.weight_dropout import factor_by_column
from longmem_jax.layers.window import push
from longmem_jax.segment import Aux, Segment, mean_count
from longmem_jax.views import Held, Read, Seen, View, held_window

PER = ('head', 'layer', 'none')
MARGIN = 64  # tokens kept beyond the span when memory is trimmed, for spans that grow


@flax.struct.dataclass
class AdaptiveSpanState:
    """The window of hidden vectors of one layer.

    Attributes:
      hidden: [batch, max_span, d_model], in the compute dtype; the last `count` are filled.
      count: int32 [batch].
    """

    hidden: jax.Array
    count: jax.Array


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


def span_mask(share: jax.Array, distance: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """Soft mask over distances: 1 up to the span, then falling to 0 over `ramp` tokens.

    Args:
      share: float [heads | 1], spans as shares of `max_span`.
      distance: int32 [batch | 1, queries, keys].
      max_span, ramp: fields of `AdaptiveSpan`.

    Returns:
      float [batch | 1, heads | 1, queries, keys].
    """
    return _on_ramp(_remaining(share, distance, max_span), ramp)


def _remaining(share: jax.Array, distance: jax.Array, max_span: int) -> jax.Array:
    """Tokens of the span left at each distance; shapes as in `span_mask`."""
    return share[None, :, None, None] * max_span + 1 - distance[:, None].astype(share.dtype)


def _on_ramp(remaining: jax.Array, ramp: int) -> jax.Array:
    """Weights by the tokens of the span left."""
    return jnp.clip(remaining / ramp + 1, 0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def span_weights(share: jax.Array, distance: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """`span_mask`, with a derivative that is summed by products. Reverse mode only.

    Args:
      share, max_span, ramp: as there.
      distance: int32 [batch, queries, keys].

    Returns:
      [batch, heads | 1, queries, keys].
    """
    return span_mask(share, distance, max_span, ramp)


def _span_forward(
    share: jax.Array, distance: jax.Array, max_span: int, ramp: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return span_mask(share, distance, max_span, ramp), (share, distance)


def _span_backward(
    max_span: int, ramp: int, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    _, pull = jax.vjp(lambda left: _on_ramp(left, ramp), _remaining(*residuals, max_span))
    (to_remaining,) = pull(gradient)
    # Sums as matrix products: fused with the preceding operations they would be several times slower.
    ones = jnp.ones((gradient.shape[-1], 8), gradient.dtype)
    sums = jnp.einsum('bhqk,kr->bhqr', to_remaining, ones)[..., 0].sum(axis=(0, 2))
    return sums * max_span, None


span_weights.defvjp(_span_forward, _span_backward)


def reach(share: jax.Array, max_span: int, ramp: int) -> jax.Array:
    """Largest distance, int32 scalar, at which `span_mask` of any head is above 0."""
    widest = jnp.ceil(share.max() * max_span + ramp).astype(jnp.int32)
    return jnp.clip(widest, 1, max_span)


def visible(distance: jax.Array, first: jax.Array, max_span: int) -> jax.Array:
    """Which keys may be seen at all: filled ones, 1 to `max_span` before the query.

    Args:
      distance: int32 [batch | 1, queries, keys], from each query back to each key.
      first: int32 [batch], the first filled key.
      max_span: the largest distance.

    Returns:
      bool [batch, 1, queries, keys].
    """
    index = jnp.arange(distance.shape[2], dtype=jnp.int32)[None, None]
    seen = (distance >= 1) & (distance <= max_span)
    return (seen & (index >= first[:, None, None]))[:, None]


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
    scores, values, seen, soft = _scores(size, params, rows, project, max_span, ramp)
    dropout = None
    if dropout_rate:
        dropout = factor_by_column(
            dropout_rate, rows['dropout'], scores, size, dropout_chunk, newest_first=True
        )
    return mix(scores, values, seen, soft, dropout)


def _scores(
    size: int,
    params: dict[str, Any],
    rows: dict[str, Any],
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    max_span: int,
    ramp: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Scores, values of all heads, what may be seen, and the soft mask: arguments of `mix`."""
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


def remember(
    state: AdaptiveSpanState,
    hidden: jax.Array,
    num_valid: jax.Array,
    limit: jax.Array | None = None,
) -> AdaptiveSpanState:
    """Writes a segment: the last `max_span` of memory and segment, or the last `limit` of them.

    Args:
      state: memory before the segment.
      hidden: [batch, length, d_model], inputs of the layer.
      num_valid: int32 [batch], number of tokens; they come first.
      limit: int32 scalar, number of vectors kept at most; None = `max_span`.
    """
    hidden = jax.lax.stop_gradient(hidden)
    window, count = push(state.hidden, state.count, hidden, num_valid)
    if limit is None:
        return AdaptiveSpanState(window, count)
    capacity = window.shape[1]
    count = jnp.minimum(count, limit)
    stays = jnp.arange(capacity, dtype=jnp.int32)[None] >= capacity - count[:, None]
    return AdaptiveSpanState(jnp.where(stays[..., None], window, jnp.zeros_like(window)), count)


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """Checks that sizes are positive and that `initial_share` is from 0 to 1."""
    return [
        *at_least(fields, 1, 'max_span', 'ramp', 'num_sizes'),
        *one_of(fields, per=PER, start=STARTS),
        *between(fields, 0, 1, 'initial_share'),
    ]


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
      num_sizes: largest number of window sizes (branches), each half of the next; see `sizes_below`.
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

    def setup(self):
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
                nn.with_logical_partitioning(nn.initializers.constant(self.initial_share), (axis,)),
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

    def _reading(self, normal: jax.Array) -> tuple[dict[str, jax.Array], dict[str, Any], Any]:
        """Rows, parameters and `project` of `read_segment`, of a segment's normalised vectors."""
        settings = self.settings
        inputs = dict(
            queries=self.projections.queries(normal)
            * jnp.asarray(settings.score_scale, settings.dtype),
            keys=self.projections.keys(normal),
            values=self.projections.values(normal),
        )
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )
        return inputs, dict(projector=variables, share=self._share(), table=self.shared()), project

    def weights(self, x: jax.Array, state: AdaptiveSpanState) -> jax.Array:
        """Weights of the memory and the segment, [batch, heads, length, max_span + length]."""
        inputs, params, project = self._reading(self.normalize(x))
        rows = inputs | dict(memory=state.hidden, count=state.count)
        scores, _, seen, soft = _scores(
            self.max_span, params, rows, project, self.max_span, self.ramp
        )
        return weights_of(scores, seen, soft)

    def in_span(self, distance: jax.Array) -> jax.Array:
        """The mask over distances, int32 [n], as a mean over the heads: float32 [n]."""
        if self.per == 'none':
            return jnp.ones(distance.shape, jnp.float32)
        mask = span_mask(self.span_share, distance[None, None], self.max_span, self.ramp)
        return mask.mean(axis=(0, 1, 2)).astype(jnp.float32)

    def __call__(
        self, x: jax.Array, state: AdaptiveSpanState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, AdaptiveSpanState, Aux]:
        """Attends to memory and segment, then writes; x, y are [batch, length, d_model]."""
        settings, batch = self.settings, x.shape[0]
        normal = self.normalize(x)
        rate = settings.attention_dropout if train else 0.0
        reach = self._reach()
        inputs, params, project = self._reading(normal)
        constants = dict(memory=jax.lax.stop_gradient(state.hidden), count=state.count)
        if rate:
            constants['dropout'] = jax.random.split(self.make_rng('dropout'), batch)
        read = functools.partial(
            read_segment,
            project=project,
            max_span=self.max_span,
            ramp=self.ramp,
            dropout_rate=rate,
            dropout_chunk=self.sizes[0],
            kernels=settings.kernels,
        )
        needed = jnp.full((batch,), reach)
        out = read_memory(read, self.sizes, needed, params, inputs, constants)
        new = remember(state, x, segment.num_valid, self._limit())
        losses, per_head = {}, {}
        metrics = {'memory_size': mean_count(jnp.minimum(state.count, reach))}
        if self.per != 'none':
            losses['adaptive_span'] = self.max_span * self.span_share.mean()
            metrics['span_mean'] = jax.lax.stop_gradient(losses['adaptive_span'])
            metrics['span_max'] = jax.lax.stop_gradient(self.max_span * self.span_share.max())
        if self.per == 'head':
            per_head['span'] = jax.lax.stop_gradient(self.max_span * self.span_share)
        return self.projections.out(out), new, Aux(losses, metrics, per_head)

    def open_segment(self, state: AdaptiveSpanState, batch_size: int) -> AdaptiveSpanCache:
        """Projects the vectors of the memory within reach, once for all tokens of the segment."""
        settings = self.settings
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )

        def read(size: int, operands: Any, _: tuple[()]) -> tuple[jax.Array, jax.Array]:
            variables, hidden = operands
            _, keys, values = project(variables, hidden[:, self.max_span - size :])
            room = [(0, 0), (0, 0), (self.max_span - size, settings.segment_length), (0, 0)]
            return jnp.pad(keys, room), jnp.pad(values, room)

        keys, values = switch(read, self.sizes, self._reach(), (variables, state.hidden), ())
        hidden = jnp.zeros((batch_size, settings.segment_length, settings.d_model), settings.dtype)
        return AdaptiveSpanCache(keys, values, hidden, state.count)

    def extend(
        self, x: jax.Array, cache: AdaptiveSpanCache, index: jax.Array
    ) -> tuple[jax.Array, AdaptiveSpanCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        settings, max_span = self.settings, self.max_span
        normal = self.normalize(x)
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        cache = cache.replace(
            keys=write_at(cache.keys, self.projections.keys(normal), max_span + index, 2),
            values=write_at(cache.values, self.projections.values(normal), max_span + index, 2),
            hidden=write_at(cache.hidden, x, index, 1),
        )
        position = index[:, None] + jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        table, share = self.shared(), self._share()

        def read(size: int, operands: Any, _: tuple[()]) -> jax.Array:
            cache, queries, table, share, position = operands
            keys, values = (
                repeat_heads(cached[:, :, max_span - size :], settings.num_heads)
                for cached in (cache.keys, cache.values)
            )
            index = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, None]
            distance = size + position[..., None] - index
            scores = dot(queries, keys)
            scores = scores + near_positions.at_distances(queries, table, distance)
            seen = visible(distance, jnp.maximum(size - cache.count, 0), max_span)
            soft = None
            if share is not None:
                soft = span_mask(share.astype(scores.dtype), distance, max_span, self.ramp)
            return mix(scores, values, seen, soft, None)

        out = switch(read, self.sizes, self._reach(), (cache, queries, table, share, position), ())
        return self.projections.out(out), cache

    def close_segment(
        self, state: AdaptiveSpanState, cache: AdaptiveSpanCache, count: jax.Array
    ) -> AdaptiveSpanState:
        """Writes the first `count` tokens of the open segment."""
        return remember(state, cache.hidden, count, self._limit())


def recipe(scale: Scale) -> Recipe:
    """Spans up to `scale.reach`, initially half of it; a ramp of a quarter of a segment."""
    fields = dict(max_span=scale.reach, ramp=max(scale.segment // 4, 1), initial_share=0.5)
    return Recipe({'adaptive_span': fields}, loss_weights={'adaptive_span': 1e-6})


def held(layer: Any, state: AdaptiveSpanState) -> dict[str, Held]:
    """The window, each vector with the mean over the heads of the mask for the next query."""
    window = held_window(state.count, layer.max_span)
    return {'window': window.replace(weights=window.weights * layer.in_span(window.ages[0])[None])}


def read(seen: Seen) -> dict[str, Read]:
    """The attention to memory and segment; a token never reads itself."""
    weights = seen.layer.weights(seen.x, seen.state).astype(jnp.float32)
    places = jnp.arange(weights.shape[-1], dtype=jnp.int32) - seen.layer.max_span
    return {'attention': Read(weights, places[None, None, None])}


ENTRY = Entry(
    name='adaptive_span',
    layer=AdaptiveSpan,
    fused=fused_spans.no_fault,
    view=View(held, read),
    check=check,
    shared=lambda fields: near_positions.shared_table(fields, 'max_span'),
    losses=lambda fields: () if fields['per'] == 'none' else ('adaptive_span',),
    lengths={'max_span': 'span '},
    reach=lambda fields, segment: fields['max_span'],
    bounded=('span_share',),
    recipes={'adaptive_span': recipe},
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; attention within learned spans must be tuned',
        positions='its own scores by distance; rotary ones are lost',
    ),
    toy=dict(max_span=8, ramp=3, initial_share=0.3, num_sizes=2),
    variants=dict(trimmed=dict(start='zeros', per='layer', trim_memory=True)),
)
