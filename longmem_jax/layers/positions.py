"""Position encodings as pure functions and tables; constants are computed in float64 once."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SCALINGS = ('none', 'linear', 'llama3', 'yarn', 'longrope')


def following(index: int | jax.Array, number: int) -> jax.Array:
    """`number` positions from `index` (an int, or int32 [batch] or []) on, int32 [1 | batch, number]."""
    first = jnp.asarray(index, jnp.int32).reshape(-1, 1)
    return first + jnp.arange(number, dtype=jnp.int32)[None]


def clamped(num_distances: int, clamp_length: int) -> np.ndarray:
    """Distances 0 .. num_distances - 1, clamped at `clamp_length` (0 = no limit), int [n]."""
    distances = np.arange(num_distances)
    return np.minimum(distances, clamp_length) if clamp_length else distances


def sinusoids(distances: np.ndarray, width: int) -> np.ndarray:
    """Sines, then cosines, of `d * 10000^(-2i / width)` (Dai et al., 2019, as in their code).

    Args:
      distances: [n].
      width: even, or odd with one cosine less.

    Returns:
      float32 [n, width].
    """
    frequencies = 10000.0 ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    angles = np.asarray(distances, np.float64)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :width].astype(np.float32)


def rotary_frequencies(width: int, base: float = 10000.0) -> np.ndarray:
    """Radians per position of every rotated pair, `base^(-2i / width)`, float64 [width / 2]."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def rotated_width(head_dim: int, share: float) -> int:
    """Number of leading dimensions of a head that are rotated: `share` of them, rounded down."""
    return int(head_dim * share)


def scaled_frequencies(
    frequencies: np.ndarray,
    base: float,
    *,
    scaling: str,
    factor: float,
    original: int,
    bands: tuple[float, float],
    factors: tuple[float, ...] = (),
) -> np.ndarray:
    """Frequencies for texts that are longer than those of pretraining.

    'linear' divides all by `factor` (Chen et al., 2023), 'longrope' every one by its own of `factors`
    (Ding et al., 2024). The others divide those that turn less than
    `bands[0]` times within `original` tokens, keep those that turn more than `bands[1]` times, and mix
    both between them: 'llama3' in proportion to the number of turns (Llama 3.1, as released), 'yarn' in
    proportion to the index of the pair (Peng et al., 2023, Sec. 3.2), whole indices being borders.

    Args:
      frequencies: of `rotary_frequencies`, for `base`.
      base: base of the wavelengths.
      scaling: one of `SCALINGS`.
      factor: at least 1.
      original: tokens of a text in pretraining.
      bands: numbers of turns, the lower one first.
      factors: one per frequency.

    Returns:
      float64, like `frequencies`.
    """
    if scaling == 'none':
        return frequencies
    if scaling == 'linear':
        return frequencies / factor
    if scaling == 'longrope':
        return frequencies / np.asarray(factors, np.float64)
    low, high = bands
    if scaling == 'llama3':
        turns = original * frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    else:
        pairs = len(frequencies)

        def index(turns: float) -> float:
            """The pair, not rounded, that turns so often within `original` tokens."""
            return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

        first, last = max(math.floor(index(high)), 0), min(math.ceil(index(low)), 2 * pairs - 1)
        width = 0.001 if first == last else last - first
        kept = 1.0 - np.clip((np.arange(pairs) - first) / width, 0.0, 1.0)
    return frequencies * kept + frequencies / factor * (1.0 - kept)


def _angles(position: jax.Array, frequencies: np.ndarray, dtype: Any) -> jax.Array:
    """Positions, int32 [batch, n], times radians per position, [batch, n, width / 2].

    A float32 product with position 8,000 is off by 1e-4. So angles are counted in parts of a turn, as
    integers of 32 bits that begin again at 0, with 8 bits more of the frequency: off by 1e-7.
    """
    if jnp.promote_types(dtype, jnp.float32) == jnp.float64:
        return position[..., None].astype(jnp.float64) * jnp.asarray(frequencies)[None, None]
    parts = (frequencies / (2 * math.pi)) % 1.0 * 2.0**32
    whole, rest = np.floor(parts).astype(np.uint32), np.floor(parts % 1.0 * 256).astype(np.uint32)
    times = position[..., None].astype(jnp.uint32)
    phase = times * whole[None, None] + (times * rest[None, None] >> 8)
    signed = jax.lax.bitcast_convert_type(phase, jnp.int32)
    return signed.astype(jnp.float32) * np.float32(2 * math.pi / 2**32)


def rotary(
    x: jax.Array, start: int | jax.Array, frequencies: np.ndarray, gain: float = 1.0
) -> jax.Array:
    """Rotates pairs (i, i + width / 2) by position times frequency (Su et al., 2021).

    Args:
      x: [batch, heads, n, head_dim]; the first `width` dimensions are rotated, the rest are unchanged.
      start: position of the first vector, an int, or int32 [batch] or [], below 2^24.
      frequencies: float64 [width / 2], of `rotary_frequencies`; negative ones rotate back.
      gain: factor of the rotated dimensions.

    Returns:
      Shape and dtype of `x`.
    """
    length, width = x.shape[2], 2 * len(frequencies)
    if isinstance(start, int):
        angles = (start + np.arange(length))[:, None] * frequencies
        sin, cos = (jnp.asarray(gain * f(angles), x.dtype)[None, None] for f in (np.sin, np.cos))
    else:
        angles = _angles(following(start, length), frequencies, x.dtype)
        factor = jnp.asarray(gain, angles.dtype)
        sin, cos = ((factor * f(angles)).astype(x.dtype)[:, None] for f in (jnp.sin, jnp.cos))
    a, b, rest = jnp.split(x, [width // 2, width], axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Slopes of n heads (Press et al., 2022), float64 [n]: 2^(-8/n), 2^(-16/n), ... for a power of two.

    For other n: the slopes of the next lower power of two, then every second one of the next higher.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
    more = 2.0 ** (-8.0 * np.arange(1, 2 * lower + 1, 2) / (2 * lower))
    return np.concatenate([slopes, more[: num_heads - lower]])


def alibi(num_heads: int, num_distances: int) -> np.ndarray:
    """Biases by distance, float32 [heads, distances]: minus slope times distance."""
    return (-alibi_slopes(num_heads)[:, None] * np.arange(num_distances)).astype(np.float32)


def t5_bucket(
    relative_position: np.ndarray, *, num_buckets: int, max_distance: int, bidirectional: bool
) -> np.ndarray:
    """Bucket of `key position - query position` (Raffel et al., 2020, Sec. 2.1).

    Half of the buckets hold one distance each; the others widen logarithmically up to `max_distance`.
    In the bidirectional case the upper half of the buckets is for keys after the query.

    Args:
      relative_position: int, any shape.
      num_buckets: buckets, of both directions together.
      max_distance: larger distances share the last bucket.
      bidirectional: keys after the query are seen.

    Returns:
      int32, the same shape.
    """
    relative = np.asarray(relative_position, np.int64)
    if bidirectional:
        num_buckets //= 2
        upper = np.where(relative > 0, num_buckets, 0)
        n = np.abs(relative)
    else:
        upper, n = np.zeros_like(relative), np.maximum(-relative, 0)
    exact = num_buckets // 2
    # The 1e-9 keeps n = exact * 2^k from being rounded down to the bucket below.
    growth = np.log(np.maximum(n, 1) / exact) / math.log(max_distance / exact)
    far = exact + np.floor(growth * (num_buckets - exact) + 1e-9).astype(np.int64)
    bucket = np.where(n < exact, n, np.minimum(far, num_buckets - 1))
    return (upper + bucket).astype(np.int32)


def t5_table(buckets: jax.Array, num_distances: int, max_distance: int) -> jax.Array:
    """Biases by distance of a causal model, [heads, distances], from [heads, num_buckets]."""
    bucket = t5_bucket(
        -np.arange(num_distances),
        num_buckets=buckets.shape[1],
        max_distance=max_distance,
        bidirectional=False,
    )
    return buckets[:, bucket]
