"""What a page shows of the Compressive Transformer: slots stand for several tokens each."""

from typing import Any

import jax.numpy as jnp

from longmem_jax.memory.compressive.evicting import CompressiveState
from longmem_jax.memory.compressive.sliding import SlidingState
from longmem_jax.views import NOWHERE, Held, Read, Seen, held_window


def held(layer: Any, state: Any) -> dict[str, Held]:
    """The recent vectors, those that wait for their group, and the slots.

    What 'most_used' keeps of several groups may be of any of them; ages are as if of each.
    """
    if isinstance(state, SlidingState):
        newer = _newer_sliding(layer, state)
        slots = _slots(state.compressed_count, layer.compressed_length + 1, newer, layer.rate)
        return {'window': held_window(state.count, layer.memory_length), 'slots': slots}
    newer = state.count + state.pending_count
    return {
        'window': held_window(state.count, layer.memory_length),
        'waiting': held_window(state.pending_count, layer.rate - 1, state.count),
        'slots': _slots(state.compressed_count, layer.compressed_length, newer, layer.rate),
    }


def _slots(count: Any, capacity: int, newer: Any, rate: int) -> Held:
    """Slots of `rate` tokens each; `newer` tokens are newer than all of them."""
    back = capacity - jnp.arange(capacity, dtype=jnp.int32)[None]
    filled = (back <= count[:, None]).astype(jnp.float32)
    return Held(filled, newer[:, None] + (back - 1) * rate + 1, tokens=rate)


def _newer_sliding(layer: Any, state: SlidingState) -> Any:
    """Tokens that are newer than the newest slot, int32 [batch].

    That slot is pooled when the first query comes that no longer sees all of it: it overlaps the window.
    """
    first = (layer.rate - state.phase) % layer.rate
    return layer.memory_length + first - layer.rate


def read(seen: Seen) -> dict[str, Read]:
    """The attention to slots, window and segment."""
    layer, state, look = seen.layer, seen.state, seen.look()
    weights = look.weights.astype(jnp.float32)
    (_, slots), (_, window), _ = look.parts
    if isinstance(state, CompressiveState):
        newer = state.count + state.pending_count
        back = slots - 1 - jnp.arange(slots, dtype=jnp.int32)[None]
        known = layer.compression != 'most_used'
    else:
        newer = _newer_sliding(layer, state)
        # Old slots, then those of which the segment sees the first tokens come to an end.
        back = layer.compressed_length - jnp.arange(slots, dtype=jnp.int32)[None]
        known = True
    places = -(newer[:, None] + back * layer.rate + 1)
    places = places if known else jnp.full_like(places, NOWHERE)
    near = jnp.arange(weights.shape[-1] - slots, dtype=jnp.int32)[None, None, None] - window
    return {
        'slots': Read(weights[..., :slots], places[:, None, None], tokens=layer.rate),
        'attention': Read(weights[..., slots:], near),
    }
