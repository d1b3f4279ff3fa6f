"""Scores between the tokens of a chunk that fade channel by channel, by products of matrices.

The plain factors `exp(total_i)` and `exp(-total_j)` of such a score overflow. Here every exponent is
that of a later token less that of an earlier one, so at most 0.
"""

import jax
import jax.numpy as jnp

# Tokens between which scores are sums over channels; above it they are products of matrices.
BLOCK = 4


def decayed_scores(rows: jax.Array, columns: jax.Array, total: jax.Array) -> jax.Array:
    """`sum_d rows_id columns_jd exp(total_id - total_jd)` where j <= i, else 0.

    Two neighbouring blocks of tokens meet at the last token of the first: `rows` of the second fade
    since then, `columns` of the first until then. Blocks double until one has all tokens.

    Args:
      rows: [..., n, channels], such as queries.
      columns: [n, channels], such as keys.
      total: [n, channels], the sum of all log decays up to each token; it never rises.

    Returns:
      [..., n, n].
    """
    n, size = columns.shape[0], BLOCK
    while size < n:
        size *= 2
    # Padding fades no more.
    total = jnp.pad(total, ((0, size - n), (0, 0)), mode='edge')
    columns = jnp.pad(columns, ((0, size - n), (0, 0)))
    rows = jnp.pad(rows, (*[(0, 0)] * (rows.ndim - 2), (0, size - n), (0, 0)))

    def cut(array: jax.Array, *shape: int) -> jax.Array:
        return array.reshape(*array.shape[:-2], *shape, array.shape[-1])

    small, width = cut(total, -1, BLOCK), BLOCK
    left = small[:, :, None] - small[:, None]
    causal = jnp.tril(jnp.ones((BLOCK, BLOCK), bool))[None, :, :, None]
    # Masked before `exp`: what comes later would overflow.
    faded = jnp.exp(jnp.where(causal, left, -jnp.inf)) * cut(columns, -1, BLOCK)[:, None]
    scores = (cut(rows, -1, BLOCK)[..., None, :] * faded).sum(-1)
    while width < size:
        halves = cut(total, -1, 2, width)
        meeting = halves[:, 0, -1:]
        until = jnp.exp(meeting - halves[:, 0]) * cut(columns, -1, 2, width)[:, 0]
        since = jnp.exp(halves[:, 1] - meeting) * cut(rows, -1, 2, width)[..., 1, :, :]
        between = since @ jnp.swapaxes(until, -1, -2)
        pairs = scores.reshape(*scores.shape[:-3], -1, 2, width, width)
        above = jnp.concatenate([pairs[..., 0, :, :], jnp.zeros_like(between)], axis=-1)
        below = jnp.concatenate([between, pairs[..., 1, :, :]], axis=-1)
        scores, width = jnp.concatenate([above, below], axis=-2), 2 * width
    return scores[..., 0, :n, :n]
