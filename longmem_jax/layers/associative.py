"""Matrices that remember pairs of keys and values, as pure functions on `M` and `z`.

Infini-attention (Munkhdalai et al., 2024); equations by their numbers in the thesis: 8 (update) and
9 (retrieval). With a sum of positive features as normalizer a read is a weighted mean of values;
with signed keys of unit length and no normalizer the delta rule stores each pair exactly once.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.layers import feature_maps

RULES = ('linear', 'delta', 'delta_sequential')
HIGHEST = jax.lax.Precision.HIGHEST  # accelerators would round float32 to bfloat16 or TF32
NORMALIZERS = ('sum', 'none')
GUARDS = ('clamp', 'add', 'magnitude')


# name -> (feature map of the last axis, whether all features are positive)
FEATURES = {
    'elu': (feature_maps.elu, True),
    'relu': (jax.nn.relu, True),
    'softmax': (jax.nn.softmax, True),
    'normalized': (functools.partial(feature_maps.unit, epsilon=1e-6), False),
}


@flax.struct.dataclass
class Pairs:
    """All pairs of one layer, per lane (batch row) and head.

    Attributes:
      matrix: M, float32 [batch, heads, d_key, d_value].
      normalizer: z, float32 [batch, heads, d_key], the sum of all keys' features.
    """

    matrix: jax.Array
    normalizer: jax.Array


def empty(batch: int, heads: int, d_key: int, d_value: int, dtype: Any = jnp.float32) -> Pairs:
    """A memory without pairs: zeros in both arrays."""
    return Pairs(
        jnp.zeros((batch, heads, d_key, d_value), dtype), jnp.zeros((batch, heads, d_key), dtype)
    )


def divide(retrieved: jax.Array, weight: jax.Array, guard: str, epsilon: float) -> jax.Array:
    """`retrieved` over the similarity `weight`, which is kept away from zero.

    Args:
      retrieved: [..., d_value].
      weight: [..., 1].
      guard: `epsilon` is the smallest similarity ('clamp'), the smallest absolute value of it
        ('magnitude', for features that may be negative), or added ('add').
      epsilon: above 0.

    Returns:
      [..., d_value].
    """
    smallest = jnp.asarray(epsilon, weight.dtype)
    if guard == 'add':
        return retrieved / (weight + smallest)
    return retrieved / jnp.maximum(jnp.abs(weight) if guard == 'magnitude' else weight, smallest)


def read(
    pairs: Pairs, features: jax.Array, normalizer: str, guard: str, epsilon: float
) -> jax.Array:
    """Reads the values that the memory holds for keys or queries (Eq. 9).

    Args:
      pairs: the memory.
      features: [batch, heads, ..., n, d_key], feature maps of queries, in the dtype of the memory.
      normalizer: 'sum' divides by the similarity to all keys, 'none' does not.
      guard: see `divide`.
      epsilon: above 0.

    Returns:
      [batch, heads, ..., n, d_value]; zeros where the memory is empty.
    """
    retrieved = jnp.einsum('bh...nk,bhkv->bh...nv', features, pairs.matrix, precision=HIGHEST)
    if normalizer == 'none':
        return retrieved
    weight = jnp.einsum('bh...nk,bhk->bh...n', features, pairs.normalizer, precision=HIGHEST)
    return divide(retrieved, weight[..., None], guard, epsilon)


def write(
    pairs: Pairs,
    features: jax.Array,
    values: jax.Array,
    rule: str,
    normalizer: str,
    guard: str,
    epsilon: float,
) -> Pairs:
    """Adds the pairs of a segment (Eq. 8).

    Args:
      pairs: the memory before.
      features: [batch, heads, n, d_key], feature maps of keys; zeros at padding.
      values: [batch, heads, n, d_value].
      rule: 'linear' adds values; 'delta' adds their difference from what the memory returns, with
        the memory as it was before the segment for all tokens; 'delta_sequential' does so token
        by token (in parallel, by one triangular solve), for `normalizer='none'`.
      normalizer, guard, epsilon: see `read`.
    """
    values = values.astype(features.dtype)
    if rule != 'linear':
        values = values - read(pairs, features, normalizer, guard, epsilon)
    if rule == 'delta_sequential':
        # Token t must subtract what tokens before it added: (1 + strictly lower(K K^T)) U = V.
        overlap = jnp.einsum('bhik,bhjk->bhij', features, features, precision=HIGHEST)
        overlap = jnp.tril(overlap, -1)
        identity = jnp.eye(features.shape[2], dtype=features.dtype)[None, None]
        values = jax.lax.linalg.triangular_solve(
            overlap + identity, values, left_side=True, lower=True, unit_diagonal=True
        )
    return Pairs(
        pairs.matrix + jnp.einsum('bhnk,bhnv->bhkv', features, values, precision=HIGHEST),
        pairs.normalizer + features.sum(axis=2),
    )
