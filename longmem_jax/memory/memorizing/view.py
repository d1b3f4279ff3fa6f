"""What a page shows of the Memorizing Transformer: recent keys, entries, and the attention to both."""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers.ring import Rows
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing.layer import MemorizingState
from longmem_jax.views import NOWHERE, Held, Read, Seen, read_window


def ages(rows: Rows, entries: jax.Array) -> jax.Array:
    """Ages of `entries`, int32 [batch | 1, ...], numbers in the ring; 1 = the one written last."""
    newest = (rows.count - 1).reshape(-1, *[1] * (entries.ndim - 1))
    return 1 + (newest - entries) % rows.rows_keys.shape[2]


def held(layer: Any, state: MemorizingState) -> dict[str, Held]:
    """The recent keys and values, and the entries of the large memory."""
    numbers = jnp.arange(layer.memory_size, dtype=jnp.int32)[None]
    filled = numbers < state.rows.count[:, None]
    return {
        'recent': normalized_attention.held(layer, state.recent),
        'entries': Held(filled.astype(jnp.float32), ages(state.rows, numbers)),
    }


def read(seen: Seen) -> dict[str, Read]:
    """Recent tokens and the segment by 1 - gate, the nearest entries by the gate."""
    look, gate = seen.look(''), seen.layer.gates(seen.state.rows.count)
    places = jnp.where(look.entries < 0, NOWHERE, -ages(seen.state.rows, look.entries))
    entries = Read((look.weights * gate).astype(jnp.float32), places)
    recent = normalized_attention.held(seen.layer, seen.state.recent)
    return {**read_window(seen.look('attention'), 1 - gate, recent.ages), 'entries': entries}
