"""Answers by how long ago they were shown, and points by the size of the memory."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from configs import collision as collision_config
from configs import copy, instruction
from experiments.expire_span import along, by_distance, size
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
        finished(tmp_path / 'spans' / str(seed), 20 + seed, exact_match=0.5, answers=8)
    points, heading = size.points(tmp_path / 'spans')
    assert points == [(60, 4, 50.0), (63, 4, 50.0)]
    held, reserved = size.draw({'Expire-Span': [points, [size.Point(90, 6, 70.0)]]}, heading).axes
    assert held.get_ylabel() == 'test exact match, %'
    assert held.lines[0].get_xydata().tolist() == [[61.5, 50.0], [90.0, 70.0]]
    assert reserved.lines[0].get_xydata().tolist() == [[4.0, 50.0], [6.0, 70.0]]
    with pytest.raises(SystemExit, match='no finished runs'):
        size.points(tmp_path)
    for name, value, num_bytes in (('bits_per_byte', 3.25, 100), ('perplexity', 40.5, 0)):
        test = {name: value, 'num_bytes': num_bytes, 'answers': 0}
        finished(tmp_path / name / '0', 20, **test)
        assert size.points(tmp_path / name)[0] == [(60, 4, value)]
    finished(tmp_path / 'mixed/0', 20, ['expire_span', 'local'], **test)
    with pytest.raises(SystemExit, match='several kinds'):
        size.points(tmp_path / 'mixed')


def finished(folder, memory_size, attention=('expire_span',) * 3, **test):
    """What `experiments.compare` leaves of a seed."""
    folder.mkdir(parents=True)
    numbers = {'memory_size': memory_size, 'state_bytes': 4000, 'test': test}
    (folder / 'numbers.json').write_text(json.dumps(numbers))
    (folder / 'config.json').write_text(json.dumps({'model': {'attention': attention}}))


def test_losses_along_a_text(tmp_path, monkeypatch, capsys):
    """A first token without a loss is left out, and so is what a part lacks; seeds are means."""
    for seed in range(2):
        nats = [None, *(math.log(2) * (1 + seed) for _ in range(4))]
        lines = [json.dumps({'position': n, 'nats': each}) for n, each in enumerate(nats)]
        (tmp_path / f'{seed}.jsonl').write_text('\n'.join(lines))
    (tmp_path / 'short.jsonl').write_text(lines[1])
    one, two, short = (f'{tmp_path}/{name}.jsonl' for name in ('0', '1', 'short'))
    figure = tmp_path / 'figure.png'

    def run(*runs):
        monkeypatch.setattr(sys, 'argv', ['along', '--every=2', f'--output={figure}', *runs])
        along.main()

    run(f'both={one},{two}', f'cut={one}')
    assert capsys.readouterr().out.splitlines() == [
        '| from token | both | cut |',
        '| --- | --- | --- |',
        *(f'| {start} | 1.500 (1.000 - 2.000) | 1.000 |' for start in (0, 2, 4)),
    ]
    assert figure.stat().st_size
    with pytest.raises(SystemExit, match='different texts: 1, 5 tokens'):
        run(f'a={one}', f'b={short}')
