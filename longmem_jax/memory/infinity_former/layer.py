"""Infinity-former: a short-term memory and a continuous, unbounded one (Martins et al., 2022).

Tokens that leave the short-term memory wait until there are `write_length` of them. At the start of
the next segment they are fitted into the continuous memory, whose old signal is contracted to make
room; then the segment reads it. So tokens only ever read earlier ones. With sticky memories the old
signal is sampled where the last segment attended.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention import fused_rules
from longmem_jax.attention.relative_position import shared_biases
from longmem_jax.attention.self_attention import attention_of, write_at
from longmem_jax.contract import Entry, Graft, LayerType, ModelSettings, Recipes
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.continuous_layer import ContinuousMemory
from longmem_jax.memory.infinity_former.entry import check, reach, recipe
from longmem_jax.memory.infinity_former.state import (
    InfinityFormerCache,
    InfinityFormerState,
    LongTermState,
    remember,
)
from longmem_jax.memory.infinity_former.view import held, read, series
from longmem_jax.segment import (
    Aux,
    Segment,
    count_on,
    count_round,
    mean_count,
    per_lane,
)
from longmem_jax.views import View


def _mean_by_head(values: jax.Array, counted: jax.Array) -> jax.Array:
    """Means over counted queries, bool [batch, n], of `values` [batch, heads, n]: [heads], or zeros."""
    counted = counted[:, None]
    total = jnp.where(counted, values, jnp.zeros_like(values)).sum(axis=(0, 2))
    return total / jnp.maximum(counted.sum(), 1).astype(values.dtype)


class InfinityFormer(nn.Module):
    """Short-term attention plus the expectation of the continuous memory.

    `Aux.losses['kl']` is the KL term, averaged over heads and over the queries that have a memory to
    read; their number is in `Aux.counts`.

    Attributes:
      memory_length: short-term memory of hidden vectors, as in Transformer-XL; 0 = none.
      position: position scheme of the short-term attention.
      num_basis, widths, num_samples, tau, ridge, sigma_sq_min, density, padding, biases,
        first_width, first_places: as in `ContinuousMemory`.
      write_length: vectors per write, at least a segment; 0 = a segment.
      memory_threshold: 0 = none. With 'fill', the first fit waits for this number of vectors; with
        'clear', the memory is reset when they have been written, as in the released GPT-2 code.
      threshold_kind: what memory_threshold does, 'fill' or 'clear'.
      sticky: 'none'; 'sampled' positions as in the paper, left edges of bins; 'sampled_inside', evenly
        inside the drawn bins; or deterministic 'quantile' positions.
      num_bins: bins of the histogram of attention.
      kl: the KL term, 'true', 'paper_eq21', 'as_released' or 'none'.
      sigma_0: width that the KL term pulls densities to.
      normalize_written: in a pre-norm model, fit normalised vectors, as the short-term memory and the
        released dialogue code do; False = vectors of the residual stream, as the released GPT-2 code.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    memory_length: int = 150
    position: str = 'transformer_xl'
    num_basis: int = 150
    widths: tuple[float, ...] = (0.01, 0.05)
    num_samples: int = 512
    tau: float = 0.5
    ridge: float = 0.5
    sigma_sq_min: float = 1e-4
    density: str = 'gaussian'
    padding: bool = True
    write_length: int = 0
    memory_threshold: int = 0
    threshold_kind: str = 'fill'
    sticky: str = 'none'
    num_bins: int = 128
    kl: str = 'true'
    sigma_0: float = 0.05
    normalize_written: bool = True
    biases: bool = False
    first_width: float = 0.0
    first_places: tuple[float, ...] = ()

    def setup(self) -> None:
        self.projections = Projections(self.settings)
        self.attention = attention_of(
            self,
            memory_length=self.memory_length,
        )
        fills = self.memory_threshold and self.threshold_kind == 'fill'
        self.per_write = self.write_length or self.settings.segment_length
        self.first_length = self.memory_threshold if fills else self.per_write
        self.memory = ContinuousMemory(
            settings=self.settings,
            num_basis=self.num_basis,
            widths=tuple(self.widths),
            num_samples=self.num_samples,
            tau=self.tau,
            ridge=self.ridge,
            first_length=self.first_length,
            write_length=self.per_write,
            sigma_sq_min=self.sigma_sq_min,
            density=self.density,
            padding=self.padding,
            biases=self.biases,
            first_width=self.first_width,
            first_places=tuple(self.first_places),
        )

    def initial_state(self, batch_size: int) -> InfinityFormerState:
        """Both memories empty."""
        settings = self.settings
        none = jnp.zeros((batch_size,), jnp.int32)
        dtype = jnp.promote_types(settings.dtype, jnp.float32)
        room = self.first_length + self.per_write
        long = LongTermState(
            coefficients=jnp.zeros((batch_size, self.num_basis, settings.d_model), dtype),
            mass=jnp.zeros((batch_size, self.num_bins), jnp.float32),
            pending=jnp.zeros((batch_size, room, settings.d_model), settings.dtype),
            pending_count=none,
            stored=none,
            writes=none,
        )
        if not self.memory_length:
            return InfinityFormerState(None, None, long)
        shape = (batch_size, self.memory_length, settings.d_model)
        return InfinityFormerState(jnp.zeros(shape, settings.dtype), none, long)

    def _normalized(self, vectors: jax.Array) -> jax.Array:
        """What is fitted of vectors that are written."""
        return self.normalize(vectors) if self.normalize_written else vectors

    def written(self, x: jax.Array) -> jax.Array:
        """What the regression fits of one write, float32 [batch, n, d_model]: normalised and gated."""
        return self.memory.gate(self._normalized(x))

    def write(self, long: LongTermState, key: jax.Array | None = None) -> LongTermState:
        """Fits pending vectors into the memory in lanes with enough of them; B carries gradients."""
        empty = long.stored == 0
        if self.memory_threshold and self.threshold_kind == 'clear':
            empty = empty | (long.stored >= self.memory_threshold)
        needed = jnp.where(empty, self.first_length, self.per_write)
        ready = long.pending_count >= needed
        start = long.pending.shape[1] - long.pending_count

        def oldest(number: int) -> jax.Array:
            take = jax.vmap(lambda lane, at: jax.lax.dynamic_slice_in_dim(lane, at, number))
            return self._normalized(jax.lax.stop_gradient(take(long.pending, start)))

        first = self.memory.first(oldest(self.first_length))
        places = self.memory.linear_places()
        if self.sticky != 'none':
            places = continuous.sticky_positions(
                self.sticky, long.mass, long.writes, key, self.num_samples
            )
        later = self.memory.update(long.coefficients, places, oldest(self.per_write))
        written = jnp.where(per_lane(empty, later), first, later)
        return long.replace(
            coefficients=jnp.where(per_lane(ready, written), written, long.coefficients),
            pending_count=jnp.where(ready, long.pending_count - needed, long.pending_count),
            stored=jnp.where(
                ready, count_on(jnp.where(empty, 0, long.stored), needed), long.stored
            ),
            writes=count_round(long.writes, ready.astype(jnp.int32)),
        )

    def queries(self, x: jax.Array) -> jax.Array:
        """Queries of the residual stream `x`, [batch, heads, n, head_dim]."""
        return self.projections.queries(self.normalize(x))

    def _read(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        stored: jax.Array,
        counted: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The read vectors (zeros where the memory is empty), attention by bin, mu and sigma_sq."""
        y, mu, sigma_sq, _ = self.memory.read(self.queries(x), keys, values)
        filled = stored > 0
        y = jnp.where(per_lane(filled, y), y, jnp.zeros_like(y)).astype(x.dtype)
        mass = jnp.zeros((x.shape[0], self.num_bins), jnp.float32)
        if self.sticky != 'none':
            mass = continuous.attention_mass(
                *jax.lax.stop_gradient((mu, sigma_sq)),
                self.num_bins,
                self.density,
                counted & filled[:, None],
            )
        return y, mass, mu, sigma_sq

    def __call__(
        self, x: jax.Array, state: InfinityFormerState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, InfinityFormerState, Aux]:
        """Writes pending vectors, attends, remembers the segment; x, y are [batch, length, d_model]."""
        state = jax.lax.stop_gradient(state)
        long = self.write(state.long, segment.key if train else None)
        keys, values = self.memory.project(long.coefficients)
        recent = (state.hidden, state.count) if self.memory_length else ()
        y = self.attention(x, *recent, train=train)
        read, mass, mu, sigma_sq = self._read(x, keys, values, long.stored, segment.valid)
        counted = segment.valid & (long.stored > 0)[:, None]
        losses, number = {}, counted.sum().astype(jnp.float32)
        if self.kl != 'none':
            divergence = continuous.kl_divergence(mu, sigma_sq, self.sigma_0, self.kl, self.density)
            losses['kl'] = _mean_by_head(divergence, counted).mean()
        width = _mean_by_head(jnp.sqrt(sigma_sq), counted).astype(jnp.float32)
        metrics = {'memory_size': mean_count(long.stored), 'density_width': width.mean()}
        aux = Aux(
            losses=losses,
            metrics=metrics,
            per_head={'density_width': width},
            counts={name: number for name in (*losses, 'density_width')},
        )
        return y + read, remember(state, long, mass, x, segment.num_valid), aux

    def open_segment(self, state: InfinityFormerState, batch_size: int) -> InfinityFormerCache:
        """Writes pending vectors and projects both memories, once for all tokens of the segment."""
        settings = self.settings
        long = self.write(state.long)
        keys, values = self.memory.project(long.coefficients)
        return InfinityFormerCache(
            attention=self.attention.open(state.hidden, batch_size),
            hidden=jnp.zeros(
                (batch_size, settings.segment_length, settings.d_model), settings.dtype
            ),
            count=state.count,
            long=long,
            keys=keys,
            values=values,
            mass=jnp.zeros((batch_size, self.num_bins), jnp.float32),
        )

    def extend(
        self, x: jax.Array, cache: InfinityFormerCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, InfinityFormerCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        recent = (cache.count,) if self.memory_length else ()
        y, attention = self.attention.extend(x, cache.attention, index, *recent)
        counted = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < count[:, None]
        read, mass, _, _ = self._read(x, cache.keys, cache.values, cache.long.stored, counted)
        hidden = write_at(cache.hidden, x, index, 1)
        return y + read, cache.replace(attention=attention, hidden=hidden, mass=cache.mass + mass)

    def close_segment(
        self, state: InfinityFormerState, cache: InfinityFormerCache, count: jax.Array
    ) -> InfinityFormerState:
        """Remembers the first `count` tokens of the open segment."""
        return remember(state, cache.long, cache.mass, cache.hidden, count)


ENTRY = Entry(
    name='infinity_former',
    layer=LayerType(
        InfinityFormer,
        check=check,
        shared=shared_biases,
        losses=lambda fields: () if fields['kl'] == 'none' else ('kl',),
        reach=reach,
        fused=fused_rules.position_problem,
    ),
    recipe=Recipes({'infinity_former': recipe}),
    graft=Graft(
        lambda scale, position: dict(position=position, memory_length=0),
        exact=True,
        how='the result of reading is added to the attention; it is zero while nothing is stored',
        positions='positions in a signal that is contracted, as in the paper',
    ),
    view=View(held, read, series, lengths={'memory_length': '', 'num_basis': '+ functions '}),
    toy=dict(
        memory_length=3,
        position='rotary',
        num_basis=8,
        widths=(0.15, 0.3),
        num_samples=8,
        write_length=5,
        sticky='sampled',
        num_bins=16,
    ),
    variants=dict(
        no_short_memory=dict(
            memory_length=0,
            sticky='quantile',
            density='parabola',
            biases=True,
            first_width=0.3,
            first_places=(0.2, 0.8),
        ),
        clearing=dict(
            memory_threshold=10,
            threshold_kind='clear',
            sticky='none',
            kl='none',
            normalize_written=False,
        ),
    ),
)
