"""Attention within learned spans by the fused kernel: near positions, soft masks, dropout per lane."""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.fused_attention import ByDistance, attend_fused, draw_seeds


def no_problem(fields: Any) -> str:
    """`LayerType.fused` of a layer whose fields all have the fused kernel."""
    return ''


def attend_spans(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    table: jax.Array,
    *,
    offset: int,
    since: jax.Array,
    until: jax.Array,
    remaining: jax.Array | None,
    ramp: int,
    numbers: jax.Array,
    dropout: float,
    lane_keys: jax.Array | None,
) -> jax.Array:
    """What `attention_products.mix` gives for scores by content and by near distances.

    Args:
      queries: [batch, heads, length, head_dim], scaled.
      keys, values: [batch, kv_heads, keys, head_dim].
      table: float [num_distances, head_dim], row d - 1 for distance d; other distances score 0.
      offset: distance of query 0 to key 0, for the table.
      since, until, remaining, ramp, numbers: as in `attend_fused`.
      dropout: share of the weights that is dropped.
      lane_keys: random keys [batch]; None = no dropout.

    Returns:
      [batch, heads, length, head_dim] in the dtype of `values`.
    """
    table = jnp.pad(table.astype(queries.dtype), [(1, 0), (0, 0)])[None]
    drawn = None
    if dropout:
        drawn = jax.vmap(lambda key: draw_seeds(key, (queries.shape[1],)))(lane_keys)
    return attend_fused(
        queries,
        keys,
        values,
        since=since,
        until=until,
        by_distance=ByDistance(offset, queries, table, zero_beyond=True),
        remaining=remaining,
        ramp=ramp,
        numbers=numbers,
        dropout=dropout,
        seeds=drawn,
    )
