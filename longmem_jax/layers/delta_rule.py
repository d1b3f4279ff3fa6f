"""The gated delta rule of one head, token by token and in chunks.

A token lets S fade, then moves what its key gives towards its value: one step of gradient descent on
|S^T k - v|^2 / 2, of the size b. With a <= 1 by head or by channel of the key:

    S <- diag(a) S
    S <- S + b k (v - S^T k)^T
    o  = S^T q
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers.decayed_scores import decayed_scores
from longmem_jax.layers.sight import Sight
from longmem_jax.layers.triangular import solve_unit_lower


def unit(x: jax.Array) -> jax.Array:
    """Vectors [..., width] of length one; those much shorter than 1e-3 stay short."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + jnp.asarray(1e-6, x.dtype))


def step(
    S: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, b: jax.Array, log_a: Any = None
) -> tuple[jax.Array, jax.Array]:
    """One token of one head: the definition.

    Args:
      S: [key_dim, head_dim].
      q, k: [key_dim].
      v: [head_dim].
      b: scalar, how far the token moves what its key gives.
      log_a: scalar or [key_dim], at most 0, the log of what is left of S; None = all of it.

    Returns:
      The new S, and what the token reads of it, [head_dim].
    """
    if log_a is not None:
        S = jnp.exp(log_a)[..., None] * S
    S = S + jnp.outer(k, b * (v - k @ S))
    return S, q @ S


def within(
    sight: Sight, q: jax.Array, k: jax.Array, v: jax.Array, b: jax.Array, log_a: Any = None
) -> tuple[jax.Array, ...]:
    """What n tokens of a chunk, arrays [n, ...], do to each other, whatever S is.

    Each writes `u_i = b_i (v_i - (k_i a_i)^T S - sum_(j < i) (k_i^T A_ij k_j) u_j)`, with a_i and A_ij
    what is left at token i of the state before the chunk and of token j's write: a triangular system.

    Returns:
      The matrix [n, n] that solves it; values [n, head_dim]; keys and queries [n, key_dim] as they meet
      S; keys as they are left after the chunk; the shares [n, n] of all u that queries see; what is left
      of S, [1] or [key_dim].
    """
    if log_a is None or log_a.ndim == 1:
        shares, before, at_end = sight.shares(log_a)
        before, at_end = before[:, None], at_end[:, None]
        of_queries, of_keys = shares * (q @ k.T), shares * (k @ k.T)
    else:
        total = jnp.tril(jnp.ones((len(b), len(b)), log_a.dtype)) @ log_a
        before = sight.before[:, None] * jnp.exp(total)
        at_end = sight.at_end[:, None] * jnp.exp(total[-1] - total)
        scores = decayed_scores((q, k), k, total)
        of_queries, of_keys = jnp.where(sight.pairs, scores, jnp.zeros_like(scores))
    solving = solve_unit_lower(b[:, None] * of_keys, jnp.diag(b))
    return solving, v, before * k, before * q, at_end * k, of_queries, before[-1]


def chunked(
    S: jax.Array,
    sight: Sight,
    solving: jax.Array,
    v: jax.Array,
    k: jax.Array,
    q: jax.Array,
    k_left: jax.Array,
    of_queries: jax.Array,
    left: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`step` for the n tokens of which `within` has told the rest."""
    u = solving @ (v - k @ S)
    return left[:, None] * S + k_left.T @ u, q @ S + of_queries @ u
