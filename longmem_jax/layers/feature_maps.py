"""Feature maps as pure functions: unit vectors, ELU, random features, and learned ones."""

import jax
import jax.numpy as jnp
import numpy as np

RANDOM = ('normal', 'orthogonal')


def unit(x: jax.Array, epsilon: float) -> jax.Array:
    """Vectors of the last axis at length one: `x / sqrt(sum x^2 + epsilon)`; like `x`.

    Computed in float32 at least.

    Args:
      x: [..., width].
      epsilon: keeps the gradient of zero vectors finite; 0 where they cannot occur.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    square = jnp.sum(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(square + jnp.asarray(epsilon, wide.dtype))).astype(x.dtype)


def elu(x: jax.Array) -> jax.Array:
    """elu(x) + 1 (Katharopoulos et al., 2020); like `x`."""
    return jax.nn.elu(x) + 1


def random_matrices(seed: int, heads: int, size: int, head_dim: int, kind: str) -> np.ndarray:
    """Random directions, float32 [heads, size, head_dim].

    'normal' draws all numbers apart; 'orthogonal' draws orthogonal rows, head_dim of them at a time,
    as long as normal ones would be.
    """
    random = np.random.default_rng(seed)
    if kind == 'normal':
        return random.normal(size=(heads, size, head_dim)).astype(np.float32)
    rows = []
    for _ in range(-(-size // head_dim)):
        basis, _ = np.linalg.qr(random.normal(size=(heads, head_dim, head_dim)))
        rows.append(basis.transpose(0, 2, 1))
    rows = np.concatenate(rows, axis=1)[:, :size]
    lengths = np.sqrt(random.chisquare(head_dim, size=(heads, size, 1)))
    return (rows * lengths).astype(np.float32)


def random_fourier(x: jax.Array, matrices: jax.Array, tau: float) -> jax.Array:
    """0.1 [sin(W u), cos(W u)] of unit vectors u (Peng et al., 2021, as released).

    Args:
      x: [batch, heads, n, head_dim].
      matrices: [heads, size, head_dim], times the learned sigma if there is one.
      tau: temperature.

    Returns:
      [batch, heads, n, 2 size].
    """
    length = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + jnp.asarray(1e-30, x.dtype))
    unit = x / (length + jnp.asarray(1e-3, x.dtype))
    angles = jnp.einsum('bhnd,hkd->bhnk', unit, matrices.astype(x.dtype) / tau)
    return 0.1 * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def learned(x: jax.Array, matrices: jax.Array, bias: jax.Array, tau: float) -> jax.Array:
    """relu(W x + b) (Kasai et al., 2021, T2R).

    Args:
      x: [batch, heads, n, head_dim].
      matrices: [heads, size, head_dim].
      bias: [heads, size].
      tau: divides the matrices.

    Returns:
      [batch, heads, n, size].
    """
    mixed = jnp.einsum('bhnd,hkd->bhnk', x, matrices.astype(x.dtype) / tau)
    return jax.nn.relu(mixed + bias.astype(x.dtype)[None, :, None])
