"""Matrices that remember pairs of keys and values, as pure functions on `M` and `z`.

Infini-attention (Munkhdalai et al., 2024); equations by their numbers in the thesis: 8 (update) and
9 (retrieval). With a sum of positive features as normalizer a read is a weighted mean of values;
with signed keys of unit length and no normalizer the delta rule stores each pair exactly once.
"""

import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.layers import feature_maps, triangular
from longmem_jax.layers.triangular import product

RULES = ('linear', 'delta', 'delta_sequential')
HIGHEST = jax.lax.Precision.HIGHEST  # accelerators would round float32 to bfloat16 or TF32
NORMALIZERS = ('sum', 'none')
GUARDS = ('clamp', 'add', 'magnitude')


# name -> (feature map of the last axis, whether all features are positive)
FEATURES: dict[str, tuple[Callable[[jax.Array], jax.Array], bool]] = {
    'elu': (feature_maps.elu, True),
    'relu': (jax.nn.relu, True),
    'softmax': (jax.nn.softmax, True),
    'normalized': (functools.partial(feature_maps.unit, epsilon=1e-6), False),
}


class Pairs(flax.struct.PyTreeNode):
    """All pairs of one memory; lanes (batch rows) and heads may stand in front.

    Attributes:
      matrix: M, float32 [..., d_key, d_value].
      normalizer: z, float32 [..., d_key], the sum of all keys' features.
      rest: what rounding has cut off both sums so far, in arrays like them, for memories that grow
        without end; None = a memory that is short or forgets. Reads do not need it.
    """

    matrix: jax.Array
    normalizer: jax.Array
    rest: 'Pairs | None' = None


def empty(*shape: int, dtype: DTypeLike = jnp.float32, endless: bool = False) -> Pairs:
    """A memory without pairs: zeros; `endless` = with a `rest`. `shape` is that of the matrix."""
    pairs = Pairs(jnp.zeros(shape, dtype), jnp.zeros(shape[:-1], dtype))
    return pairs.replace(rest=jax.tree.map(jnp.copy, pairs)) if endless else pairs


def two_sum(total: jax.Array, rest: jax.Array, more: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Adds `more` to a sum that may be far larger: the new sum, and what rounding has cut off it.

    A float32 sum of 10^8 tokens swallows most of what a further token adds, one of 10^9 all of it. With
    the rest of every addition added to the next one (Knuth's two-sum) about 10^14 tokens are counted.

    Args:
      total, rest: the sum so far, as returned; arrays of one shape. A rest has no gradient.
      more: of the same shape.
    """
    more = more + jax.lax.stop_gradient(rest)
    new = total + more
    taken = new - total
    return new, jax.lax.stop_gradient((total - (new - taken)) + (more - taken))


def add(pairs: Pairs, more: Pairs) -> Pairs:
    """The sums of both arrays; by `two_sum` if `pairs` has a rest."""
    rest = pairs.rest
    if rest is None:
        return Pairs(pairs.matrix + more.matrix, pairs.normalizer + more.normalizer)
    matrix, matrix_rest = two_sum(pairs.matrix, rest.matrix, more.matrix)
    normalizer, normalizer_rest = two_sum(pairs.normalizer, rest.normalizer, more.normalizer)
    return Pairs(matrix, normalizer, Pairs(matrix_rest, normalizer_rest))


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
      features: [..., n, d_key], feature maps of queries, in the dtype of the memory.
      normalizer: 'sum' divides by the similarity to all keys, 'none' does not.
      guard: see `divide`.
      epsilon: above 0.

    Returns:
      [..., n, d_value]; zeros where the memory is empty.
    """
    retrieved = product(features, pairs.matrix)
    if normalizer == 'none':
        return retrieved
    weight = product(features, pairs.normalizer[..., None])
    return divide(retrieved, weight, guard, epsilon)


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
      features: [..., n, d_key], feature maps of keys; zeros at padding.
      values: [..., n, d_value].
      rule: 'linear' adds values; 'delta' adds their difference from what the memory returns, with
        the memory as it was before the segment for all tokens; 'delta_sequential' does so token
        by token (in parallel, by `triangular.solve_unit_lower`), for `normalizer='none'`.
      normalizer, guard, epsilon: see `read`.
    """
    values, transposed = values.astype(features.dtype), jnp.swapaxes(features, -1, -2)
    if rule != 'linear':
        values = values - read(pairs, features, normalizer, guard, epsilon)
    if rule == 'delta_sequential':
        # Token t must subtract what tokens before it added: (1 + strictly lower(K K^T)) U = V.
        values = triangular.solve_unit_lower(product(features, transposed), values)
    return add(pairs, Pairs(product(transposed, values), features.sum(axis=-2)))
