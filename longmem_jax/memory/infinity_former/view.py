"""What a page shows of the infinity-former: where in the signal queries look, and how old that is.

The signal is a sum of functions and holds no single vectors. But every write puts vectors at known
places, and the next one contracts the old signal to `tau` of its length, so a place has an age.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.state import InfinityFormerState, LongTermState
from longmem_jax.segment import Segment
from longmem_jax.views import NOWHERE, Held, Read, Seen, Series, held_window, read_window


def ages(layer: Any, long: LongTermState, places: np.ndarray) -> Any:
    """Vectors written since those at `places`, int32 [batch, n]; 0 = the newest of the signal.

    Sticky memories are contracted where attention was little: beyond the last write their ages are as if
    they were contracted evenly.

    Args:
      layer: an `InfinityFormer`.
      long: the memory; where nothing is stored the ages mean nothing.
      places: float [n], in (0, 1).
    """
    first, write, tau = layer.first_length, layer.per_write, layer.tau
    later = jnp.maximum(long.stored - first, 0) // write
    passed = jnp.asarray(np.floor(np.log(places) / np.log(tau)), jnp.int32)
    passed = jnp.minimum(passed[None], later[:, None])
    inside = jnp.asarray(places)[None] / tau ** passed.astype(jnp.float32)
    in_first = jnp.floor((1 - inside) * first)
    in_write = jnp.floor((1 - inside) / (1 - tau) * write)
    is_first = passed == later[:, None]
    within = jnp.where(is_first, jnp.clip(in_first, 0, first - 1), jnp.clip(in_write, 0, write - 1))
    return passed * write + within.astype(jnp.int32)


def centres(layer: Any) -> np.ndarray:
    """The middles of the bins of attention, float64 [num_bins]."""
    return (np.arange(layer.num_bins) + 0.5) / layer.num_bins


def densities(
    layer: Any, x: jax.Array, state: InfinityFormerState
) -> tuple[LongTermState, jax.Array, jax.Array]:
    """The memory that a segment `x` reads, and mu and sigma_sq, [batch, heads, length]."""
    long = layer.write(state.long)
    projected = layer.memory.project(long.coefficients)
    _, mu, sigma_sq, _ = layer.memory.read(layer.queries(x), *projected)
    return long, mu, sigma_sq


def attention_by_head(
    layer: Any, x: jax.Array, state: InfinityFormerState, segment: Segment, num_bins: int
) -> tuple[LongTermState, jax.Array]:
    """The memory that a segment reads, and attention by bin: float32 [batch, heads, length, bins].

    Arguments as in `InfinityFormer.__call__`; zeros at padding and where the memory is empty.
    """
    long, mu, sigma_sq = densities(layer, x, state)
    counted = segment.valid & (long.stored > 0)[:, None]

    def token(mu: jax.Array, sigma_sq: jax.Array, counted: jax.Array) -> jax.Array:
        return continuous.attention_mass(
            mu[:, None, None], sigma_sq[:, None, None], num_bins, layer.density, counted[:, None]
        )

    heads = jax.vmap(token, (1, 1, None), 1)
    return long, jax.vmap(heads, (2, 2, 1), 2)(mu, sigma_sq, counted)


def held(layer: Any, state: InfinityFormerState) -> dict[str, Held]:
    """The short-term memory, what waits to be written, and the signal: N functions over its ages."""
    long, found = state.long, {}
    recent = jnp.zeros_like(long.stored)
    if state.count is not None:
        recent = state.count
        found['short-term'] = held_window(state.count, layer.memory_length)
    waiting = long.pending.shape[1]
    found['waiting'] = held_window(long.pending_count, waiting, recent)
    shape = (long.stored.shape[0], layer.num_bins)
    weights = jnp.full(shape, layer.num_basis / layer.num_bins, jnp.float32)
    weights = jnp.where((long.stored > 0)[:, None], weights, 0.0)
    newer = (recent + long.pending_count + 1)[:, None]
    found['signal'] = Held(weights, ages(layer, long, centres(layer)) + newer)
    return found


def read(seen: Seen) -> dict[str, Read]:
    """The short-term attention, and where in the signal the densities look, bin by bin.

    Places before the last write of a sticky memory are no tokens: attention has moved them.
    """
    layer, state = seen.layer, seen.state
    long, weights = attention_by_head(layer, seen.x, state, seen.segment, layer.num_bins)
    middles = centres(layer)
    newer = long.pending_count + (state.count if layer.memory_length else 0) + 1
    places = -(ages(layer, long, middles) + newer[:, None])
    if layer.sticky != 'none':
        again = (long.stored > layer.first_length)[:, None]
        places = jnp.where(again & jnp.asarray(middles < layer.tau)[None], NOWHERE, places)
    return {**read_window(seen.look('attention')), 'signal': Read(weights, places[:, None, None])}


def series(seen: Seen) -> Series:
    """Where the density of every head is, in [0, 1]; 1 = the newest of the signal."""
    _, mu, _ = densities(seen.layer, seen.x, seen.state)
    return Series(by_token={'place in the signal': jnp.swapaxes(mu, 1, 2)})
