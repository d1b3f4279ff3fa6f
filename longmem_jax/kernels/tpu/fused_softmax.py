"""A softmax over keys that come in blocks, inside of a kernel: the mean of values by its weights.

All functions take the references of a kernel by name. `highest` and `total`, float32 [queries, LANES],
have the highest score and the sum of weights of each query, in all columns; `mixed`, float32
[queries, head_dim], has the sum of weighted values.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.kernels.attention_products import NEVER
from longmem_jax.kernels.tpu import fused_blocks as blocks


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
      Weights, 0 where nothing is seen, and the factor of earlier sums, [queries, LANES].
    """
    highest = refs['highest']
    scores = jnp.where(seen, scores, NEVER)
    before = highest[...]  # alike in all columns, so that nothing moves across lanes
    higher = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    highest[...] = higher
    weights = jnp.exp(scores - blocks.wide(higher, scores.shape[1]))
    return jnp.where(seen, weights, 0.0), jnp.exp(before - higher)


def add(refs: dict[str, Any], decay: Any, sums: Any, weights: Any, values: Any) -> None:
    """Adds a block: `sums` [queries, 1] to the totals, and the weighted values; `decay` of `weigh`."""
    total, mixed = refs['total'], refs['mixed']
    total[...] = total[...] * decay + sums
    added = blocks.product(weights.astype(values.dtype), values, (1, 0))
    mixed[...] = mixed[...] * blocks.wide(decay, mixed.shape[1]) + added


def end(refs: dict[str, Any]) -> None:
    """After the last block: writes `out`, and logarithms of the sums to `sums`; 0 for no keys."""
    sums = refs['total'][...]
    nothing = sums == 0
    sums = jnp.where(nothing, 1.0, sums)
    mixed = refs['mixed'][...]
    out = mixed / blocks.wide(sums, mixed.shape[1])
    refs['out'][...] = out.astype(refs['out'].dtype)
    logarithms = jnp.where(nothing, 0.0, refs['highest'][...] + jnp.log(sums))
    refs['sums'][...] = blocks.as_row(logarithms)
