"""The network inside a neural memory, what it is trained on, and the step of Muon.

Everything is of one lane and one head. The weights of a network are a dictionary: `gamma` [d] of its
norm, and `matrix_0`, `matrix_1`, ... [inputs, outputs].
"""

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]

LOSSES = ('l2', 'huber', 'lp')
NORM_EPSILON = 1e-5
# Newton-Schulz: of a singular value s, five turns of s <- (A + B s^2 + C s^4) s make about 1.
A, B, C, TURNS = 3.4445, -4.7750, 2.0315, 5


def names(matrices: int) -> tuple[str, ...]:
    """Names of the matrices of a network, in order."""
    return tuple(f'matrix_{number}' for number in range(matrices))


def predicted(weights: Weights, z: jax.Array) -> jax.Array:
    """`f(z) = z + LN(mlp(z)) (1 + gamma)`, with gelu between the matrices; z, f(z) are [n, d]."""
    y = z
    for number, name in enumerate(names(len(weights) - 1)):
        y = jax.nn.gelu(y, approximate=False) if number else y
        y = y @ weights[name]
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + NORM_EPSILON)
    return z + y * (1 + weights['gamma'])


def distance(error: jax.Array, loss: str, power: float, threshold: float) -> jax.Array:
    """The mean over channels of what `loss` makes of `error` [n, d]: [n].

    Args:
      error: f(k) - v.
      loss: 'l2', squares; 'huber', squares up to `threshold` and lines beyond it; 'lp', to `power`.
      power: of 'lp'.
      threshold: of 'huber'.
    """
    squares = error * error
    if loss == 'huber':
        beyond = 2 * threshold * jnp.abs(error) - threshold**2
        squares = jnp.where(squares <= threshold**2, squares, beyond)
    if loss == 'lp':
        squares = (squares + 1e-6) ** (power / 2)  # the slope of a root of 0 is infinite
    return squares.mean(-1)


def surprise(
    weights: Weights,
    k: jax.Array,
    v: jax.Array,
    step: jax.Array,
    loss: str = 'l2',
    power: float = 2.0,
    threshold: float = 1.0,
) -> Weights:
    """The step of gradient descent on `sum_t step_t |f(k_t) - v_t|^2` (Eqs. 8, 12), not yet taken.

    One gradient of the sum: for n tokens it is products of matrices.

    Args:
      weights: at which the gradient is taken.
      k, v: [n, d].
      step: [n], sizes of the steps; 0 = the token is not learned.
      loss, power, threshold: see `distance`.
    """

    def total(weights: Weights) -> jax.Array:
        error = predicted(weights, k) - v
        return -jnp.sum(step * distance(error, loss, power, threshold))

    return jax.grad(total)(weights)


def squashed(array: jax.Array, most: float) -> jax.Array:
    """The array with a norm between `most` / 2 and `most`: `(1 + tanh(2 norm / most)) most / 2`."""
    norm = _norm(array)
    return array * ((1 + jnp.tanh(2 * norm / most)) * most / 2 / jnp.maximum(norm, 1e-7))


def orthogonal(weights: Weights) -> Weights:
    """Muon: every matrix with singular values of about 1, by Newton-Schulz; `gamma` as it is."""
    return {
        name: _newton_schulz(array) if array.ndim == 2 else array for name, array in weights.items()
    }


def _newton_schulz(X: jax.Array) -> jax.Array:
    if X.shape[0] > X.shape[1]:
        return _newton_schulz(X.T).T
    X = X / jnp.maximum(_norm(X), 1e-7)
    for _ in range(TURNS):
        square = X @ X.T
        X = A * X + (B * square + C * square @ square) @ X
    return X


def _norm(array: jax.Array) -> jax.Array:
    """The root of the sum of squares; its gradient at 0 is 0."""
    return jnp.sqrt(jnp.sum(array * array) + jnp.asarray(1e-30, array.dtype))
