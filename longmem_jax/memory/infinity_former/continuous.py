"""Continuous memory: a signal over [0, 1] in Gaussian basis functions (Martins et al., 2022).

The pure functions of the infinity-former: basis, ridge regression, evaluation and contraction,
expectations under densities, histogram of attention, sticky positions, and the KL term. Fit matrices
are computed once in float64 with numpy: in float32 the inverse is off by several percent.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

DENSITIES = ('gaussian', 'parabola')
STICKY = ('none', 'sampled', 'sampled_inside', 'quantile')
KL_KINDS = ('true', 'paper_eq21', 'as_released')
# Products with B, G or psi: functions cancel each other, so rounding to bfloat16 or TF32, the default
# of accelerators, would grow from update to update.
HIGHEST = jax.lax.Precision.HIGHEST
EDGE = 1e-6  # margin of the outermost bin edges beyond [0, 1]


def gaussian_basis(num_basis: int, widths: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Centres and widths of the basis functions, float64 [num_basis] each.

    `num_basis / len(widths)` centres, evenly spaced on [0, 1] with both ends, each with every
    width; widths vary fastest.
    """
    centres = np.linspace(0.0, 1.0, num_basis // len(widths))
    return np.repeat(centres, len(widths)), np.tile(np.asarray(widths, np.float64), len(centres))


def first_positions(length: int) -> np.ndarray:
    """Positions of the vectors in the first fit: float64 [length]."""
    return (np.arange(length) + 0.5) / length


def update_positions(length: int, num_samples: int, tau: float) -> np.ndarray:
    """Positions in the new signal of an update: float64 [samples + length].

    Samples of the old signal get (0, tau], which contracts it (Eqs. 13-14); new vectors get the rest.
    """
    old = np.arange(1, num_samples + 1) * tau / num_samples
    new = tau + (1 - tau) * np.arange(1, length + 1) / length
    return np.concatenate([old, new])


def psi64(positions: np.ndarray, centres: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """`psi` in numpy, float64 [n, num_basis]."""
    distance = (positions[:, None] - centres) / widths
    return np.exp(-0.5 * distance**2) / (widths * math.sqrt(2 * math.pi))


def fit_matrix(
    positions: np.ndarray,
    outside: np.ndarray,
    centres: np.ndarray,
    widths: np.ndarray,
    ridge: float,
) -> np.ndarray:
    """`G` of Eq. 5, float64 [n, num_basis]: `B = G^T X` solves the ridge regression.

    Args:
      positions: float64 [n], positions of the vectors.
      outside: float64 [m], positions beyond [0, 1] at which the signal is pulled to zero.
      centres, widths: see `gaussian_basis`.
      ridge: penalty > 0.
    """
    basis = psi64(np.concatenate([positions, outside]), centres, widths)  # F^T
    normal = basis.T @ basis + ridge * np.eye(len(centres))
    return np.linalg.solve(normal, basis.T).T[: len(positions)]


def _outside(count: int, step: float) -> np.ndarray:
    """Those of `count` evenly spaced points from -0.5 + step to 1.5 - step that are beyond [0, 1]."""
    points = np.linspace(-0.5 + step, 1.5 - step, count)
    return points[(points < 0) | (points > 1)]


@functools.lru_cache(maxsize=64)
def fit_matrices(
    length: int,
    num_samples: int,
    tau: float,
    ridge: float,
    num_basis: int,
    widths: tuple[float, ...],
    padding: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of the first fit, [length, num_basis], and of updates, [samples + length, num_basis].

    With `padding`, as in the released code, the signal is pulled to zero outside of [0, 1].
    """
    centres, sizes = gaussian_basis(num_basis, widths)
    first, update = first_positions(length), update_positions(length, num_samples, tau)
    total = length + num_samples
    beyond = _outside(2 * length, 1 / (2 * length)) if padding else np.zeros((0,))
    first = fit_matrix(first, beyond, centres, sizes, ridge)
    beyond = _outside(2 * total, 1 / (2 * length + num_samples)) if padding else np.zeros((0,))
    return first, fit_matrix(update, beyond, centres, sizes, ridge)


def _as_last_axis(vector: jax.Array | np.ndarray, positions: jax.Array) -> jax.Array:
    """`vector` [n] as an axis after those of `positions`, in their dtype."""
    return jnp.asarray(vector, positions.dtype).reshape((1,) * positions.ndim + (-1,))


def psi(positions: jax.Array, centres: jax.Array, widths: jax.Array) -> jax.Array:
    """`psi` of Eq. 7 at `positions` [...]: [..., num_basis], in the dtype of `positions`."""
    centres, widths = _as_last_axis(centres, positions), _as_last_axis(widths, positions)
    distance = (positions[..., None] - centres) / widths
    return jnp.exp(-0.5 * distance * distance) / (widths * math.sqrt(2 * math.pi))


def evaluate(coefficients: jax.Array, basis: jax.Array) -> jax.Array:
    """The signal `B^T psi` (Eq. 7).

    Args:
      coefficients: B, [batch, num_basis, d_model].
      basis: psi at the positions, [positions, num_basis] or [batch, positions, num_basis].

    Returns:
      [batch, positions, d_model].
    """
    spec = 'bpn,bnd->bpd' if basis.ndim == 3 else 'pn,bnd->bpd'
    return jnp.einsum(spec, basis, coefficients, precision=HIGHEST)


def fit(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
    """Coefficients `B = G^T X` (Eq. 5): [n, num_basis] and [batch, n, d] to [batch, num_basis, d]."""
    return jnp.einsum('nk,bnd->bkd', matrix, vectors, precision=HIGHEST)


def expectation(
    mu: jax.Array, sigma_sq: jax.Array, centres: jax.Array, widths: jax.Array, density: str
) -> jax.Array:
    """`E_p[psi]` in closed form (Eq. 11): [...] and [...] to [..., num_basis].

    Args:
      mu, sigma_sq: location and squared scale of the density.
      centres, widths: see `gaussian_basis`.
      density: 'gaussian', or 'parabola', the truncated parabola of continuous sparsemax
        `(a^2 - (t - mu)^2) / (2 sigma_sq)` on |t - mu| <= a, a^3 = 3 sigma_sq / 2.
    """
    centres, widths = _as_last_axis(centres, mu), _as_last_axis(widths, mu)
    mu, sigma_sq = mu[..., None], sigma_sq[..., None]
    if density == 'gaussian':
        variance = sigma_sq + widths * widths
        return jnp.exp(-0.5 * (mu - centres) ** 2 / variance) / jnp.sqrt(2 * math.pi * variance)
    reach = jnp.cbrt(1.5 * sigma_sq)
    offset = centres - mu
    low, high = (-reach - offset) / widths, (reach - offset) / widths
    bell_low, bell_high = (jnp.exp(-0.5 * u * u) / math.sqrt(2 * math.pi) for u in (low, high))
    mass = _cdf_difference(low, high)
    total = (
        (reach * reach - offset * offset) * mass
        - 2 * widths * offset * (bell_low - bell_high)
        - widths * widths * (mass - (high * bell_high - low * bell_low))
    )
    return jnp.maximum(total, 0.0) / (2 * sigma_sq)


def _cdf_difference(low: jax.Array, high: jax.Array) -> jax.Array:
    """`Phi(high) - Phi(low)` for low <= high, accurate in both tails."""
    flip = low > 0
    a, b = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    return jax.scipy.stats.norm.cdf(b) - jax.scipy.stats.norm.cdf(a)


def bin_edges(num_bins: int) -> np.ndarray:
    """Edges of the histogram, float64 [num_bins + 1]."""
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    edges[0], edges[-1] = -EDGE, 1 + EDGE
    return edges


def attention_mass(
    mu: jax.Array, sigma_sq: jax.Array, num_bins: int, density: str, counted: jax.Array
) -> jax.Array:
    """Attention to every bin (Eqs. 16-17), summed over heads and queries: float32 [batch, num_bins].

    Args:
      mu, sigma_sq: [batch, heads, queries].
      num_bins: static.
      density: as in `expectation`.
      counted: bool [batch, queries], queries that are not padding.
    """
    offset = _as_last_axis(bin_edges(num_bins), mu) - mu[..., None]
    scale = jnp.sqrt(sigma_sq)[..., None]
    if density == 'gaussian':
        cumulative = jax.scipy.stats.norm.cdf(offset / scale)
    else:
        reach = jnp.cbrt(1.5 * sigma_sq)[..., None]
        inside = jnp.clip(offset, -reach, reach)
        cumulative = (reach**2 * (inside + reach) - (inside**3 + reach**3) / 3) / (2 * scale**2)
    mass = jnp.maximum(jnp.diff(cumulative, axis=-1), 0.0)
    mass = jnp.where(counted[:, None, :, None], mass, jnp.zeros_like(mass))
    return mass.sum(axis=(1, 2)).astype(jnp.float32)


def bin_probabilities(mass: jax.Array) -> jax.Array:
    """`p(d)` of Eq. 16: mass [batch, num_bins] normalised to sum 1; uniform where there is none."""
    total = mass.sum(axis=-1, keepdims=True)
    uniform = jnp.full_like(mass, 1.0 / mass.shape[-1])
    return jnp.where(total > 0, mass / jnp.where(total > 0, total, 1.0), uniform)


def sampled_bins(keys: jax.Array, probabilities: jax.Array, num_samples: int) -> jax.Array:
    """Bins drawn with replacement, int32 [batch, num_samples]; `keys` [batch] random keys."""

    def lane(key: jax.Array, p: jax.Array) -> jax.Array:
        return jax.random.categorical(key, jnp.log(jnp.maximum(p, 1e-30)), shape=(num_samples,))

    return jax.vmap(lane)(keys, probabilities).astype(jnp.int32)


def sampled_places(bins: jax.Array, num_bins: int) -> jax.Array:
    """Left edges of the drawn bins, ascending: float32 [batch, num_samples] (Sec. 3.3 as released)."""
    edges = jnp.asarray(bin_edges(num_bins), jnp.float32)
    return edges[jnp.sort(bins, axis=-1)]


def places_inside(keys: jax.Array, bins: jax.Array, num_bins: int) -> jax.Array:
    """Places drawn evenly inside the drawn bins, ascending: float32 [batch, num_samples].

    With left edges only, functions narrower than a bin are never read between the edges.

    Args:
      keys: random keys, [batch].
      bins: int32 [batch, num_samples], from `sampled_bins`.
      num_bins: static.
    """
    draw = jax.vmap(lambda key: jax.random.uniform(key, bins.shape[1:], jnp.float32))
    return jnp.sort((bins.astype(jnp.float32) + draw(keys)) / num_bins, axis=-1)


def quantile_places(probabilities: jax.Array, num_samples: int) -> jax.Array:
    """Positions that split the attention into equal parts: float32 [batch, num_samples]."""
    quantiles = (jnp.arange(num_samples, dtype=jnp.float32) + 0.5) / num_samples
    edges = jnp.linspace(0.0, 1.0, probabilities.shape[-1] + 1, dtype=jnp.float32)

    def lane(p: jax.Array) -> jax.Array:
        cumulative = jnp.concatenate([jnp.zeros((1,), p.dtype), jnp.cumsum(p)])
        return jnp.interp(quantiles, cumulative / cumulative[-1], edges)

    return jax.vmap(lane)(probabilities.astype(jnp.float32))


def sticky_positions(
    sticky: str, mass: jax.Array, writes: jax.Array, key: jax.Array | None, num_samples: int
) -> jax.Array:
    """Where the old signal is read before it is contracted, ascending (Sec. 3.3): t / tau of Eq. 14.

    Args:
      sticky: one of `STICKY`, but not 'none'.
      mass: float32 [batch, num_bins], attention of the last segment.
      writes: int32 [batch], numbers that tell random keys apart.
      key: random key; None = always the same one, so that a text does not depend on its lane.
      num_samples: M.

    Returns:
      float32 [batch, num_samples].
    """
    probabilities, num_bins = bin_probabilities(mass), mass.shape[1]
    if sticky == 'quantile':
        return quantile_places(probabilities, num_samples)
    lanes = jnp.arange(writes.shape[0], dtype=jnp.int32)
    if key is None:
        key, lanes = jax.random.key(0), jnp.zeros_like(lanes)
    keys = jax.vmap(lambda lane: jax.random.fold_in(key, lane))(lanes)
    keys = jax.vmap(jax.random.fold_in)(keys, writes)
    bins = sampled_bins(keys, probabilities, num_samples)
    if sticky == 'sampled_inside':
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        return places_inside(keys, bins, num_bins)
    return sampled_places(bins, num_bins)


def kl_divergence(
    mu: jax.Array, sigma_sq: jax.Array, sigma_0: float, kind: str, density: str = 'gaussian'
) -> jax.Array:
    """KL of every query's density from a Gaussian of width sigma_0 (Eqs. 20-21), shaped like `mu`.

    'true' is the KL from a Gaussian with the same mean; 'paper_eq21' lacks the square in the logarithm,
    as printed; 'as_released' adds the term for a mean of -1 that the released settings switch on. A
    truncated parabola has its own 'true' KL, least (.046) where its variance is sigma_0^2.

    Raises:
      ValueError: a parabola with another kind: those are formulas for Gaussians.
    """
    if density == 'parabola':
        if kind != 'true':
            raise ValueError(f"kl = {kind!r}: a formula for Gaussian densities; use 'true'")
        # Entropy log(reach) + 5/3 - log 3, variance reach^2 / 5.
        reach = jnp.cbrt(1.5 * sigma_sq)
        entropy = jnp.log(reach) + (5 / 3 - math.log(3))
        return math.log(sigma_0 * math.sqrt(2 * math.pi)) + reach**2 / (10 * sigma_0**2) - entropy
    ratio = sigma_sq / sigma_0**2
    logarithm = jnp.log(ratio)
    if kind == 'paper_eq21':
        logarithm = 0.5 * logarithm
    value = 0.5 * (ratio - logarithm - 1)
    if kind == 'as_released':
        value = value + 0.5 * (mu + 1) ** 2 / sigma_0**2
    return value
