"""The k largest of the last axis, exactly as `jax.lax.top_k` finds them, without its cost on CPUs.

On CPUs `jax.lax.top_k` sorts row after row on one thread. Here each number of a row is compared with all
others, which vector units do in a few cycles and XLA spreads over the cores: the count of those ahead of
it is its place. Rows longer than `WIDTH` are first narrowed down: the k largest are in the k groups with
the largest maxima.

The order is that of `jax.lax.top_k`: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN, and of equal numbers
the first. Nothing here has a gradient.
"""

import functools

import jax
import jax.numpy as jnp

from longmem_jax.kernels.attention_products import NEVER
from longmem_jax.kernels.float_order import HIGHEST, as_floats, as_integers

WIDTH = 128  # numbers that are all compared with each other
MOST = WIDTH // 2  # the largest k that comparisons are used for
CHUNK = 16  # comparisons in one pass over all rows
LOWEST = -(2**31)


def _places(integers: jax.Array) -> jax.Array:
    """The place of every number in its row: the count of larger ones, and of equal ones before it.

    A shift of the row against itself is one comparison of vectors. Shifts are made in loops, since
    XLA would otherwise repeat all of them wherever a place is used.

    Args:
      integers: int32 [..., n], n a multiple of `CHUNK`.

    Returns:
      int32 [..., n].
    """
    # Of NaNs, those with the two largest payloads count as equal, so that 1 can be added.
    integers = jnp.minimum(integers, HIGHEST - 1)
    number = integers.shape[-1]
    # What has come round is before the number itself, and ahead of it also if it is equal.
    around = jnp.concatenate([integers, integers + 1], axis=-1)

    def compare(chunk: jax.Array, places: jax.Array) -> jax.Array:
        for shift in range(CHUNK):
            others = _slice(around, chunk * CHUNK + shift, number)
            places = places + (others > integers).astype(jnp.int32)
        return places

    return jax.lax.fori_loop(0, number // CHUNK, compare, jnp.zeros_like(integers))


def _at_places(places: jax.Array, k: int) -> jax.Array:
    """Which number has place 0, 1, ..., k - 1: int32 [..., k]."""
    wanted = jnp.arange(k, dtype=jnp.int32).reshape(*(1,) * (places.ndim - 1), k)

    def look(chunk: jax.Array, at: jax.Array) -> jax.Array:
        for i in range(CHUNK):
            number = chunk * CHUNK + i
            at = jnp.where(_slice(places, number, 1) == wanted, number, at)
        return at

    start = jnp.zeros((*places.shape[:-1], k), jnp.int32)
    return jax.lax.fori_loop(0, places.shape[-1] // CHUNK, look, start)


def _slice(rows: jax.Array, start: jax.Array, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(rows, start, size, axis=-1)


def _filled_up(integers: jax.Array, multiple: int) -> jax.Array:
    """Rows [..., n] with the lowest integer behind them, so that `multiple` divides n."""
    padding = [(0, 0)] * (integers.ndim - 1) + [(0, -integers.shape[-1] % multiple)]
    return jnp.pad(integers, padding, constant_values=LOWEST)


def _best(integers: jax.Array, k: int) -> jax.Array:
    """The indices of the k largest of at most `WIDTH` integers, int32 [..., k]."""
    return _at_places(_places(_filled_up(integers, CHUNK)), k)


def _pick(rows: jax.Array, at: jax.Array) -> jax.Array:
    return jnp.take_along_axis(rows, at, axis=-1, mode='promise_in_bounds')


def _sorted(indices: jax.Array) -> jax.Array:
    """Different integers in ascending order."""
    return _pick(indices, _best(-indices, indices.shape[-1]))


def _group(number: int, k: int) -> int:
    """Numbers per group, a power of 2, for rows of more than `WIDTH` numbers.

    As many groups as numbers in k groups cost least; both are fewer than `number`.
    """
    group = 4 if 4 * k <= WIDTH else 2
    while number // group > max(WIDTH, 2 * k * group):
        group *= 2
    return group


def _compare(scores: jax.Array, filled: jax.Array | None, k: int) -> tuple[jax.Array, jax.Array]:
    """`top_k` by comparisons, as integers: of float32 [..., n], or int32 of `as_integers`."""
    number = scores.shape[-1]

    def integers(part: jax.Array, index: jax.Array) -> jax.Array:
        """Of some scores, with what is not filled masked; `index` is theirs in the row."""
        if part.dtype == jnp.int32:
            return part
        if filled is not None:
            limit = filled.reshape(*filled.shape, *(1,) * (part.ndim - filled.ndim))
            index = index.reshape(*(1,) * (part.ndim - index.ndim), *index.shape)
            part = jnp.where(index < limit, part, jnp.float32(NEVER))
        return as_integers(part)

    if number <= WIDTH:
        row = integers(scores, jnp.arange(number, dtype=jnp.int32))
        at = _best(row, k)
        return _pick(row, at), at
    group = _group(number, k)
    if number % group:
        row = integers(scores, jnp.arange(number, dtype=jnp.int32))
        return _compare(_filled_up(row, group), None, k)
    groups = scores.reshape(*scores.shape[:-1], number // group, group)
    index = jnp.arange(number, dtype=jnp.int32).reshape(-1, group)
    # Masks are put on what is read, here and below: all scores would be copied for them otherwise.
    highest = integers(groups, index).max(axis=-1)
    # In ascending order, so that of equal numbers the first stays the first.
    chosen = _sorted(_compare(highest, None, k)[1])
    inside = jnp.take_along_axis(groups, chosen[..., None], axis=-2, mode='promise_in_bounds')
    inner = jnp.arange(group, dtype=jnp.int32).reshape(*(1,) * chosen.ndim, group)
    index = chosen[..., None] * group + inner
    flat = (*scores.shape[:-1], k * group)
    best, at = _compare(integers(inside, index).reshape(flat), None, k)
    return best, _pick(index.reshape(flat), at)


@functools.partial(jax.jit, static_argnums=1)
def _by_comparison(
    scores: jax.Array, k: int, filled: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    best, at = _compare(scores, filled, k)
    return as_floats(best), at


def _by_groups(scores: jax.Array, k: int, filled: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """`top_k` by `jax.lax.top_k` of group maxima and of the numbers in the k best groups."""
    number = scores.shape[-1]
    if filled is not None:
        column = jnp.arange(number, dtype=jnp.int32).reshape(*(1,) * filled.ndim, -1)
        scores = jnp.where(column < filled[..., None], scores, jnp.asarray(NEVER, scores.dtype))
    group = max(1, round((number / k) ** 0.5))
    if group < 4 or number % group:
        return jax.lax.top_k(scores, k)
    groups = scores.reshape(*scores.shape[:-1], number // group, group)
    _, chosen = jax.lax.top_k(groups.max(axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)  # of equal numbers the first stays the first
    inside = jnp.take_along_axis(groups, chosen[..., None], axis=-2)
    best, at = jax.lax.top_k(inside.reshape(*scores.shape[:-1], k * group), k)
    return best, jnp.take_along_axis(chosen, at // group, axis=-1) * group + at % group


def top_k(
    scores: jax.Array, k: int, filled: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The k largest of the last axis and their indices, exactly as `jax.lax.top_k`.

    Args:
      scores: [..., n], n >= k.
      k: static.
      filled: int32 [...] or with axes of 1: only this many numbers at the start of a row count, all
        others are `NEVER`; None = all count.

    Returns:
      [..., k] as `scores`, largest first, and int32 [..., k].

    Raises:
      ValueError: there are fewer than k numbers in a row.
    """
    if k > scores.shape[-1]:
        raise ValueError(
            f'top_k: k = {k} of {scores.shape[-1]} numbers; k must be at most the length of the last '
            'axis'
        )
    scores = jax.lax.stop_gradient(scores)
    if scores.dtype != jnp.float32 or k > MOST:
        return _by_groups(scores, k, filled)
    return jax.lax.platform_dependent(
        scores,
        filled,
        cpu=lambda scores, filled: tuple(_by_comparison(scores, k, filled)),
        default=lambda scores, filled: tuple(_by_groups(scores, k, filled)),
    )
