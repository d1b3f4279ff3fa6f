"""Accuracy by distance and by length: what evaluation writes for tasks with a series."""

import json

import numpy as np
import pytest

from configs import recall, state_tracking
from longmem_jax.commands import evaluate as evaluate_mode
from longmem_jax.commands.train import train
from tests.commands.train_test import experiment

pytestmark = pytest.mark.slow  # whole runs of the command


def test_every_distance_is_scored_by_itself(tmp_path, capsys, made_figures):
    config = recall.get_config('tiny,memory=local,kind=copy')
    config.data.task.update(eval_documents=16, distances=(2, 40), before=0, answer_length=1)
    config.model.num_layers = 1
    config.model.attention, config.model.feed_forward = ('local',), ('dense',)
    config.train.num_steps = config.checkpoint.every = config.train.evaluate_every = 60
    config.train.segments_per_step = 2
    config.data.task.num_pairs = 1
    run = experiment(config, tmp_path)
    config.mesh.data = 1
    train(run)
    run.config.data.task.distances = (2, 40, 300)
    evaluate_mode.evaluate(run, 'test')
    rows = json.loads((tmp_path / 'recall.json').read_text())
    assert [row['distance'] for row in rows] == [2, 40, 300]
    # Attention inside segments of 32 tokens: earlier keys cannot be known.
    for row in rows:
        assert row['exact_match'] == row['accuracy']
    assert rows[1]['exact_match'] == rows[1]['exact_match_reset'] < 0.5
    (axes,) = made_figures[-1].axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
    assert list(drawn) == ['with memory', 'memory reset'] and axes.get_xscale() == 'log'
    for label, name in (('with memory', 'exact_match'), ('memory reset', 'exact_match_reset')):
        wanted = [[row['distance'], 100 * row[name]] for row in rows]
        np.testing.assert_allclose(drawn[label], wanted)
    assert (tmp_path / 'recall.png').exists()
    assert 'distance 300: exact match' in capsys.readouterr().out


def test_every_length_is_scored_by_itself(tmp_path, capsys):
    """Sequences of one element are their own products, and no memory of segments of 8 knows longer."""
    config = state_tracking.get_config('tiny,memory=local,group=Z2')
    config.data.task.update(eval_documents=64)
    config.model.num_layers = 1
    config.model.attention, config.model.feed_forward = ('local',), ('dense',)
    config.train.num_steps = config.checkpoint.every = config.train.evaluate_every = 60
    run = experiment(config, tmp_path)
    config.mesh.data = 1
    train(run)
    run.config.data.task.lengths = (1, 40)
    evaluate_mode.evaluate(run, 'test')
    rows = json.loads((tmp_path / 'state_tracking.json').read_text())
    assert [row['length'] for row in rows] == [1, 40]
    assert rows[0]['exact_match'] == rows[0]['accuracy'] == 1.0
    assert rows[1]['exact_match'] < 0.1 < rows[1]['accuracy']
    assert (tmp_path / 'state_tracking.png').exists()
    assert 'length 40: exact match' in capsys.readouterr().out
