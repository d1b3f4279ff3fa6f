"""Feature maps as pure functions: unit vectors, ELU, products, random features, and learned ones."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.layers import triangular

RANDOM = ('normal', 'orthogonal')
FOURIER_SCALE = 0.1  # of the random features of RFA's released code


def unit(x: jax.Array, epsilon: float) -> jax.Array:
    """Unit vectors along the last axis: `x / sqrt(sum x^2 + epsilon)`; shape and dtype of `x`.

    Computed in float32 at least.

    Args:
      x: [..., width].
      epsilon: keeps the gradient of zero vectors finite; 0 if they cannot occur.
    """
    x32 = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    squared_length = jnp.sum(x32 * x32, axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(squared_length + jnp.asarray(epsilon, x32.dtype))).astype(x.dtype)


def elu(x: jax.Array) -> jax.Array:
    """elu(x) + 1 (Katharopoulos et al., 2020); shape and dtype of `x`."""
    return jax.nn.elu(x) + 1


def products(x: jax.Array, nu: int) -> jax.Array:
    """Products of two features, without parameters (Schlag et al., 2021, DPFP).

    `u = relu([x, -x])`, and then u times u rolled by 1 to `nu` places.

    Args:
      x: [..., width].
      nu: rolls.

    Returns:
      [..., 2 width nu], at least 0.
    """
    u = jax.nn.relu(jnp.concatenate([x, -x], axis=-1))
    return jnp.concatenate([u * jnp.roll(u, j, axis=-1) for j in range(1, nu + 1)], axis=-1)


def random_matrices(seed: int, heads: int, size: int, head_dim: int, kind: str) -> np.ndarray:
    """Random directions, float32 [heads, size, head_dim].

    'normal' draws independent normal numbers; 'orthogonal' draws orthogonal directions, head_dim at a
    time, with the lengths that normal ones would have.
    """
    random = np.random.default_rng(seed)
    if kind == 'normal':
        return random.normal(size=(heads, size, head_dim)).astype(np.float32)
    bases = []
    for _ in range(-(-size // head_dim)):
        basis, _ = np.linalg.qr(random.normal(size=(heads, head_dim, head_dim)))
        bases.append(basis.transpose(0, 2, 1))
    directions = np.concatenate(bases, axis=1)[:, :size]
    lengths = np.sqrt(random.chisquare(head_dim, size=(heads, size, 1)))
    return (directions * lengths).astype(np.float32)


def draw_matrices(key: jax.Array, shape: tuple[int, int, int], kind: str) -> jax.Array:
    """Random directions as of `random_matrices`, drawn on the device.

    Args:
      key: random key.
      shape: heads, size, head_dim.
      kind: one of `RANDOM`.

    Returns:
      float32 [heads, size, head_dim].
    """
    key, of_lengths = jax.random.split(key)
    if kind == 'normal':
        return jax.random.normal(key, shape, jnp.float32)
    heads, size, head_dim = shape
    squares = (heads, -(-size // head_dim), head_dim, head_dim)
    bases = triangular.orthonormal(jax.random.normal(key, squares, jnp.float32))
    directions = bases.reshape(heads, -1, head_dim)[:, :size]
    like = jax.random.normal(of_lengths, shape, jnp.float32)
    return directions * jnp.linalg.norm(like, axis=-1, keepdims=True)


def random_fourier(x: jax.Array, matrices: jax.Array, tau: float) -> jax.Array:
    """0.1 [sin(W u), cos(W u)] of unit vectors u (Peng et al., 2021, as released).

    Args:
      x: [..., heads, n, head_dim].
      matrices: [heads, size, head_dim], already times the learned sigma, if any.
      tau: temperature.

    Returns:
      [..., heads, n, 2 size].
    """
    length = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + jnp.asarray(1e-30, x.dtype))
    unit = x / (length + jnp.asarray(1e-3, x.dtype))
    angles = jnp.einsum('...hnd,hkd->...hnk', unit, matrices.astype(x.dtype) / tau)
    return FOURIER_SCALE * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def learned(x: jax.Array, matrices: jax.Array, bias: jax.Array, tau: float) -> jax.Array:
    """relu(W x + b) (Kasai et al., 2021, T2R).

    Args:
      x: [..., heads, n, head_dim].
      matrices: [heads, size, head_dim].
      bias: [heads, size].
      tau: divides the matrices.

    Returns:
      [..., heads, n, size].
    """
    mixed = jnp.einsum('...hnd,hkd->...hnk', x, matrices.astype(x.dtype) / tau)
    shape = (1,) * (x.ndim - 3) + (bias.shape[0], 1, bias.shape[1])
    return jax.nn.relu(mixed + bias.astype(x.dtype).reshape(shape))
