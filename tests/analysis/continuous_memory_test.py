"""Figures of the continuous memory: the numbers under them, and that they are drawn."""

import numpy as np
import pytest

from longmem_jax.analysis import continuous_memory
from longmem_jax.errors import UsageError
from tests.toys import LENGTH, VOCAB, toy


def tokens(segments):
    return np.random.default_rng(0).integers(0, VOCAB, (segments * LENGTH,)).astype(np.int32)


def test_attention_begins_when_something_is_stored(tmp_path):
    model, params = toy('infinity_former')
    mass, hidden = continuous_memory.read_text(model, params, tokens(5))
    assert mass.shape == (5, 2, continuous_memory.BINS) and hidden.shape == (2, 5 * LENGTH, 16)
    assert mass[:2].max() == 0.0 and np.all(mass[2:].sum(axis=2) > 0)
    continuous_memory.draw_attention(mass, tmp_path / 'attention.png')
    assert (tmp_path / 'attention.png').stat().st_size > 5000


def test_sticky_places_give_room_to_what_is_looked_at(tmp_path):
    settings = dict(num_samples=40, write_length=10, tau=0.5)
    mass = np.full((2, 10), 1e-3)
    mass[1, 2] = 1.0  # all look at the third tenth of the first ten tokens
    even = continuous_memory.kept_places(mass, settings, False)
    sticky = continuous_memory.kept_places(mass, settings, True)
    assert len(even) == len(sticky) == 50
    assert np.bincount(even[:40]).max() <= 5
    assert np.mean(sticky[:40] == 2) > 0.8
    assert sticky[40:].tolist() == list(range(10, 20))
    continuous_memory.draw_space(dict(even=even, sticky=sticky), 20, tmp_path / 'space.png')
    assert (tmp_path / 'space.png').stat().st_size > 5000


def test_more_functions_fit_better(tmp_path):
    rows = np.random.default_rng(0).normal(size=(64, 3)).cumsum(axis=0)
    counts = (8, 16, 32, 64)
    errors = continuous_memory.regression_errors(rows, (0.02, 0.05), 1e-3, counts)
    assert errors == sorted(errors, reverse=True) and errors[0] > 2 * errors[-1]
    continuous_memory.draw_regression(counts, errors, tmp_path / 'regression.png')
    assert (tmp_path / 'regression.png').stat().st_size > 5000


def test_what_cannot_be_drawn_is_said():
    model, params = toy('infinity_former')
    with pytest.raises(UsageError, match='at least two segments of 5'):
        continuous_memory.read_text(model, params, tokens(1))
    model, params = toy('local')
    with pytest.raises(UsageError, match='no infinity_former layer'):
        continuous_memory.read_text(model, params, tokens(3))
