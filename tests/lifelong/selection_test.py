"""Which rows are stored: the write rate is met, far rows are kept, and batches do not matter."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.lifelong import selection

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnames=('rate', 'size'))
def chosen(scores, rate, size, level):
    """Rows that are written of a stream in batches of `size`."""
    number = jnp.arange(len(scores)).reshape(-1, size)

    def batch(level, part):
        values, numbers = part
        there = jnp.ones(size, bool)
        found = selection.by_score(level, lambda i, _: values[i], KEY, numbers, there, rate)
        return found.level, found.chosen

    level, written = jax.lax.scan(batch, level, (scores.reshape(-1, size), number))
    return written.reshape(-1), level


@pytest.mark.parametrize('drift', [-5.0, 0.0, 5.0])
@pytest.mark.parametrize('rate', [0.01, 0.1, 0.5])
def test_the_write_rate_is_met(rate, drift):
    count = 4_000
    # Where scores rise by five standard deviations, the level lags behind them.
    allowed = 0.15 * rate + 15 / count + (0.005 if drift > 0 else 0.0)
    for scale, offset in itertools.product([0.0, 1e-3, 0.3, 10.0, 1e3], [-1e3, 0.0, 50.0]):
        noise = np.random.default_rng(0).normal(size=count)
        scores = offset + scale * (noise + drift * np.linspace(0, 1, count))
        written, _ = chosen(scores.astype(np.float32), rate, 8, selection.start())
        assert abs(written.mean() - rate) < allowed, (scale, offset)


@pytest.mark.parametrize('rate', [0.01, 0.1])
def test_the_rows_with_large_scores_are_written(rate):
    scores = 10 * np.random.default_rng(1).normal(size=4_000).astype(np.float32)
    written, _ = chosen(scores, rate, 8, selection.start())
    assert scores[np.asarray(written)].mean() > 10  # standard deviation


def test_scores_within_a_nat_are_left_to_chance():
    scores = 0.01 * np.random.default_rng(1).normal(size=4_000).astype(np.float32)
    written, _ = chosen(scores, 0.1, 8, selection.start())
    assert abs(scores[np.asarray(written)].mean()) < 0.002


def test_batches_do_not_matter():
    scores = np.random.default_rng(2).normal(size=240).astype(np.float32)
    found = [chosen(scores, 0.1, size, selection.start()) for size in (1, 6, 240)]
    for written, level in found[1:]:
        np.testing.assert_array_equal(written, found[0][0])
        np.testing.assert_allclose(level.level, found[0][1].level, rtol=1e-6)


def test_rows_that_are_not_there():
    there = jnp.array([True, False])
    start = selection.start()
    for rate in (0.5, 1.0):
        score = lambda i, _: jnp.inf  # noqa: E731
        found = selection.by_score(start, score, KEY, jnp.arange(2), there, rate)
        assert found.chosen.tolist() == [True, False]
    assert selection.at_random(KEY, jnp.arange(2), there, 1.0).tolist() == [True, False]
    never = selection.by_score(start, lambda i, _: jnp.inf, KEY, jnp.arange(2), there, 0.0)
    assert not never.chosen.any()


def test_random_writes():
    numbers, there = jnp.arange(20_000), jnp.ones(20_000, bool)
    written = selection.at_random(KEY, numbers, there, 0.05)
    assert abs(written.mean() - 0.05) < 0.005
    halves = [
        selection.at_random(KEY, part, there[:10_000], 0.05) for part in numbers.reshape(2, -1)
    ]
    np.testing.assert_array_equal(jnp.concatenate(halves), written)


@pytest.mark.parametrize('sign', selection.SIGNS)
def test_diverse(sign):
    """Rows of a new kind among rows that the memory knows: kept by the text, left out as printed."""
    rng, count = np.random.default_rng(3), 2_000
    new = rng.random(count) < 0.1
    keys = rng.normal(size=(count, 3)) + np.where(new, 20, 0)[:, None]
    known = rng.normal(size=(50, 3))
    distances = np.square(keys[:, None] - known).sum(-1).min(1).astype(np.float32)

    @jax.jit
    def decide(level, part):
        numbers, distances, keys = part
        score = selection.diverse(distances, keys, 10.0, sign)
        found = selection.by_score(level, score, KEY, numbers, jnp.ones(1, bool), 0.05)
        return found.level, found.chosen

    rows = (np.arange(count), distances, keys.astype(np.float32))
    parts = jax.tree.map(lambda leaf: leaf.reshape(count, 1, *leaf.shape[1:]), rows)
    _, written = jax.lax.scan(decide, selection.start(), parts)
    share = new[np.asarray(written)[:, 0]].mean()
    assert share > 0.8 if sign == 'text' else share < 0.02


def test_diverse_sees_the_rows_chosen_before_in_a_batch():
    keys = jnp.array([[0.0], [0.0], [9.0]])
    score = selection.diverse(jnp.full(3, jnp.inf), keys, 10.0, 'text')
    assert jnp.isinf(score(0, jnp.zeros(3, bool)))  # nothing is stored
    chosen = jnp.array([True, False, False])
    assert score(1, chosen) == 0 and abs(score(2, chosen) - 8.1) < 1e-5
    printed = selection.diverse(jnp.full(3, jnp.inf), keys, 10.0, 'printed')
    assert jnp.isposinf(printed(0, jnp.zeros(3, bool))) and printed(2, chosen) < printed(1, chosen)


def test_uncertain_and_forgettable_order():
    losses = jnp.array([0.1, 3.0])
    assert selection.uncertain(losses)(1, None) > selection.uncertain(losses)(0, None)
    before, after = jnp.array([1.0, 0.0, 1.0, 0.0]), jnp.array([1.0, 1.0, 0.0, 0.0])
    score = selection.forgettable(before, after)
    found = [float(score(i, None)) for i in range(4)]
    assert found[0] == found[1] < found[2] < found[3]


def test_problems():
    good = dict(selection.SETTINGS)
    assert not selection.check(good)
    wrong = selection.check(good | dict(write='divers', write_rate=2, write_beta=0))
    assert 'diverse' in wrong[0] and [text.split()[0] for text in wrong] == [
        'write', 'write_rate', 'write_beta',
    ]  # fmt: skip
