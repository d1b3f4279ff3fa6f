"""The curves of kNN-LM, on neighbours that are made up."""

import runpy
import sys

import numpy as np
import pytest

from experiments.knn_lm import curves
from longmem_jax.retrieval.evaluate import LookupResult
from longmem_jax.retrieval.knn_lm import MISSING


def found(seed):
    """Neighbours of 40 tokens, three quarters of which the nearest four predict."""
    draws = np.random.default_rng(seed)
    targets, values = draws.integers(0, 50, 40), draws.integers(50, 99, (40, 16))
    values[:30, :4] = targets[:30, None]
    distances = np.sort(draws.uniform(0, 8, (40, 16)), axis=1)
    model = np.full(40, np.log(1 / 100))
    looked_up = LookupResult(model, targets, distances, values, np.zeros((40, 0)))
    return curves.Found(looked_up, draws.integers(0, 4, (40, 16)))


def test_a_part_of_the_store_has_the_nearest_of_its_documents():
    one = found(0)
    kept = np.array([True, False, True, False])
    log = one.log(2.0, 3, kept)
    for token in range(40):
        inside = np.flatnonzero(kept[one.documents[token]])[:3]
        weights = np.exp(-one.of.distances[token, inside] / 2.0)
        right = weights[one.of.values[token, inside] == one.of.targets[token]].sum()
        wanted = np.log(right / weights.sum()) if right else MISSING
        assert log[token] == pytest.approx(wanted)
    np.testing.assert_allclose(one.log(2.0, 3, np.ones(4, bool)), one.log(2.0, 3))


def test_temperature_and_share_are_chosen_on_validation():
    validation, test = found(1), found(2)
    best, temperature, share = curves.chosen(validation, test, 4)
    assert best == curves.loss(test, test.log(temperature, 4), share)
    assert (
        best < -test.of.log_model.mean() and 0.6 < share < 0.9
    )  # three of four tokens are predicted


def test_a_table_has_all_curves():
    of_seed = {'alone': {'model': 5.0}, 'k': {'1': 4.0}, 'share': {'0.5': 4.0}}
    of_seed |= {'store': {'1': 4.0}, 'key': {'hidden': 4.0}}
    cell = curves.perplexities({'run': {'seeds': [0]}} | of_seed)
    assert cell['run'] == {'seeds': [0]}
    text = curves.table({'0': cell, '1': cell})
    assert '| alone | model | 148.4 |' in text and len(text.splitlines()) == 7


@pytest.mark.filterwarnings('ignore:.*found in sys.modules:RuntimeWarning')
def test_a_text_that_is_not_there_is_one_message(tmp_path, monkeypatch):
    given = [f'--path={tmp_path / "nothing"}', f'--output={tmp_path}']
    monkeypatch.setattr(sys, 'argv', ['curves', *given])
    with pytest.raises(
        SystemExit, match=r'UsageError: config.data.path = .*nothing does not exist'
    ):
        runpy.run_module('experiments.knn_lm.curves', run_name='__main__')
