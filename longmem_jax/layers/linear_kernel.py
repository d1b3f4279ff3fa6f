"""Causal linear attention: a running sum of outer products, read in chunks or token by token.

`S_t = d_t S_{t-1} + phi(k_t) v_t^T` and `z_t = d_t z_{t-1} + phi(k_t)`; token t reads `phi(q_t) S_t` and
`phi(q_t) z_t`. One kernel for Katharopoulos et al. (2020), random features, T2R and MemSizer. Without
decay, the update at the end of a chunk is the linear rule of Infini-attention, the same function.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers import associative
from longmem_jax.layers.associative import HIGHEST, Pairs


def _chunk(
    pairs: Pairs,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    log_decay: jax.Array | None,
) -> tuple[Pairs, tuple[jax.Array, jax.Array]]:
    """Reads and writes one chunk; arguments and results as in `causal`."""
    scores = jnp.einsum('bhid,bhjd->bhij', queries, keys, precision=HIGHEST)
    length = scores.shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
    if log_decay is None:
        scores = jnp.where(causal, scores, jnp.zeros_like(scores))
        old, weight = (
            jnp.einsum('bhid,bhdm->bhim', queries, pairs.matrix, precision=HIGHEST),
            jnp.einsum('bhid,bhd->bhi', queries, pairs.normalizer, precision=HIGHEST),
        )
        new = associative.write(pairs, keys, values, 'linear', 'none', 'clamp', 1.0)
    else:
        # The share of token j that is left at token i is exp(total_i - total_j), at most 1.
        total = jnp.cumsum(log_decay, axis=-1)
        log_left = jnp.where(causal, total[..., :, None] - total[..., None, :], -jnp.inf)
        scores = scores * jnp.exp(log_left)
        decay = jnp.exp(total)
        old = (
            jnp.einsum('bhid,bhdm->bhim', queries, pairs.matrix, precision=HIGHEST)
            * decay[..., None]
        )
        weight = jnp.einsum('bhid,bhd->bhi', queries, pairs.normalizer, precision=HIGHEST) * decay
        last = jnp.exp(total[..., -1])
        faded = jax.tree.map(lambda sums: sums * last[(...,) + (None,) * (sums.ndim - 2)], pairs)
        left_at_end = jnp.exp(total[..., -1:] - total)
        new = associative.write(
            faded, keys * left_at_end[..., None], values, 'linear', 'none', 'clamp', 1.0
        )
    within = jnp.einsum('bhij,bhjm->bhim', scores, values, precision=HIGHEST)
    return new, (old + within, weight + scores.sum(-1))


def causal(
    pairs: Pairs,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    chunk: int,
    log_decay: jax.Array | None = None,
) -> tuple[Pairs, jax.Array, jax.Array]:
    """Reads and writes a sequence; every token reads after its own write.

    Args:
      pairs: S and z after earlier tokens, in the dtype of the features.
      queries, keys: feature maps, [batch, heads, n, d_key]; keys are zero at padding.
      values: [batch, heads, n, d_value].
      chunk: tokens processed at once; the backward pass keeps only the sums between chunks.
      log_decay: [batch, heads, n], log of d_t in (-inf, 0], zero at padding; None = no decay.

    Returns:
      S and z after the last token; phi(q) S, [batch, heads, n, d_value]; phi(q) z, [batch, heads, n].
    """
    values = values.astype(keys.dtype)
    length = queries.shape[2]
    chunk = min(chunk, length)
    num_chunks = -(-length // chunk)
    if num_chunks == 1:
        pairs, (read, weight) = _chunk(pairs, queries, keys, values, log_decay)
        return pairs, read, weight

    def cut(array: jax.Array) -> jax.Array:
        widths = [(0, 0)] * array.ndim
        widths[2] = (0, num_chunks * chunk - length)
        array = jnp.pad(array, widths)
        array = array.reshape(*array.shape[:2], num_chunks, chunk, *array.shape[3:])
        return jnp.moveaxis(array, 2, 0)

    def join(array: jax.Array) -> jax.Array:
        array = jnp.moveaxis(array, 0, 2)
        return array.reshape(*array.shape[:2], num_chunks * chunk, *array.shape[4:])[:, :, :length]

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(pairs: Pairs, chunk: Any) -> tuple[Pairs, Any]:
        return _chunk(pairs, *chunk)

    chunks = tuple(map(cut, (queries, keys, values)))
    chunks = (*chunks, None if log_decay is None else cut(log_decay))
    pairs, (read, weight) = jax.lax.scan(body, pairs, chunks)
    return pairs, join(read), join(weight)
