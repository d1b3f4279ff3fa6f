"""Continuous memory: closed forms against integrals, and values that stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.settings import spacing
from longmem_jax.memory.registry import LAYERS
from tests.toys import BATCH, LENGTH, random_segments, run, toy, with_config

CENTRES, WIDTHS = continuous.gaussian_basis(8, (0.05, 0.2))


def density(t, mu, sigma_sq, kind):
    if kind == 'gaussian':
        return np.exp(-0.5 * (t - mu) ** 2 / sigma_sq) / np.sqrt(2 * np.pi * sigma_sq)
    reach = np.cbrt(1.5 * sigma_sq)
    return np.maximum(reach**2 - (t - mu) ** 2, 0) / (2 * sigma_sq)


@pytest.mark.parametrize('kind', continuous.DENSITIES)
@pytest.mark.parametrize('mu, sigma_sq', [(0.5, 0.02), (0.1, 0.3), (0.95, 0.001)])
def test_expectation_and_mass_are_integrals(kind, mu, sigma_sq):
    t = np.linspace(mu - 6, mu + 6, 400_001)
    p = density(t, mu, sigma_sq, kind)
    np.testing.assert_allclose(np.trapezoid(p, t), 1.0, rtol=1e-4)
    with jax.enable_x64(True):
        given = jnp.asarray(mu), jnp.asarray(sigma_sq)
        got = continuous.expectation(*given, CENTRES, WIDTHS, kind)
        basis = np.exp(-0.5 * ((t[:, None] - CENTRES) / WIDTHS) ** 2) / WIDTHS / np.sqrt(2 * np.pi)
        np.testing.assert_allclose(got, np.trapezoid(p[:, None] * basis, t, axis=0), atol=1e-6)
        three = (jnp.broadcast_to(part, (1, 1, 1)) for part in given)
        counted = jnp.ones((1, 1), bool)
        mass = continuous.attention_mass(*three, 4, kind, counted)[0]
    edges = continuous.bin_edges(4)
    wanted = [
        np.trapezoid(np.where((t >= low) & (t < high), p, 0), t)
        for low, high in zip(edges, edges[1:], strict=False)
    ]
    np.testing.assert_allclose(mass, wanted, atol=2e-4)


def test_derivatives_stay_right_where_densities_are_narrow():
    """float32 against float64 down to the clamp of the sorting code."""

    def value(mu, sigma_sq):
        centres = CENTRES.astype(mu.dtype), WIDTHS.astype(mu.dtype)
        return continuous.expectation(mu, sigma_sq, *centres, 'gaussian')[0]

    for sigma_sq in (0.7, 1e-3, 1e-6):
        slope = jax.grad(value, argnums=1)(jnp.float32(0.02), jnp.float32(sigma_sq))
        with jax.enable_x64(True):
            exact = jax.grad(value, argnums=1)(jnp.float64(0.02), jnp.float64(np.float32(sigma_sq)))
        np.testing.assert_allclose(slope, exact, rtol=1e-4)


def test_a_smooth_signal_is_kept():
    first, _ = continuous.fit_matrices(64, 64, 0.5, 1e-3, 32, (0.05, 0.1), padding=False)
    t = continuous.first_positions(64)
    rows = np.stack([np.sin(6 * t), t**2], axis=1)[None]
    fitted = continuous.fit(jnp.asarray(first, jnp.float32), jnp.asarray(rows, jnp.float32))
    centres, widths = continuous.gaussian_basis(32, (0.05, 0.1))
    basis = continuous.psi(jnp.asarray(t, jnp.float32), centres, widths)
    np.testing.assert_allclose(continuous.evaluate(fitted, basis), rows, atol=0.01)


def test_contraction_keeps_the_old_signal_in_its_part():
    """After an update the old signal occupies [0, tau]."""
    sizes = (64, 128, 0.75, 1e-3, 64, (0.02, 0.05))
    first, update = (jnp.asarray(m, jnp.float32) for m in continuous.fit_matrices(*sizes))
    centres, widths = continuous.gaussian_basis(64, (0.02, 0.05))
    wave = lambda t: np.sin(4 * t)[None, :, None]  # noqa: E731
    t = continuous.first_positions(64)
    old = continuous.fit(first, jnp.asarray(wave(t), jnp.float32))
    places = jnp.arange(1, 129, dtype=jnp.float32) / 128
    signal = continuous.evaluate(old, continuous.psi(places, centres, widths))
    new = continuous.fit(update, jnp.concatenate([signal, jnp.zeros((1, 64, 1))], axis=1))
    inner = np.linspace(0.1, 0.9, 30)
    moved = continuous.psi(jnp.asarray(0.75 * inner, jnp.float32), centres, widths)
    np.testing.assert_allclose(continuous.evaluate(new, moved), wave(inner), atol=0.05)


def test_quantiles_split_the_attention_in_equal_parts():
    probabilities = jnp.asarray([[0.1, 0.0, 0.6, 0.3], [0.25, 0.25, 0.25, 0.25]])
    places = np.asarray(continuous.quantile_places(probabilities, 20))
    assert np.all(np.diff(places, axis=1) > 0)
    share = [np.mean((places[0] >= a) & (places[0] < a + 0.25)) for a in (0, 0.25, 0.5, 0.75)]
    np.testing.assert_allclose(share, probabilities[0], atol=0.051)
    np.testing.assert_allclose(places[1], (np.arange(20) + 0.5) / 20, atol=1e-6)


def test_places_are_drawn_as_often_as_looked_at():
    probabilities = jnp.asarray([[0.7, 0.0, 0.2, 0.1]])
    bins = continuous.sampled_bins(jax.random.split(jax.random.key(0), 1), probabilities, 4000)
    np.testing.assert_allclose(
        np.bincount(bins[0], minlength=4) / 4000, probabilities[0], atol=0.03
    )
    places = continuous.sampled_places(bins, 4)
    assert np.all(np.diff(places) >= 0) and places[0, 0] == np.float32(-continuous.EDGE)


@pytest.mark.parametrize('sticky', [False, True])
@pytest.mark.parametrize('constant', [False, True])
def test_nothing_grows_over_ten_thousand_updates(sticky, constant):
    """The smallest widths allowed in a config equal the spacing of the fitted vectors."""
    length, samples, tau = 8, 16, 0.5
    widths = (spacing(length, samples, tau), 0.15)
    _, update = continuous.fit_matrices(length, samples, tau, 0.5, 16, widths)
    update = jnp.asarray(update, jnp.float32)
    centres, sizes = continuous.gaussian_basis(16, widths)

    def step(old, key):
        draw, look = jax.random.split(key)
        rows = jnp.ones((1, length, 2)) if constant else jax.random.normal(draw, (1, length, 2))
        places = jnp.arange(1, samples + 1, dtype=jnp.float32)[None] / samples
        if sticky:
            mass = jax.random.exponential(look, (1, 32)) ** 4
            probabilities = continuous.bin_probabilities(mass)
            bins = continuous.sampled_bins(key[None], probabilities, samples)
            places = continuous.sampled_places(bins, 32)
        signal = continuous.evaluate(old, continuous.psi(places, centres, sizes))
        new = continuous.fit(update, jnp.concatenate([signal, rows], axis=1))
        return new, jnp.abs(new).max()

    keys = jax.random.split(jax.random.key(0), 10_000)
    _, largest = jax.jit(lambda: jax.lax.scan(step, jnp.zeros((1, 16, 2)), keys))()
    assert np.isfinite(largest).all() and largest.max() < 10
    assert largest[-1000:].max() < 4 * largest[:1000].max()


def test_kl_is_zero_at_sigma_0_and_as_written():
    mu, sigma_sq = jnp.asarray([0.3, 0.9]), jnp.asarray([0.01, 0.0025])
    true = continuous.kl_divergence(mu, sigma_sq, 0.05, 'true')
    np.testing.assert_allclose(true, [(4 - np.log(4) - 1) / 2, 0.0], atol=1e-6)
    printed = continuous.kl_divergence(mu, sigma_sq, 0.05, 'paper_eq21')
    np.testing.assert_allclose(printed[0], (4 - np.log(2) - 1) / 2, rtol=1e-6)
    released = continuous.kl_divergence(mu, sigma_sq, 0.05, 'as_released')
    np.testing.assert_allclose(released - true, (mu + 1) ** 2 / 0.005, rtol=1e-5)


def stored(**fields):
    """Vectors in memory after each of 6 segments, one lane."""
    fields = LAYERS['infinity_former'].small() | fields
    model = with_config('infinity_former', infinity_former=fields)
    _, params = toy('infinity_former')
    _, states = run(model, params, random_segments(segments=6))
    return np.asarray(states[0].attention.long.stored[:, 0]).tolist()


@pytest.mark.slow
def test_thresholds():
    """With segments of 5 and a short memory of 3, 2, 7, 12, ... vectors are pending or written."""
    assert stored() == [0, 0, 5, 10, 15, 20]
    # The first fit takes ten vectors at once.
    assert stored(memory_threshold=10) == [0, 0, 0, 10, 15, 20]
    # Cleared when ten were written.
    cleared = dict(memory_threshold=10, threshold_kind='clear')
    assert stored(**cleared) == [0, 0, 5, 10, 5, 10]


def test_the_gate_learns_from_the_segment_that_first_reads():
    model, params = toy('infinity_former')
    segments = random_segments(segments=4)
    _, states = run(model, params, segments)
    state = jax.tree.map(lambda leaf: leaf[1], states)
    segment = jax.tree.map(lambda leaf: leaf[2], segments)

    def value(params):
        return model.apply({'params': params}, segment, state, train=False)[0].std()

    gradient = jax.jit(jax.grad(value))(params)['block_0']['attention']['memory']
    for name in ('gate_kernel', 'gate_bias', 'mu_kernel', 'sigma_kernel'):
        assert np.any(gradient[name]), name


def test_mass_counts_all_heads_and_queries():
    model, params = toy('infinity_former')
    _, states = run(model, params, random_segments(segments=4))
    mass = np.asarray(states[0].attention.long.mass)
    assert mass[1].max() == 0.0  # nothing was there to look at
    # Two heads times five queries; a part of every density lies outside of [0, 1].
    assert np.all(mass[2].sum(axis=1) <= 2 * LENGTH) and np.all(mass[2].sum(axis=1) > 0)
    assert mass.shape[1] == BATCH
