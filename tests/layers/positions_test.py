"""Position encodings against their formulas, evaluated one number at a time."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention.relative_position import RelativePosition
from longmem_jax.layers import positions
from longmem_jax.models.stack import make_settings
from tests.toys import model_config


def test_sinusoids_are_sines_then_cosines():
    table = positions.sinusoids(np.asarray([0, 1, 7]), 6)
    for row, distance in enumerate((0, 1, 7)):
        for i in range(3):
            angle = distance * 10000 ** (-2 * i / 6)
            np.testing.assert_allclose(table[row, i], math.sin(angle), atol=1e-7)
            np.testing.assert_allclose(table[row, 3 + i], math.cos(angle), atol=1e-7)


def test_clamped_distances_stop_growing():
    np.testing.assert_array_equal(positions.clamped(6, 3), [0, 1, 2, 3, 3, 3])
    np.testing.assert_array_equal(positions.clamped(4, 0), [0, 1, 2, 3])


def test_rotary_products_depend_on_the_distance_alone():
    random = np.random.default_rng(0)
    q, k = (jnp.asarray(random.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def rotate(x, start):
        return positions.rotary(x, start, positions.rotary_frequencies(8))

    def product(i, j):
        return float((rotate(q, i) * rotate(k, j)).sum())

    np.testing.assert_allclose(product(7, 4), product(103, 100), rtol=1e-4)
    assert abs(product(7, 4) - product(7, 5)) > 1e-3
    lanes = rotate(jnp.concatenate([q, q]), jnp.asarray([3, 9], jnp.int32))
    np.testing.assert_allclose(lanes[0], rotate(q, 3)[0], atol=1e-6)
    np.testing.assert_allclose(lanes[1], rotate(q, 9)[0], atol=1e-6)


def test_rotary_of_a_part_of_the_head_with_a_base_of_its_own():
    """Pairs (i, i + 2) of the first 4 dimensions rotate by position * 100^(-2i / 4)."""
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 8))
    width = positions.rotated_width(8, 0.5)
    assert width == 4 and positions.rotated_width(80, 0.25) == 20
    found = positions.rotary(jnp.asarray(x, jnp.float32), 3, positions.rotary_frequencies(4, 100.0))
    wanted = x.copy()
    for i, angle in enumerate((3.0, 0.3)):
        turned = (x[..., i] + 1j * x[..., i + 2]) * np.exp(1j * angle)
        wanted[..., i], wanted[..., i + 2] = turned.real, turned.imag
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_alibi_beyond_the_segment_leaves_the_segment_as_it_is():
    """Distances of a segment of 5 have no bias; then it falls by the slope of the head."""
    settings = make_settings(model_config('local'), 5)
    module = RelativePosition(settings, None, 'alibi_beyond', 9, 0)
    queries = jnp.ones((1, settings.num_heads, 2, settings.head_dim))
    same, found = module.apply({}, queries, 0, 9, train=False, method='apply_to_queries')
    np.testing.assert_array_equal(same, queries)
    slopes = positions.alibi_slopes(settings.num_heads)
    wanted = -slopes[:, None] * np.asarray([0, 0, 0, 0, 0, 1, 2, 3, 4])
    np.testing.assert_allclose(found['distance_bias'], wanted, rtol=1e-6)


@pytest.mark.parametrize('heads', [1, 2, 6, 8, 12])
def test_alibi_slopes(heads):
    slopes = positions.alibi_slopes(heads)
    assert len(slopes) == heads and (slopes > 0).all() and len(set(slopes)) == heads
    if heads == 8:
        np.testing.assert_allclose(slopes, [2.0**-i for i in range(1, 9)])
    if heads == 6:  # four of the power below, then the first and third of eight
        np.testing.assert_allclose(slopes, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    np.testing.assert_allclose(positions.alibi(heads, 4)[:, 3], -3 * slopes, rtol=1e-6)


@pytest.mark.parametrize('bidirectional', [False, True])
def test_t5_buckets_grow_and_end(bidirectional):
    rules = dict(num_buckets=32, max_distance=128, bidirectional=bidirectional)
    behind = positions.t5_bucket(-np.arange(300), **rules)
    exact = 8 if bidirectional else 16
    np.testing.assert_array_equal(behind[: exact + 1], np.arange(exact + 1))
    assert (np.diff(behind) >= 0).all() and behind[128] == behind[-1] == 2 * exact - 1
    ahead = positions.t5_bucket(np.arange(1, 300), **rules)
    assert ahead.min() >= 16 if bidirectional else (ahead == 0).all()


def test_t5_table_is_the_bias_by_distance():
    buckets = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), jnp.float32)
    rules = dict(num_buckets=32, max_distance=128, bidirectional=False)
    relative = np.arange(9) - (np.arange(3)[:, None] + 6)
    bias = buckets[:, positions.t5_bucket(relative, **rules)]
    table = positions.t5_table(buckets, 9, 128)
    for i in range(3):
        for j in range(6 + i):
            np.testing.assert_array_equal(bias[:, i, j], table[:, 6 + i - j])


def scaled(frequencies, **changes):
    given = dict(scaling='none', factor=4.0, original=64, bands=(1.0, 4.0))
    return positions.scaled_frequencies(frequencies, 10000.0, **given | changes)


def test_scaled_rotations():
    """Pairs that turn often are kept, those that hardly turn are slowed, and some lie between."""
    frequencies = positions.rotary_frequencies(16)
    np.testing.assert_array_equal(scaled(frequencies), frequencies)
    np.testing.assert_allclose(scaled(frequencies, scaling='linear'), frequencies / 4)
    found = scaled(frequencies, scaling='llama3')
    for old, new in zip(frequencies, found, strict=True):
        length = 2 * math.pi / old  # tokens per turn
        if length < 64 / 4:
            wanted = old
        elif length > 64 / 1:
            wanted = old / 4
        else:
            smooth = (64 / length - 1) / (4 - 1)
            wanted = (1 - smooth) * old / 4 + smooth * old
        np.testing.assert_allclose(new, wanted)
    assert 1 < (found < frequencies).sum() < 8


def test_yarn_mixes_by_the_index_of_the_pair():
    frequencies = positions.rotary_frequencies(16)
    found = scaled(frequencies, scaling='yarn', bands=(1.0, 32.0), original=2048)
    # Pair i turns 2048 * 10000^(-i / 8) / (2 pi) times: 32 times at i = 2.02, once at i = 5.03.
    kept = np.clip(1 - (np.arange(8) - 2) / (6 - 2), 0, 1)
    np.testing.assert_allclose(found, frequencies * kept + frequencies / 4 * (1 - kept))


def test_gain_of_rotated_dimensions():
    x = jnp.ones((1, 1, 2, 4))
    frequencies = positions.rotary_frequencies(2)
    once, twice = (positions.rotary(x, 0, frequencies, gain) for gain in (1.0, 2.0))
    np.testing.assert_allclose(twice[..., :2], 2 * once[..., :2], atol=1e-6)
    np.testing.assert_array_equal(twice[..., 2:], once[..., 2:])
    lanes = positions.rotary(x, jnp.zeros((1,), jnp.int32), frequencies, 2.0)
    np.testing.assert_allclose(lanes, twice, atol=1e-6)


def test_few_queries_of_a_stream_meet_the_waves_themselves():
    """Transformer-XL: a token does not project the whole table, and has the same scores."""
    settings = make_settings(model_config('local'), 5)
    module = RelativePosition(settings, None, 'transformer_xl', 9, 0)
    queries = jax.random.normal(jax.random.key(0), (1, settings.num_heads, 1, settings.head_dim))
    apply = functools.partial(module.apply, num_keys=9, train=False, method='apply_to_queries')
    _, params = module.init_with_output(
        jax.random.key(1), queries, 8, 9, train=False, method='apply_to_queries'
    )
    scores, tables = [], []
    for offset in (8, jnp.asarray([8])):
        _, rules = apply(params, queries, offset)
        relative = rules['relative']
        tables.append(relative.table.shape[0])
        scores.append(jnp.einsum('bhqd,hcd->bhqc', relative.queries, relative.table))
    assert tables == [settings.num_heads, 1], 'apply_to_queries: the table is projected per token'
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-5, atol=1e-5)
