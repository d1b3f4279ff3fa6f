"""Attention to the filled part of a cache: what attention to all keys at once gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention import filled
from longmem_jax.attention.attend import attend
from longmem_jax.attention.filled import attend_to_filled
from longmem_jax.attention.rules import Rules

SLOTS, LENGTH = 11, 5


def vectors(index=0, number=LENGTH):
    """Queries of four heads; keys and values of two heads, of the slots and the tokens until then."""
    random = np.random.default_rng(0)
    shapes = (2, 4, number, 8), *[(2, 2, SLOTS + index + number, 8)] * 2
    return tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)


def both(arrays, count, index, window, scale=None):
    """The attention in a loop, and that to all keys at once."""
    settings = dict(window=window, scale=scale)
    found = attend_to_filled(*arrays, count, slots=SLOTS, offset=SLOTS + index, **settings)
    rules = Rules(offset=SLOTS + index, first=SLOTS - count, **settings)
    return found, attend(*arrays, rules)


@pytest.mark.parametrize('block', [3, 4, 512])
@pytest.mark.parametrize('count', [(0, 0), (4, 1), (11, 7)])
@pytest.mark.parametrize(('index', 'window'), [(0, SLOTS), (3, 4), (3, 30)])
def test_it_is_attention_to_all_keys(monkeypatch, block, count, index, window):
    """For lanes that hold unequal numbers, and for blocks that do not fit."""
    monkeypatch.setattr(filled, 'BLOCK', block)
    found, wanted = both(vectors(index), jnp.asarray(count, jnp.int32), index, window, 0.7)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize('offset', [SLOTS + 2, (SLOTS + 2,) * 2, (SLOTS, SLOTS + 4)])
@pytest.mark.parametrize('window', [4, 30])
def test_places_that_the_program_does_not_know(monkeypatch, offset, window):
    """Keys after the queries may be anything."""
    monkeypatch.setattr(filled, 'BLOCK', 3)
    queries, keys, values = vectors(9)
    count, settings = jnp.asarray((4, 1), jnp.int32), dict(window=window, scale=None)
    place = jnp.asarray(offset, jnp.int32)
    never = jnp.full((2, 2, 6, 8), jnp.nan)
    longer = (jnp.concatenate([array, never], axis=2) for array in (keys, values))
    read = jax.jit(
        lambda place: attend_to_filled(
            queries, *longer, count, slots=SLOTS, offset=place, **settings
        )
    )
    rules = Rules(offset=jnp.broadcast_to(place, (2,)), first=SLOTS - count, **settings)
    np.testing.assert_allclose(read(place), attend(queries, keys, values, rules), atol=1e-6)


def test_derivatives_are_those_of_attention_to_all_keys(monkeypatch):
    monkeypatch.setattr(filled, 'BLOCK', 4)
    count = jnp.asarray((4, 1), jnp.int32)

    def loss(arrays, which):
        return jnp.sin(both(arrays, count, 0, SLOTS)[which]).sum()

    found, wanted = (jax.grad(loss)(vectors(), which) for which in (0, 1))
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_cache_of_half_the_bytes_is_cast_as_it_is_read():
    queries, *cached = vectors()
    half = [array.astype(jnp.bfloat16) for array in cached]
    count = jnp.asarray((4, 1), jnp.int32)
    found, _ = both((queries, *half), count, 0, SLOTS)
    _, wanted = both((queries, *(array.astype(jnp.float32) for array in half)), count, 0, SLOTS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-6)
