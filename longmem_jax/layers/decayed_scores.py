"""Scores between the tokens of a chunk that fade channel by channel, by products of matrices.

The plain factors `exp(total_i)` and `exp(-total_j)` of such a score overflow. Here every exponent is
that of a later token less that of an earlier one, so at most 0.
"""

import jax
import jax.numpy as jnp


def decayed_scores(rows: tuple[jax.Array, ...], columns: jax.Array, total: jax.Array) -> jax.Array:
    """`sum_d rows_id columns_jd exp(total_id - total_jd)` where j <= i, else 0.

    Two neighbouring blocks of tokens meet at the last token of the first: `rows` of the second fade
    since then, `columns` of the first until then. Blocks double until one has all tokens.

    Args:
      rows: of every kind, such as queries and keys, [n, channels].
      columns: [n, channels], such as keys.
      total: [n, channels], the sum of all log decays up to each token; it never rises.

    Returns:
      [kinds, n, n].
    """
    n, channels = columns.shape
    size = 1
    while size < n:
        size *= 2
    # Padding fades no more.
    total = jnp.pad(total, ((0, size - n), (0, 0)), mode='edge')
    rows, columns = jax.tree.map(lambda x: jnp.pad(x, ((0, size - n), (0, 0))), (rows, columns))
    # Within blocks, [blocks, kinds, tokens of a block, tokens of a block].
    scores = jnp.stack([(kind * columns).sum(-1) for kind in rows], axis=1)[:, :, None, None]
    width = 1
    while width < size:
        halves = total.reshape(-1, 2, width, channels)
        meeting = halves[:, 0, -1:]
        until = columns.reshape(halves.shape)[:, 0] * jnp.exp(meeting - halves[:, 0])
        left = jnp.exp(halves[:, 1] - meeting)
        # One product for all kinds, with few axes: XLA's CPU runtime fails with many.
        since = jnp.concatenate([kind.reshape(halves.shape)[:, 1] * left for kind in rows], axis=1)
        between = since @ jnp.swapaxes(until, 1, 2)
        between = between.reshape(-1, len(rows), width, width)
        above = jnp.concatenate([scores[::2], jnp.zeros_like(between)], axis=-1)
        below = jnp.concatenate([between, scores[1::2]], axis=-1)
        scores, width = jnp.concatenate([above, below], axis=2), 2 * width
    return scores[0, :, :n, :n]
