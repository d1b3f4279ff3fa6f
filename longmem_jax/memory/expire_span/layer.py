"""Expire-Span: every memory has a learned span, then is really deleted (Sukhbaatar et al., 2021).

The last `position_length` tokens of a lane (batch row) are always kept, in a window. Memories that leave
it and have not expired are kept in a buffer of fixed capacity, live ones in front. Attention and writing
run in one of a few static sizes, the smallest that holds the live memories of the device's lanes, so
the cost of a step depends on what is alive, not on the capacity.

As in the authors' code, spans are recomputed in every segment from the kept vectors and the current
weights, and a query never attends to itself.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention import near_positions
from longmem_jax.attention.self_attention import write_at
from longmem_jax.contract import Entry, Graft, ModelSettings
from longmem_jax.kernels.tpu import fused_spans
from longmem_jax.layers import positions
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.switching import (
    bound,
    memory_projector,
    per_device,
    read_memory,
    sizes_below,
    switch,
    taken,
    unchanged,
)
from longmem_jax.memory.expire_span import fused_reading
from longmem_jax.memory.expire_span.cache import ExpireSpanCache, project_buffer, read_tokens
from longmem_jax.memory.expire_span.ramp import ramp_mask
from longmem_jax.memory.expire_span.reading import read_segment, weights_of_segment, with_near
from longmem_jax.memory.expire_span.settings import (
    check,
    check_training,
    full_capacity,
    reach,
    recipe,
)
from longmem_jax.memory.expire_span.spans import (
    ExpireSpanState,
    cut,
    expire_spans,
    memory_size,
    sizes_to_write,
    write,
)
from longmem_jax.memory.expire_span.view import held, read, series
from longmem_jax.segment import Aux, Segment, count_round, mean_count
from longmem_jax.views import View


def draw_shortening(key: jax.Array | None) -> jax.Array:
    """The random share of `max_span` that limits spans in a training step (Sec. 4.3), in [0, 1)."""
    if key is None:
        raise ValueError(
            "shorten = True draws random numbers in training: pass rngs={'memory': key}"
        )
    return jax.random.uniform(key)


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
      num_sizes: largest number of buffer sizes (branches), each half of the next; see `sizes_below`.
      block_size: entries of the buffer that are read at a time, to save space; the results are the
        same. A quarter more is read at once, rather than as two blocks. 0 = all at once.
        The fused kernel has blocks of its own.
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

    def setup(self):
        settings = self.settings
        self.projections = Projections(settings)
        self.span_kernel = self.param(
            'span_kernel',
            nn.with_logical_partitioning(nn.initializers.zeros, ('norm',)),
            (settings.d_model,),
        )
        bias = -math.log(1 / self.initial_share - 1)
        self.span_bias = self.param('span_bias', nn.initializers.constant(bias), ())
        names = ('max_span', 'ramp', 'position_length', 'limit')
        fields = {name: getattr(self, name) for name in names}
        self.room = (self.capacity or full_capacity(fields)) - self.position_length
        always = self.position_length + settings.segment_length
        self.sizes = sizes_below(self.room, self.num_sizes, always)

    def _spans(self, hidden: jax.Array) -> jax.Array:
        """Spans of normalised vectors [batch, n, d_model], float [batch, n]."""
        return self._cut(
            expire_spans(hidden, self.span_kernel, self.span_bias, self.max_span, self.pre_div)
        )

    def _cut(self, spans: jax.Array) -> jax.Array:
        """Spans, none longer than `limit`."""
        return cut(spans, self.limit)

    def spans(self, x: jax.Array) -> jax.Array:
        """Spans of the layer's inputs [batch, n, d_model] in tokens, float32 [batch, n]."""
        return self._spans(self.normalize(x))

    def kept(self, x: jax.Array, age: jax.Array) -> jax.Array:
        """The mask of Eq. 5 for inputs of that many tokens ago; see `contract.Entry.kept`."""
        return ramp_mask(self.spans(x)[:, None], age[None], self.ramp)

    def initial_state(self, batch_size: int) -> ExpireSpanState:
        """Empty memories, or zero vectors in the window."""
        dtype, width = self.settings.dtype, self.position_length
        room = self.room
        filled = width if self.start == 'zeros' else 0
        return ExpireSpanState(
            window=jnp.zeros((batch_size, width, self.settings.d_model), dtype),
            window_count=jnp.full((batch_size,), filled, jnp.int32),
            buffer=jnp.zeros((batch_size, room, self.settings.d_model), dtype),
            distance=jnp.zeros((batch_size, room), jnp.int32),
            count=jnp.zeros((batch_size,), jnp.int32),
            dropped=jnp.zeros((batch_size,), jnp.int32),
        )

    def _write(
        self,
        state: ExpireSpanState,
        hidden: jax.Array,
        num_valid: jax.Array,
        buffer_spans: jax.Array,
        spans: jax.Array,
    ) -> ExpireSpanState:
        """The memories after a segment; see `spans.write`. Every device writes its own batch rows."""

        def on_device(_: tuple[()], rows: Any) -> ExpireSpanState:
            return write(sizes_to_write(self.sizes), self.ramp, *rows)

        return per_device(on_device, (), (state, hidden, num_valid, buffer_spans, spans))

    def _reading(self, normal: jax.Array) -> tuple[dict[str, jax.Array], dict[str, Any], Any]:
        """Rows, parameters and `project` of `read_segment`, of a segment's normalised vectors."""
        inputs = dict(
            queries=self.projections.queries(normal)
            * jnp.asarray(self.settings.score_scale, self.settings.dtype),
            keys=self.projections.keys(normal),
            values=self.projections.values(normal),
            spans=self._spans(normal),
        )
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )
        params = dict(
            projector=variables, kernel=self.span_kernel, bias=self.span_bias, table=self.shared()
        )
        return inputs, params, project

    def weights(self, x: jax.Array, state: ExpireSpanState, num_valid: jax.Array) -> jax.Array:
        """Weights of the buffer, the window and the segment, [batch, heads, length, keys]."""
        inputs, params, project = self._reading(self.normalize(x))
        params, inputs = with_near((params, inputs), width=self.position_length)
        limit = jnp.full((x.shape[0],), self.limit or self.max_span, jnp.float32)
        rows = inputs | dict(state=state, num_valid=num_valid, limit=limit)
        sizes = dict(max_span=self.max_span, pre_div=self.pre_div, ramp=self.ramp)
        return weights_of_segment(params, rows, project=project, **sizes)

    def __call__(
        self, x: jax.Array, state: ExpireSpanState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, ExpireSpanState, Aux]:
        """Attends to memories and segment, then writes; x, y are [batch, length, d_model]."""
        settings, batch = self.settings, x.shape[0]
        normal = self.normalize(x)
        rate = settings.attention_dropout if train else 0.0
        limit = jnp.asarray(self.limit or self.max_span, jnp.float32)
        if train and self.shorten:
            limit = jnp.minimum(limit, draw_shortening(segment.key) * self.max_span)
        inputs, params, project = self._reading(normal)
        constants = dict(
            state=jax.lax.stop_gradient(state),
            num_valid=segment.num_valid,
            limit=jnp.full((batch,), limit),
        )
        if rate:
            constants['dropout'] = jax.random.split(self.make_rng('dropout'), batch)
        read, blocks, prepare = fused_reading.read_segment, {}, unchanged
        if settings.kernels == 'plain':
            chunk = min(self.sizes[0], self.block_size or self.sizes[0])
            read, blocks = read_segment, dict(block_size=self.block_size, dropout_chunk=chunk)
            prepare = bound(with_near, width=self.position_length)
        read = bound(
            read,
            project=project,
            max_span=self.max_span,
            pre_div=self.pre_div,
            ramp=self.ramp,
            dropout_rate=rate,
            **blocks,
        )
        out, loss, (buffer_spans, window_spans) = read_memory(
            read, self.sizes, state.count, params, inputs, constants, prepare
        )
        buffer_spans, window_spans = self._cut(buffer_spans), self._cut(window_spans)
        segment_spans = jax.lax.stop_gradient(inputs['spans'])
        new = self._write(
            constants['state'],
            jax.lax.stop_gradient(x),
            segment.num_valid,
            buffer_spans,
            jnp.concatenate([window_spans, segment_spans], axis=1),
        )
        valid = segment.valid.astype(jnp.float32)
        segment_spans = segment_spans.astype(jnp.float32) * valid
        metrics = {
            'memory_size': mean_count(
                memory_size(constants['state'], buffer_spans, window_spans, self.ramp)
            ),
            'span_mean': segment_spans.sum() / jnp.maximum(valid.sum(), 1.0),
            'span_max': segment_spans.max(),
            'dropped': mean_count(count_round(new.dropped, -state.dropped)),
        }
        sizes = taken(self.sizes, state.count)
        aux = Aux(losses={'expire_span': loss.mean()}, metrics=metrics, sizes=sizes)
        return self.projections.out(out), new, aux

    def open_segment(self, state: ExpireSpanState, batch_size: int) -> ExpireSpanCache:
        """Projects the live memories, once for all tokens of the segment."""
        settings = self.settings
        window = self.normalize(state.window)
        keys, values, spans = (
            self.projections.keys(window),
            self.projections.values(window),
            self._spans(window),
        )
        project, variables = memory_projector(
            self.normalize, self.projections.key, self.projections.value
        )
        read = bound(
            project_buffer,
            project=project,
            max_span=self.max_span,
            pre_div=self.pre_div,
            limit=self.limit,
        )
        old = switch(
            read,
            self.sizes,
            state.count.max(),
            (variables, self.span_kernel, self.span_bias, state.buffer),
            (),
        )
        padding = [(0, 0), (0, settings.segment_length)]
        return ExpireSpanCache(
            *old,
            keys=jnp.pad(keys, [(0, 0), *padding, (0, 0)]),
            values=jnp.pad(values, [(0, 0), *padding, (0, 0)]),
            spans=jnp.pad(spans, padding),
            hidden=jnp.zeros(
                (batch_size, settings.segment_length, settings.d_model), settings.dtype
            ),
            distance=state.distance,
            count=state.count,
            window_count=state.window_count,
        )

    def extend(
        self, x: jax.Array, cache: ExpireSpanCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, ExpireSpanCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        settings, width = self.settings, self.position_length
        normal = self.normalize(x)
        queries = self.projections.queries(normal) * jnp.asarray(
            settings.score_scale, settings.dtype
        )
        cache = cache.replace(
            keys=write_at(cache.keys, self.projections.keys(normal), width + index, 2),
            values=write_at(cache.values, self.projections.values(normal), width + index, 2),
            spans=write_at(cache.spans, self._spans(normal), width + index, 1),
            hidden=write_at(cache.hidden, x, index, 1),
        )
        seen = cache.before(width + index + x.shape[1])
        position = jnp.broadcast_to(positions.following(index, x.shape[1]), x.shape[:2])[..., None]
        recent = width + position - jnp.arange(seen.keys.shape[2], dtype=jnp.int32)[None, None]
        near = near_positions.of_tokens(queries, self.shared(), width + index, recent)
        read = bound(read_tokens, width=width, ramp=self.ramp)
        out = switch(
            read, self.sizes, cache.count.max(), (seen, queries, near, recent, position), ()
        )
        return self.projections.out(out), cache

    def close_segment(
        self, state: ExpireSpanState, cache: ExpireSpanCache, count: jax.Array
    ) -> ExpireSpanState:
        """Writes the first `count` tokens of the open segment."""
        sizes = sizes_to_write(self.sizes)
        return write(sizes, self.ramp, state, cache.hidden, count, cache.old_spans, cache.spans)


ENTRY = Entry(
    name='expire_span',
    layer=ExpireSpan,
    fused=fused_spans.no_fault,
    check=check,
    check_training=check_training,
    trained={
        'max_span': 'spans are learned as shares of it, so another value would change all spans; to '
        'cut long spans in evaluation, set limit',
        'pre_div': 'the spans are learned with it',
    },
    warnings={
        'dropped': 'the buffer is full, and entries are dropped before their span is over; raise '
        'capacity, or loss_weights.expire_span to shorten spans'
    },
    shared=lambda fields: near_positions.shared_table(fields, 'position_length'),
    losses=lambda fields: ('expire_span',),
    lengths={'max_span': 'span '},
    reach=lambda fields, segment: reach(fields),
    kept=ExpireSpan.kept,
    view=View(held, read, series),
    recipes={'expire_span': recipe},
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; attention within learned spans must be tuned',
        positions='its own scores by distance; rotary ones are lost',
    ),
    toy=dict(max_span=12, ramp=3, capacity=14, position_length=4, initial_share=0.4, num_sizes=2),
    variants=dict(
        zeros=dict(start='zeros', capacity=12, pre_div=2.0), blocks=dict(block_size=3, limit=9)
    ),
)
