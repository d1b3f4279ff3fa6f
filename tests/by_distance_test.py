"""Answers by how long ago they were shown, and points by the size of the memory."""

import itertools
import json

import numpy as np
import pytest

from configs import collision as collision_config
from configs import copy, instruction
from experiments.expire_span import by_distance, size
from longmem_jax.data.tasks.registry import TASKS


def corpus(module, variants):
    """The test split, and its settings."""
    config = module.get_config(variants)
    settings = config.data.task.to_dict() | {'eval_documents': 3}
    return TASKS[config.data.source].corpus(settings, 'test', 0)


def test_the_sender_stands_where_the_distance_says():
    documents = corpus(instruction, 'tiny')
    for index in range(3):
        document = documents[index]
        senders = np.flatnonzero(document.scored == 2) - 6
        given = senders - by_distance.executed(document)
        np.testing.assert_array_equal(document.tokens[senders], document.tokens[given])
        assert (given < senders).all()


def test_a_collision_is_where_the_distance_says():
    document = corpus(collision_config, 'easy,tiny')[0]
    frames = document.inputs.reshape(-1, 5)
    asked = np.flatnonzero(document.scored) // 5
    met = asked - by_distance.collided(document) // 5
    np.testing.assert_array_equal(frames[met, :2], frames[met, 2:4])
    quadrants = 2 * (frames[met, 0] >= 2) + (frames[met, 1] - 4 >= 2)
    np.testing.assert_array_equal(document.tokens[5 * asked + 4], quadrants)


@pytest.mark.parametrize(
    'source, module, variants',
    [
        ('copy', copy, 'tiny'),
        ('instruction', instruction, 'tiny'),
        ('collision', collision_config, 'easy,tiny'),
    ],
)
def test_every_answer_is_in_one_range(source, module, variants):
    whole, bounds = corpus(module, variants), (0, 64, 128, np.inf)
    ranges = [by_distance.Between(whole, source, *ends) for ends in itertools.pairwise(bounds)]
    for index in range(3):
        parts = [part[index].scored for part in ranges]
        np.testing.assert_array_equal(np.sum(parts, axis=0), whole[index].scored)


def test_the_ramp_of_short_spans_is_short():
    for span, ramp in ((32, 8), (256, 64), (1024, 64)):
        fields = copy.get_config(f'tiny,span={span}').model.expire_span
        assert (fields.max_span, fields.ramp) == (span, ramp)
    assert copy.get_config('span=131072').model.expire_span.ramp == 128


def test_points_are_those_of_all_seeds(tmp_path):
    for seed in range(2):
        folder = tmp_path / 'spans' / str(seed)
        folder.mkdir(parents=True)
        numbers = {'memory_size': 20 + seed, 'test': {'exact_match': 0.5, 'answers': 8}}
        (folder / 'numbers.json').write_text(json.dumps(numbers))
    points, heading = size.points(tmp_path / 'spans')
    assert points == [(20, 50.0), (21, 50.0)]
    (axes,) = size.draw({'Expire-Span': [points, [(30, 70.0)]]}, heading).axes
    assert axes.get_ylabel() == 'test exact match, %'
    assert axes.lines[0].get_xydata().tolist() == [[20.5, 50.0], [30.0, 70.0]]
    with pytest.raises(SystemExit, match='no finished runs'):
        size.points(tmp_path)
    numbers = {'memory_size': 20, 'test': {'bits_per_byte': 3.25, 'num_bytes': 100, 'answers': 0}}
    (tmp_path / 'text/0').mkdir(parents=True)
    (tmp_path / 'text/0/numbers.json').write_text(json.dumps(numbers))
    assert size.points(tmp_path / 'text') == ([(20, 3.25)], 'bits/byte')
