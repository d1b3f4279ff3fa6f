"""Attention as its formula, one query at a time: to read first, and what `attend` is tested against."""

from typing import Any

import numpy as np


def attend(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    *,
    offset: Any,
    first: Any = None,
    window: int = 0,
    mask: Any = None,
    bias: Any = None,
    distance_bias: Any = None,
    relative: Any = None,
    causal: bool = True,
) -> np.ndarray:
    """Softmax attention in float64 numpy; queries that see no key give zeros.

    Args:
      queries: [batch, heads, n, head_dim].
      keys, values: [batch, kv_heads, m, head_dim]; query head h reads head h // (heads / kv_heads).
      offset, first, window, mask, bias, distance_bias, causal: as in `rules.Rules`.
      relative: queries and table of a `rules.RelativeTable`.

    Returns:
      [batch, heads, n, head_dim].
    """
    (batch, heads, n, width), m = queries.shape, keys.shape[2]
    out, group = np.zeros((*queries.shape[:3], values.shape[3])), heads // keys.shape[1]
    index = np.arange(m)
    for b, h, i in np.ndindex(batch, heads, n):
        distance = np.broadcast_to(offset, (batch,))[b] + i - index
        seen = (distance >= 0) | (not causal)
        seen = seen & (distance < window) if window else seen
        seen = seen & (index >= first[b]) if first is not None else seen
        seen = (
            seen & np.broadcast_to(mask, (batch, heads, n, m))[b, h, i]
            if mask is not None
            else seen
        )
        scores = keys[b, h // group].astype(float) @ queries[b, h, i]
        if relative is not None:
            rows = relative[1][h][np.clip(distance, 0, relative[1].shape[1] - 1)]
            scores = scores + rows @ relative[0][b, h, i]
        scores = scores / np.sqrt(width)
        if distance_bias is not None:
            scores += distance_bias[h][np.clip(distance, 0, distance_bias.shape[1] - 1)]
        if bias is not None:
            scores += np.broadcast_to(bias, (batch, heads, n, m))[b, h, i]
        if seen.any():
            weights = np.where(seen, np.exp(scores - scores[seen].max()), 0)
            out[b, h, i] = weights / weights.sum() @ values[b, h // group]
    return out
