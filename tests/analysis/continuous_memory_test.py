"""Figures of the continuous memory: their numbers, and that they are drawn."""

import numpy as np
import pytest

from experiments.analysis import continuous_figures, continuous_memory, memory_positions
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.registry import LAYERS
from tests.toys import LENGTH, VOCAB, random_segments, run, toy, with_config


def tokens(segments):
    number = segments * LENGTH + 1
    return np.random.default_rng(0).integers(0, VOCAB, (number,)).astype(np.int32)


def settings(**changes):
    return (
        dict(
            num_samples=40,
            write_length=10,
            tau=0.5,
            memory_length=0,
            memory_threshold=0,
            threshold_kind='fill',
        )
        | changes
    )


def bars(axes):
    """Centres and heights of the bars."""
    found = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    return np.asarray(found).T


def limits(axes):
    """Where dashed vertical lines are drawn."""
    return [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == '--']


def test_attention_begins_when_something_is_stored(tmp_path):
    model, params = toy('infinity_former')
    reading = continuous_memory.read_text(model, params, tokens(5))
    mass = continuous_memory.by_segment(reading.mass, LENGTH)
    assert mass.shape == (2, 5, continuous_memory.BINS)
    assert reading.written.shape == (2, 5 * LENGTH, 16)
    assert mass[:, :2].max() == 0.0 and np.all(mass[:, 2:].sum(axis=2) > 0)
    assert not reading.gain[: 2 * LENGTH].any() and np.any(reading.gain[2 * LENGTH :] != 0)
    own = memory_positions.fields_of(model)
    found = memory_positions.follow(mass[1], own, LENGTH, False)
    assert [len(owners) > 0 for owners, _ in found] == [False, False, True, True, True]
    figure = continuous_figures.draw_attention(mass, [0.5, 0.25], tmp_path / 'attention.png')
    for layer, axes in enumerate(figure.axes):
        places, heights = bars(axes)
        np.testing.assert_allclose(places, (np.arange(128) + 0.5) / 128)
        np.testing.assert_allclose(heights, mass[layer].sum(0) / mass[layer].sum(), rtol=1e-5)
        assert limits(axes) == [0.5, 0.25] and axes.get_ylabel() == f'layer {layer}'


def test_tokens_are_followed_as_they_are_written():
    mass = np.zeros((6, 8))
    found = memory_positions.follow(mass, settings(memory_length=5), 10, False)
    assert not len(found[0][0]) and not len(found[1][0])
    owners, places = found[2]  # 15 tokens have left the short-term memory, 10 of them are written
    assert owners.tolist() == list(range(10))
    assert np.allclose(places, continuous.first_positions(10))
    owners, places = found[3]
    assert owners[40:].tolist() == list(range(10, 20)) and places[40] > 0.5
    assert np.array_equal(np.unique(owners[:40]), np.arange(10)) and np.all(np.diff(places) > 0)
    fills = memory_positions.follow(mass, settings(memory_threshold=30), 10, False)
    assert [len(owners) for owners, _ in fills] == [0, 0, 0, 30, 50, 50]
    clears = settings(memory_threshold=20, threshold_kind='clear')
    clears = memory_positions.follow(mass, clears, 10, False)
    assert [len(owners) for owners, _ in clears] == [0, 10, 50, 10, 50, 10]
    assert clears[3][0].tolist() == list(range(20, 30))


def test_sticky_places_give_room_to_what_is_looked_at(tmp_path):
    mass = np.full((3, 10), 1e-3)
    mass[1, 2] = 1.0  # all look at the third tenth of the first ten tokens
    spaces = {}
    for name, sticky in (('even', False), ('sticky', True)):
        owners, places = memory_positions.follow(mass, settings(), 10, sticky)[-1]
        spaces[name] = memory_positions.spaces(owners, places, 30)
        assert owners[40:].tolist() == list(range(10, 20))
        assert abs(spaces[name].sum() - 1) < 1e-9 and not spaces[name][20:].any()
    assert spaces['even'].max() < 0.1 < 0.4 < spaces['sticky'][2]
    begins = memory_positions.write_begins(settings(), 35)
    assert begins == [10, 20]
    assert memory_positions.write_begins(settings(memory_threshold=20), 45) == [20, 30]
    figure = continuous_figures.draw_space(spaces, begins, tmp_path / 'space.png')
    (axes,) = figure.axes
    assert limits(axes) == begins
    lines = {line.get_label(): line for line in axes.lines if line.get_linestyle() != '--'}
    for name, shares in spaces.items():
        np.testing.assert_allclose(lines[name].get_ydata(), shares)


def test_a_prediction_is_shown_with_what_it_looked_at(tmp_path):
    model, _ = toy('infinity_former')
    own = memory_positions.fields_of(model)
    mass = np.full((1, 6 * LENGTH, continuous_memory.BINS), 1e-6, np.float32)
    gain = np.zeros((6 * LENGTH,), np.float32)
    number = 5 * LENGTH + 2
    gain[number], gain[0] = 3.0, 9.0  # the first had nothing to look at
    owners, places = memory_positions.follow(mass[0], own, LENGTH, False)[5]
    at = int(places[-1] * continuous_memory.BINS)
    mass[0, number, min(at, continuous_memory.BINS - 1)] = 1.0
    reading = continuous_memory.Reading(mass, mass, gain)
    text = np.frombuffer(b'abcdefghijklmnopqrstuvwxyzABCDEFGHIJ', np.uint8).astype(np.int32)
    found = continuous_memory.predictions(reading, text, model, Bytes())
    assert found[0].predicted == chr(text[number + 1]) and found[0].gain == 3.0
    assert found[0].before.endswith(chr(text[number]))
    assert chr(text[owners[-1]]) in found[0].seen[0][0] and found[0].seen[0][1] > 0.9
    figure = continuous_figures.draw_predictions(found, tmp_path / 'predictions.png')
    for axes, prediction in zip(figure.axes, found, strict=True):
        np.testing.assert_allclose(bars(axes)[1], prediction.attention)
        title = axes.get_title(loc='left')
        assert f'[{prediction.predicted}]  gain {prediction.gain:.2f} nats' in title
    figure = continuous_figures.draw_predictions([], tmp_path / 'predictions.png')
    assert 'too short' in figure.axes[0].get_title() and not figure.axes[0].patches


def test_the_fields_are_those_in_effect():
    """`write_length = 0` is a segment; borders of sticky memories are known for the newest write."""
    fields = LAYERS['infinity_former'].small() | dict(write_length=0)
    model = with_config('infinity_former', infinity_former=fields)
    found = memory_positions.fields_of(model)
    assert found['write_length'] == LENGTH
    assert memory_positions.borders(found, 3) == [0.5]  # sticky = 'sampled'
    assert memory_positions.borders(found | dict(sticky='none'), 3) == [0.5, 0.25, 0.125]


def test_phrases_have_the_largest_shares_and_do_not_overlap():
    text = np.frombuffer(bytes(range(33, 33 + 90)), np.uint8).astype(np.int32)
    shares = np.full((90,), 0.001)
    shares[20], shares[22], shares[70] = 0.3, 0.2, 0.25
    found = continuous_memory.phrases(shares, text, Bytes(), count=2)
    assert [at for _, at, _ in found] == [20, 70]
    np.testing.assert_allclose([share for share, _, _ in found], [0.531, 0.25 + 0.032])
    assert found[0][2] == bytes(range(33 + 4, 33 + 37)).decode()


@pytest.mark.slow
def test_the_error_is_that_of_the_layer(tmp_path):
    """After one write and one update, against the layer's own coefficients."""
    model, params = toy('infinity_former')
    own = memory_positions.fields_of(model) | dict(sticky='none')
    layer = with_config('infinity_former', infinity_former=own)
    segments = random_segments(segments=4, batch=1)
    _, states = run(layer, params, segments)
    coefficients = np.asarray(states[0].attention.long.coefficients)[:, 0]
    text = np.concatenate([segments.tokens[:, 0].reshape(-1), [0]]).astype(np.int32)
    written = continuous_memory.read_text(layer, params, text).written[0]
    basis = continuous.gaussian_basis(own['num_basis'], tuple(own['widths']))
    wanted = []
    for index, positions in (
        (2, continuous.first_positions(LENGTH)),
        (3, continuous.update_positions(LENGTH, own['num_samples'], own['tau'])[-LENGTH:]),
    ):
        # With a short-term memory of 3, tokens 0-4 are written first, then 5-9: whole segments.
        vectors = written[(index - 2) * LENGTH : (index - 1) * LENGTH]
        off = continuous.psi64(positions, *basis) @ coefficients[index] - vectors
        wanted.append(np.square(off).sum() / np.square(vectors).sum())
    errors = continuous_memory.regression_errors(written[: 2 * LENGTH], own, (own['num_basis'],))
    np.testing.assert_allclose(
        [errors['first write'][0], errors['later writes'][0]], wanted, rtol=1e-3
    )


def test_more_functions_fit_better(tmp_path):
    rows = np.random.default_rng(0).normal(size=(96, 3)).cumsum(axis=0)
    counts = (8, 16, 32, 64)
    fields = settings(write_length=32, ridge=1e-3, widths=(0.02, 0.05), padding=True)
    errors = continuous_memory.regression_errors(rows, fields, counts)
    assert list(errors) == ['first write', 'later writes']
    for values in errors.values():
        assert values == sorted(values, reverse=True) and values[0] > 2 * values[-1]
    assert list(continuous_memory.regression_errors(rows[:32], fields, counts)) == ['first write']
    figure = continuous_figures.draw_regression(counts, errors, tmp_path / 'regression.png')
    (axes,) = figure.axes
    shown = {line.get_label(): line.get_xydata().T.tolist() for line in axes.lines}
    assert shown == {f'error, {name}': [list(counts), values] for name, values in errors.items()}


def test_what_cannot_be_drawn_is_said():
    model, params = toy('infinity_former')
    with pytest.raises(UsageError, match='at least two segments of 5'):
        continuous_memory.read_text(model, params, tokens(1))
    model, params = toy('local')
    with pytest.raises(UsageError, match='no infinity_former layer'):
        continuous_memory.read_text(model, params, tokens(3))
