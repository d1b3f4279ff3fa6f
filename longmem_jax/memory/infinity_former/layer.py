"""Infinity-former: a short-term memory and a continuous, unbounded one (Martins et al., 2022).

Tokens that leave the short-term memory wait until there are `write_length` of them. At the start of
the next segment they are fitted into the continuous memory, whose old signal is contracted to make
room; then the segment reads it. So tokens only ever read earlier ones. With sticky memories the old
signal is sampled where the last segment attended.

The equations are in `continuous`, their parameters in `continuous_layer`, and what waits to be written
in `state`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.self_attention import attention_of, write_at
from longmem_jax.contract import ModelSettings
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.continuous_layer import continuous_memory_of
from longmem_jax.memory.infinity_former.state import (
    InfinityFormerCache,
    InfinityFormerState,
    LongTermState,
    empty_state,
    remember,
)
from longmem_jax.segment import (
    Aux,
    Segment,
    mean_count,
    per_lane,
)


def _mean_by_head(values: jax.Array, counted: jax.Array) -> jax.Array:
    """Means over counted queries, bool [batch, n], of `values` [batch, heads, n]: [heads], or zeros."""
    counted = counted[:, None]
    total = jnp.where(counted, values, jnp.zeros_like(values)).sum(axis=(0, 2))
    return total / jnp.maximum(counted.sum(), 1).astype(values.dtype)


def _averages(
    divergence: jax.Array | None, sigma_sq: jax.Array, stored: jax.Array, counted: jax.Array
) -> Aux:
    """The KL term and the width of densities over counted queries, bool [batch, n]."""
    losses, number = {}, counted.sum().astype(jnp.float32)
    if divergence is not None:
        losses['kl'] = _mean_by_head(divergence, counted).mean()
    width = _mean_by_head(jnp.sqrt(sigma_sq), counted).astype(jnp.float32)
    return Aux(
        losses=losses,
        metrics={'memory_size': mean_count(stored), 'density_width': width.mean()},
        per_head={'density_width': width},
        counts={name: number for name in (*losses, 'density_width')},
    )


class InfinityFormer(nn.Module):
    """Short-term attention plus the expectation of the continuous memory.

    `Aux.losses['kl']` is averaged over heads and the queries that read; `Aux.counts` is their number.

    Attributes:
      memory_length: short-term memory of hidden vectors, as in Transformer-XL; 0 = none.
      position: position scheme of the short-term attention.
      num_basis: N, the number of basis functions.
      widths: standard deviations of the basis functions; N is a multiple of the number of widths.
      num_samples: M, positions at which the old signal is read before it is contracted.
      tau: share of [0, 1] that the old signal is contracted to.
      ridge: penalty of the regression.
      sigma_sq_min: smallest squared width of a query's density.
      density: density of a query, 'gaussian' or 'parabola'.
      padding: pull the signal to zero outside of [0, 1], as the released code does.
      biases: biases per head in Eqs. 9-10, which the paper calls affine; the released code has none.
      first_width: with biases, the first width of all densities; 0 = biases begin at 0.
      first_places: with biases, where the densities of the first and the last head begin; () = at .5.
      write_length: vectors per write, at least a segment; 0 = a segment.
      memory_threshold: vectors for which the first fit waits ('fill'), or after which the memory is
        reset ('clear'); 0 = none.
      threshold_kind: what `memory_threshold` does, 'fill' or 'clear' (released GPT-2 code).
      sticky: 'none'; 'sampled' positions as in the paper, left edges of bins; 'sampled_inside', evenly
        inside the drawn bins; or deterministic 'quantile' positions.
      num_bins: bins of the histogram of attention.
      kl: the KL term, 'true', 'paper_eq21', 'as_released' or 'none'.
      sigma_0: the width of the Gaussian of the KL term.
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
        self.attention = attention_of(self, memory_length=self.memory_length)
        fills = self.memory_threshold and self.threshold_kind == 'fill'
        self.per_write = self.write_length or self.settings.segment_length
        self.first_length = self.memory_threshold if fills else self.per_write
        self.memory = continuous_memory_of(self, self.first_length, self.per_write)

    def initial_state(self, batch_size: int) -> InfinityFormerState:
        """Both memories empty."""
        room = self.first_length + self.per_write
        sizes = self.memory_length, self.num_basis, self.num_bins, room
        return empty_state(self.settings, batch_size, *sizes)

    def _fitted(self, vectors: jax.Array) -> jax.Array:
        """Vectors as they are fitted, before their gate."""
        return self.normalize(vectors) if self.normalize_written else vectors

    def written(self, x: jax.Array) -> jax.Array:
        """What the regression fits of one write, float32 [batch, n, d_model]: normalised and gated."""
        return self.memory.gate(self._fitted(x))

    def write(self, long: LongTermState, key: jax.Array | None = None) -> LongTermState:
        """Fits pending vectors into the memory in lanes with enough of them; B carries gradients."""
        empty = long.stored == 0
        if self.memory_threshold and self.threshold_kind == 'clear':
            empty = empty | (long.stored >= self.memory_threshold)
        needed = jnp.where(empty, self.first_length, self.per_write)
        ready = long.pending_count >= needed
        first = self.memory.fit_first(self._fitted(long.oldest(self.first_length)))
        places = self.memory.linear_places()
        if self.sticky != 'none':
            drawn = long.mass, long.writes, key, self.num_samples
            places = continuous.sticky_positions(self.sticky, *drawn)
        new = self._fitted(long.oldest(self.per_write))
        later = self.memory.update(long.coefficients, places, new)
        first_or_later = jnp.where(per_lane(empty, later), first, later)
        return long.after_write(ready, empty, needed, first_or_later)

    def queries(self, x: jax.Array) -> jax.Array:
        """Queries of the residual stream `x`, [batch, heads, n, head_dim]."""
        return self.projections.queries(self.normalize(x))

    def _read(
        self, x: jax.Array, projected: tuple[jax.Array, ...], stored: jax.Array, counted: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The read vectors (zeros where the memory is empty), attention by bin, mu and sigma_sq."""
        y, mu, sigma_sq, _ = self.memory.read(self.queries(x), *projected)
        filled = stored > 0
        y = jnp.where(per_lane(filled, y), y, jnp.zeros_like(y)).astype(x.dtype)
        mass = jnp.zeros((x.shape[0], self.num_bins), jnp.float32)
        if self.sticky != 'none':
            densities = *jax.lax.stop_gradient((mu, sigma_sq)), self.num_bins, self.density
            mass = continuous.attention_mass(*densities, counted & filled[:, None])
        return y, mass, mu, sigma_sq

    def __call__(
        self, x: jax.Array, state: InfinityFormerState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, InfinityFormerState, Aux]:
        """Writes pending vectors, adds what both memories give (Eq. 12), remembers the segment.

        x, y: [batch, length, d_model].
        """
        state = jax.lax.stop_gradient(state)
        long = self.write(state.long, segment.key if train else None)
        projected = self.memory.project(long.coefficients)
        recent = (state.hidden, state.count) if self.memory_length else ()
        y = self.attention(x, *recent, train=train)
        read, mass, mu, sigma_sq = self._read(x, projected, long.stored, segment.valid)
        counted = segment.valid & (long.stored > 0)[:, None]
        divergence = None
        if self.kl != 'none':
            divergence = continuous.kl_divergence(mu, sigma_sq, self.sigma_0, self.kl, self.density)
        aux = _averages(divergence, sigma_sq, long.stored, counted)
        return y + read, remember(state, long, mass, x, segment.num_valid), aux

    def open_segment(self, state: InfinityFormerState, batch_size: int) -> InfinityFormerCache:
        """Writes pending vectors and projects both memories, once for all tokens of the segment."""
        long, settings = self.write(state.long), self.settings
        keys, values = self.memory.project(long.coefficients)
        shape = settings.segment_length, settings.d_model
        return InfinityFormerCache(
            attention=self.attention.open(state.hidden, batch_size),
            hidden=jnp.zeros((batch_size, *shape), settings.dtype),
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
        read, mass, _, _ = self._read(x, (cache.keys, cache.values), cache.long.stored, counted)
        hidden = write_at(cache.hidden, x, index, 1)
        return y + read, cache.replace(attention=attention, hidden=hidden, mass=cache.mass + mass)

    def close_segment(
        self, state: InfinityFormerState, cache: InfinityFormerCache, count: jax.Array
    ) -> InfinityFormerState:
        """Remembers the first `count` tokens of the open segment."""
        return remember(state, cache.long, cache.mass, cache.hidden, count)
