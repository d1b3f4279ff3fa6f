"""Continuous memory: closed forms against integrals, and values that stay finite."""

import ast
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import InfinityFormer
from longmem_jax.contract import ModelSettings
from longmem_jax.errors import UsageError
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.continuous_layer import ContinuousMemory
from longmem_jax.memory.infinity_former.entry import check, spacing
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.parameters import unbox
from longmem_jax.segment import mean_over_segments, read_segments
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


@pytest.mark.parametrize('sticky', [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize('sigma_sq', [0.3, 0.004])
def test_kl_of_a_parabola_is_the_integral(sigma_sq):
    mu, sigma_0 = 0.4, 0.1
    reach = np.cbrt(1.5 * sigma_sq)
    t = np.linspace(mu - reach, mu + reach, 200_001)[1:-1]
    p = density(t, mu, sigma_sq, 'parabola')
    prior = density(t, mu, sigma_0**2, 'gaussian')
    # The prior is 0 in float64 where |t - mu| is large, its logarithm is not.
    logarithm = -0.5 * (t - mu) ** 2 / sigma_0**2 - np.log(sigma_0 * np.sqrt(2 * np.pi))
    assert np.allclose(np.exp(logarithm), prior)
    wanted = np.trapezoid(p * (np.log(p) - logarithm), t)
    given = jnp.asarray(mu), jnp.asarray(sigma_sq)
    found = continuous.kl_divergence(*given, sigma_0, 'true', 'parabola')
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    slope = jax.grad(lambda s: continuous.kl_divergence(given[0], s, sigma_0, 'true', 'parabola'))(
        jnp.asarray(np.float32((5 * sigma_0**2) ** 1.5 / 1.5))
    )  # a variance of sigma_0 ** 2
    np.testing.assert_allclose(slope, 0.0, atol=1e-2)


@pytest.mark.parametrize('kind', ['paper_eq21', 'as_released'])
def test_formulas_for_gaussians_are_refused_for_parabolas(kind):
    fields = LAYERS['infinity_former'].small() | dict(density='parabola', kl=kind)
    (problem,) = check(fields, None, LENGTH)
    assert problem.startswith(f"kl = '{kind}': a formula for Gaussian densities")
    half = jnp.asarray(0.5)
    with pytest.raises(ValueError, match="use 'true'"):
        continuous.kl_divergence(half, half, 0.1, kind, 'parabola')


@pytest.mark.slow
@pytest.mark.parametrize('number', [3, 7])
def test_kl_is_averaged_over_queries_that_have_a_memory(number):
    """With equal densities it is the same for any length, with empty memories and padding."""
    fields = dict(biases=True, kl='true', sigma_0=0.1)
    fields = LAYERS['infinity_former'].small() | fields
    model = with_config('infinity_former', infinity_former=fields)
    params = jax.tree.map(lambda leaf: leaf, toy('infinity_former')[1])
    for block in ('block_0', 'block_1'):
        memory = params[block]['attention']['memory']
        memory['mu_kernel'] = memory['sigma_kernel'] = jnp.zeros_like(memory['mu_kernel'])
        memory['mu_bias'] = jnp.zeros((2,))
        memory['sigma_bias'] = jnp.full((2,), np.log(np.expm1(0.09)))
    segments = random_segments(segments=number)
    valid = segments.valid.at[-1, 0, 2:].set(False)  # nothing is stored in the first two segments
    segments = segments.replace(valid=valid)

    def read(state, segment, key):
        _, state, aux = model.apply({'params': params}, segment, state, train=False)
        return state, aux

    state = model.apply({'params': params}, BATCH, method='initial_state')
    _, auxes = jax.jit(read_segments, static_argnums=0)(read, state, segments, jax.random.key(0))
    aux = mean_over_segments(auxes)
    one = continuous.kl_divergence(jnp.asarray(0.5), jnp.asarray(0.09), 0.1, 'true')
    np.testing.assert_allclose(aux.losses['kl'], 2 * one, rtol=1e-5)  # the sum of two layers
    np.testing.assert_allclose(aux.metrics['density_width'], 0.3, rtol=1e-5)
    np.testing.assert_allclose(aux.per_head['density_width/block_1'], [0.3, 0.3], rtol=1e-5)
    counted = [0.0, 0.0] + [float(BATCH * LENGTH)] * (number - 3) + [LENGTH + 2.0]
    assert auxes.counts['kl'].tolist() == counted


SETTINGS = ModelSettings(
    d_model=16,
    num_heads=4,
    head_dim=4,
    d_feed_forward=16,
    num_layers=1,
    segment_length=5,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.1,
    dtype=jnp.dtype('float32'),
)


def memory_layer(**changes):
    """Parameters of a `ContinuousMemory` of width 16, and a function from them to mu and sigma_sq."""
    fields = dict(num_basis=8, widths=(0.15, 0.3), num_samples=8, tau=0.5, ridge=0.5)
    fields |= dict(first_length=5, write_length=5, sigma_sq_min=1e-4, density='gaussian')
    memory = ContinuousMemory(SETTINGS, padding=True, **fields, **changes)

    def everything(module, vectors, queries):
        return module.read(queries, *module.project(module.fit_first(vectors)))

    arrays = jnp.ones((1, 5, 16)), jnp.zeros((1, 4, 3, 4))
    init = jax.jit(functools.partial(memory.init, method=everything))
    params = unbox(init(jax.random.key(0), *arrays))

    @jax.jit
    def densities(params):
        return memory.apply(params, *arrays, method=everything)[1:3]

    return params, densities


def test_biases_set_where_and_how_wide_densities_begin():
    params, densities = memory_layer()
    mu, sigma_sq = densities(params)
    np.testing.assert_allclose(mu, 0.5, rtol=1e-6)
    np.testing.assert_allclose(sigma_sq, np.log(2), rtol=1e-6)  # as released
    assert not {'mu_bias', 'sigma_bias'} & set(params['params'])
    with_biases = dict(biases=True, first_width=0.1, first_places=(0.2, 0.8))
    params, densities = memory_layer(**with_biases)
    mu, sigma_sq = densities(params)
    np.testing.assert_allclose(mu[0, :, 0], [0.2, 0.4, 0.6, 0.8], rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(sigma_sq), 0.1, rtol=1e-5)

    gradient = jax.grad(lambda params: sum(x.sum() for x in densities(params)))(params)['params']
    assert np.all(gradient['mu_bias'] != 0) and np.all(gradient['sigma_bias'] != 0)


def test_first_values_of_biases_need_biases():
    small = LAYERS['infinity_former'].small()
    for wrong in (dict(first_width=0.1), dict(first_places=(0.2, 0.8))):
        (problem,) = check(small | wrong, None, LENGTH)
        assert 'set biases = True' in problem
    for wrong in (dict(first_places=(0.0, 0.5)), dict(first_places=(0.5,))):
        (problem,) = check(small | wrong | dict(biases=True), None, LENGTH)
        assert problem.startswith('first_places')
    assert not check(
        small | dict(biases=True, first_width=0.1, first_places=(0.2, 0.8)), None, LENGTH
    )


def test_places_are_drawn_inside_the_bins():
    keys = jax.random.split(jax.random.key(0), 2)
    bins = jnp.asarray([[3] * 2000 + [1] * 2000, [0] * 4000])
    places = np.asarray(continuous.places_inside(keys, bins, 4))
    assert np.all(np.diff(places) >= 0)
    for low, drawn in ((0.25, places[0, :2000]), (0.75, places[0, 2000:]), (0.0, places[1])):
        assert drawn.min() >= low and drawn.max() <= low + 0.25
        np.testing.assert_allclose(drawn.mean(), low + 0.125, atol=0.01)
        assert len(np.unique(drawn)) > 1000
    assert not np.array_equal(places[0, :2000] - 0.25, places[0, 2000:] - 0.75)


@pytest.mark.parametrize('normalized', [True, False])
def test_what_is_written_does_not_depend_on_the_scale_of_the_residual_stream(normalized):
    """In a pre-norm model; without `normalize_written` it does."""
    fields = LAYERS['infinity_former'].small() | dict(normalize_written=normalized, sticky='none')
    model = with_config('infinity_former', layers=1, infinity_former=fields)
    _, params = toy('infinity_former', layers=1)
    segments = random_segments(segments=3)

    def written(scale):
        scaled = jax.tree.map(lambda leaf: leaf, params)
        scaled['embedding'] = jax.tree.map(lambda leaf: scale * leaf, params['embedding'])
        _, states = run(model, scaled, segments)
        return np.asarray(states[0].attention.long.coefficients[-1])

    # Large enough that the epsilon of the norm does not count.
    assert np.allclose(written(30.0), written(300.0), rtol=1e-3, atol=1e-4) == normalized


def stored(**fields):
    """Vectors in memory after each of 6 segments, one lane."""
    fields = LAYERS['infinity_former'].small() | fields
    model = with_config('infinity_former', layers=1, infinity_former=fields)
    _, params = toy('infinity_former', layers=1)
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


@pytest.mark.slow
def test_the_gate_learns_from_the_segment_that_first_reads():
    model, params = toy('infinity_former', layers=1)
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
    model, params = toy('infinity_former', layers=1)
    _, states = run(model, params, random_segments(segments=4))
    mass = np.asarray(states[0].attention.long.mass)
    assert mass[1].max() == 0.0  # nothing was there to look at
    # Two heads times five queries; a part of every density lies outside of [0, 1].
    assert np.all(mass[2].sum(axis=1) <= 2 * LENGTH) and np.all(mass[2].sum(axis=1) > 0)
    assert mass.shape[1] == BATCH


@pytest.mark.parametrize('segment', [1, 32])
def test_too_narrow_functions_are_told_widths_that_work(segment):
    sizes = dict(d_model=16, num_heads=2, segment_length=segment)
    with pytest.raises(UsageError, match='the narrowest is below') as raised:
        InfinityFormer(**sizes)
    widths = ast.literal_eval(re.search(r'Use widths = (\(.+\)) or wider', str(raised.value))[1])
    assert InfinityFormer(**sizes, widths=widths).settings.segment_length == segment


@pytest.mark.parametrize('sticky', ['sampled', 'sampled_inside'])
def test_places_of_a_text_do_not_depend_on_its_lane(sticky):
    """Without a random key, outside of training; with one every lane draws its own."""
    mass, writes = jnp.ones((3, 8)), jnp.asarray([2, 2, 2])
    places = [
        continuous.sticky_positions(sticky, mass, writes, key, 16)
        for key in (None, jax.random.key(0))
    ]
    np.testing.assert_array_equal(places[0], places[0][:1].repeat(3, axis=0))
    assert (places[1][0] != places[1][1]).any()
