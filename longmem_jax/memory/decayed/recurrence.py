"""One recurrence for many memories: `S <- decay S + k v^T`, read as `q S`.

RetNet's decay is fixed per head, that of Mamba-2 is given by each token per head, that of gated linear
attention by each token per channel of the keys. Decays are logarithms, at most 0.

Sequences are read by products of matrices. No exponential is larger than 1: the decay between two tokens
is split at a point between both, and never divided out.
"""

import jax
import jax.numpy as jnp

from longmem_jax.author import Sight


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


def chunked(
    S: jax.Array,
    sight: Sight,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`step` for n tokens; arguments have n in front, but S has not."""
    if log_decay.ndim == 1:
        within, before, at_end = sight.shares(log_decay)
        y = before[:, None] * (queries @ S) + (within * (queries @ keys.T)) @ values
        return before[-1] * S + (at_end[:, None] * keys).T @ values, y
    scores, before, after = scores_by_channel(queries, keys, log_decay)
    scores = jnp.where(sight.pairs, scores, jnp.zeros_like(scores))
    y = sight.before[:, None] * ((before * queries) @ S) + scores @ values
    left = sight.at_end[:, None] * (after * keys)
    return sight.before[-1] * before[-1][:, None] * S + left.T @ values, y


def scores_by_channel(
    queries: jax.Array, keys: jax.Array, log_decay: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`sum_c q_ic k_jc decay_c(j to i)` of all pairs, j at most i, with a decay per channel.

    Neighbouring blocks are joined to one of twice the size until there is one block. A token of the
    second reads one of the first by two shares, each at most 1: that of the key at the end of the first
    block, and that of this end at the query. So each joining is one product of matrices. Shares are
    multiplied and never divided: nothing overflows, and 0 is a share like others.

    Args:
      queries, keys, log_decay: [n, d_key].

    Returns:
      Scores [n, n], 0 above the diagonal; the decay from before the first token to each, and that from
      each to the end, [n, d_key].
    """
    n, size = len(queries), 1
    while size < n:
        size *= 2
    queries, keys, log_decay = (
        jnp.pad(array, ((0, size - n), (0, 0))) for array in (queries, keys, log_decay)
    )
    # Of blocks [blocks, size, ...]: scores within; shares at each token of the state before the block;
    # shares of each token at the end of the block.
    scores = (queries * keys).sum(-1)[:, None, None]
    before = jnp.exp(log_decay)[:, None]
    after = jnp.ones_like(before)
    while len(scores) > 1:
        first, second = slice(0, None, 2), slice(1, None, 2)
        by_block = before.shape
        read = before[second] * queries.reshape(by_block)[second]
        written = after[first] * keys.reshape(by_block)[first]
        between = read @ jnp.swapaxes(written, 1, 2)
        above = jnp.concatenate([scores[first], jnp.zeros_like(between)], axis=2)
        below = jnp.concatenate([between, scores[second]], axis=2)
        scores = jnp.concatenate([above, below], axis=1)
        later = before[first, -1:] * before[second]
        earlier = after[first] * before[second, -1:]
        before = jnp.concatenate([before[first], later], axis=1)
        after = jnp.concatenate([earlier, after[second]], axis=1)
    return scores[0, :n, :n], before[0, :n], after[0, :n]
