"""Attention to the nearest entries of a ring, found by inner products."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import Look, is_inspected, record
from longmem_jax.kernels.attention_products import NEVER
from longmem_jax.kernels.tpu.fused_search import attend_nearest
from longmem_jax.layers.nearest import nearest
from longmem_jax.layers.ring import Rows, is_split


def attend_entries(
    queries: jax.Array,
    ring: Rows,
    k: int,
    *,
    scale: float,
    search: str,
    recall: float,
    block_size: int,
    zeros: bool,
    kernels: str,
) -> tuple[jax.Array, Look | None]:
    """Softmax attention of every query to its k nearest entries.

    Args:
      queries: [batch, heads, n, head_dim]; heads that share entries are groups of neighbours.
      ring: the entries.
      k: entries per query.
      scale: factor of the scores.
      search, recall, block_size: see `nearest.nearest`.
      zeros: entries that are not found count as zero vectors with a score of zero.
      kernels: see `ModelSettings`. The fused kernel searches float rows in one place exactly; all other
        rows are read as with 'plain'.

    Returns:
      [batch, heads, n, head_dim], zeros where none is found; and what was looked at, None of the fused
      kernel.
    """
    shape = queries.shape
    queries = queries.reshape(shape[0], ring.rows_keys.shape[1], -1, shape[3])
    exact = search == 'exact' and not zeros and ring.rows_key_scale is None
    if kernels == 'fused' and exact and not is_split(ring):
        held = ring.rows_keys, ring.rows_values, ring.count
        queries = queries * jnp.asarray(scale, queries.dtype)
        return attend_nearest(queries, *held, k).reshape(shape), None
    # Scales are positive, so they do not change the order.
    keys, values, found, entries = nearest(ring, queries, k, search, recall, block_size)
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum('bhnd,bhnkd->bhnk', queries, keys, preferred_element_type=wide) * scale
    counted = jnp.ones_like(found) if zeros else found
    weights = jax.nn.softmax(jnp.where(counted, scores, jnp.asarray(NEVER, wide)), axis=-1)
    weights = jnp.where(counted, weights, jnp.zeros_like(weights))
    out = jnp.einsum('bhnk,bhnkd->bhnd', weights.astype(values.dtype), values).reshape(shape)
    by_query = (*shape[:3], k)
    entries = jnp.where(found, entries, -1).reshape(by_query)
    parts = (('memory, nearest first', k),)
    return out, Look(weights.reshape(by_query), None, out, entries, parts)


def attend_entries_in(
    module: nn.Module, queries: jax.Array, ring: Rows, k: int, *, whole: bool, **fields: Any
) -> jax.Array:
    """`attend_entries` as the attention of a module: by its kernels, and open to inspection.

    Args:
      module: bound, with `settings`.
      queries, ring, k: as in `attend_entries`.
      whole: these are all queries of a segment; streams, and what is inspected, stay 'plain'.
      **fields: other arguments of `attend_entries`.
    """
    kernels = module.settings.kernels if whole and not is_inspected(module) else 'plain'
    out, look = attend_entries(queries, ring, k, kernels=kernels, **fields)
    record(module, look)
    return out
