"""The k largest of rows: the same numbers and places as `jax.lax.top_k`, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention.rules import NEVER
from longmem_jax.kernels.cpu.top_k import top_k

# One comparison, groups, groups of groups, groups that are filled up, a k that is too large for them.
SIZES = [(1, 1), (5, 3), (40, 40), (128, 32), (130, 5), (512, 32), (1000, 64), (3000, 2), (300, 70)]
QUICK = (1, 1), (40, 40), (130, 5), (1000, 64), (300, 70)
SPECIAL = np.asarray([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38], np.float32)


def drawn(seed, number, kind):
    """Rows [2, 3, number] of normal numbers, of few different ones, or of the special ones."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(2, 3, number)).astype(np.float32)
    if kind == 'equal':
        return np.round(scores)
    if kind == 'special':
        return np.where(scores < 0.5, random.choice(SPECIAL, scores.shape), scores)
    return scores


def assert_same(found, wanted):
    np.testing.assert_array_equal(found[1], wanted[1], 'places differ: is the first of ties first?')
    assert np.array_equal(*(np.asarray(part[0]).view(np.int32) for part in (found, wanted)))
    assert found[1].dtype == jnp.int32


@pytest.mark.parametrize(
    'number, k',
    [pytest.param(*size, marks=() if size in QUICK else pytest.mark.slow) for size in SIZES],
)
def test_the_same_as_the_sort_of_the_library(number, k):
    """Rows of normal numbers, with many ties, and with NaN, infinities and zeros of both signs."""
    find = jax.jit(lambda scores: (top_k(scores, k), jax.lax.top_k(scores, k)))
    for seed in range(3):
        # Groups for a large k are found by their float maxima, which do not know signs of NaN.
        for kind in ('normal', 'equal', 'special')[: 2 if k > 64 else 3]:
            assert_same(*find(drawn(seed, number, kind)))


@pytest.mark.parametrize('number, k', [(40, 40), (130, 5), (512, 32), (1280, 70)])
def test_numbers_that_are_not_filled_never_count(number, k):
    """Whatever stands there, also if a group is filled in part."""

    def find(scores, filled):
        masked = jnp.where(jnp.arange(number) < filled[..., None], scores, NEVER)
        return top_k(scores, k, filled), jax.lax.top_k(masked, k)

    find = jax.jit(find)
    for seed, some in enumerate([-1, 0, 1, 7, number // 2 + 1, number - 1, number, number + 3]):
        filled = np.asarray([[some], [number // 3]], np.int32)
        scores = drawn(seed, number, 'equal')
        scores = np.where(np.arange(number) < filled[..., None], scores, np.float32(np.inf))
        assert_same(*find(scores, filled))


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_other_types_are_found_too(dtype):
    scores = jnp.asarray(drawn(0, 400, 'equal'), dtype)
    found, wanted = top_k(scores, 7), jax.lax.top_k(scores, 7)
    np.testing.assert_array_equal(found[1], wanted[1])
    assert found[0].dtype == dtype


def test_no_gradient_comes_through():
    scores = jnp.asarray(drawn(0, 150, 'normal'))
    gradient = jax.grad(lambda scores: (top_k(scores, 3)[0] ** 2).sum())(scores)
    np.testing.assert_array_equal(gradient, 0.0)


def test_inside_of_a_map_and_a_loop():
    scores = jnp.asarray(drawn(1, 200, 'normal'))
    wanted = jax.lax.top_k(scores, 4)[1]
    np.testing.assert_array_equal(jax.vmap(lambda row: top_k(row, 4))(scores)[1], wanted)
    np.testing.assert_array_equal(jax.lax.map(lambda row: top_k(row, 4), scores)[1], wanted)


@pytest.mark.parametrize('number, k', [(3, 4), (63, 64), (70, 71)])
def test_more_than_there_are_is_refused(number, k):
    with pytest.raises(ValueError, match=f'k = {k} of {number} numbers'):
        top_k(jnp.zeros((2, number)), k)
