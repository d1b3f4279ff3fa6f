"""One recurrence for many memories: `S <- decay S + k v^T`, read as `q S`.

RetNet's decay is fixed per head, that of Mamba-2 is given by each token per head, that of gated linear
attention by each token per channel of the keys. Decays are logarithms, at most 0.

Sequences are read by products of matrices. No exponential is larger than 1 (`layers.decayed_scores`).
"""

import jax
import jax.numpy as jnp

from longmem_jax.author import Sight
from longmem_jax.layers.decayed_scores import decayed_scores


def step(
    S: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, log_decay: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`S <- decay S + k v^T`, and `q S`.

    Args:
      S: [d_key, d_value].
      query, key: [d_key].
      value: [d_value].
      log_decay: scalar, or [d_key] for a decay by channel.

    Returns:
      The new S, and what is read, [d_value].
    """
    S = jnp.exp(log_decay)[..., None] * S + jnp.outer(key, value)
    return S, query @ S


def within(
    sight: Sight,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, ...]:
    """What n tokens, arrays [n, ...], read of each other and add to S, and how they meet it.

    Returns:
      Queries [n, d_key] as they meet S; what is read of the chunk [n, d_value]; what it adds to S; what
      is left of S, [1] or [d_key].
    """
    if log_decay.ndim == 1:
        shares, before, at_end = sight.shares(log_decay)
        scores, before, at_end = shares * (queries @ keys.T), before[:, None], at_end[:, None]
    else:
        ones = jnp.ones((len(queries), len(queries)), log_decay.dtype)
        total = jnp.tril(ones) @ log_decay
        scores = decayed_scores((queries,), keys, total)[0]
        scores = jnp.where(sight.pairs, scores, jnp.zeros_like(scores))
        before = sight.before[:, None] * jnp.exp(total)
        at_end = sight.at_end[:, None] * jnp.exp(total[-1] - total)
    return before * queries, scores @ values, (at_end * keys).T @ values, before[-1]


def chunked(
    S: jax.Array,
    sight: Sight,
    queries: jax.Array,
    own: jax.Array,
    added: jax.Array,
    share: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`step` for the n tokens of `within`."""
    return share[:, None] * S + added, queries @ S + own
