"""A softmax over keys that come in blocks, inside of a kernel: the mean of values by its weights.

All functions take the references of a kernel by name. `highest` and `total`, float32 [queries, LANES],
have the highest score and the sum of weights of each query, in all columns; `mixed`, float32
[queries, head_dim], has the sum of weighted values.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.tpu import fused_blocks as blocks
from longmem_jax.kernels.tpu.fused_blocks import NEVER


def begin(refs: dict[str, Any]) -> None:
    """Before the first block."""
    highest, total, mixed = (refs[name] for name in ('highest', 'total', 'mixed'))
    highest[...] = jnp.full(highest.shape, NEVER, jnp.float32)
    total[...] = jnp.zeros(total.shape, jnp.float32)
    mixed[...] = jnp.zeros(mixed.shape, jnp.float32)


def weigh(refs: dict[str, Any], scores: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights of a block, by its highest score so far.

    Args:
      refs: `highest` becomes that of this block, too.
      scores: float32 [queries, keys].
      seen: bool, alike.

    Returns:
      Weights, 0 where nothing is seen, and the factor of earlier sums, [queries, 1].
    """
    highest = refs['highest']
    scores = jnp.where(seen, scores, NEVER)
    before = highest[:, :1]
    higher = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    highest[...] = jnp.broadcast_to(higher, highest.shape)
    return jnp.where(seen, jnp.exp(scores - higher), 0.0), jnp.exp(before - higher)


def add(refs: dict[str, Any], decay: Any, sums: Any, weights: Any, values: Any) -> None:
    """Adds a block: `sums` [queries, 1] to the totals, and the weighted values."""
    total, mixed = refs['total'], refs['mixed']
    total[...] = jnp.broadcast_to(total[:, :1] * decay + sums, total.shape)
    mixed[...] = mixed[...] * decay + blocks.product(weights.astype(values.dtype), values, (1, 0))


def end(refs: dict[str, Any]) -> None:
    """After the last block: writes `out`, and logarithms of the sums to `sums`; 0 for no keys."""
    sums = refs['total'][:, :1]
    nothing = sums == 0
    sums = jnp.where(nothing, 1.0, sums)
    out = jnp.where(nothing, 0.0, refs['mixed'][...] / sums)
    refs['out'][...] = out.astype(refs['out'].dtype)
    logarithms = jnp.where(nothing, 0.0, refs['highest'][:, :1] + jnp.log(sums))
    refs['sums'][...] = blocks.as_row(logarithms)
