"""Recall of several memories and seeds: what is finished is kept, trainings end when decided, tables."""

import sys

import pytest

from configs import recall
from experiments.recall import report, run
from longmem_jax.errors import UsageError


def call(monkeypatch, *arguments):
    """Runs the command."""
    monkeypatch.setattr(sys, 'argv', ['run', *arguments])
    run.main()


@pytest.mark.slow  # compiles a training and two readings
def test_ends_when_enough_is_right_and_repeats_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, 'RECENT', 2)
    monkeypatch.setattr(run, 'LOOKED', 1)
    arguments = (
        f'--output={tmp_path}', '--seeds=1', '--documents=2', '--distances=16,40', '--enough=0',
        'local', '--', '--config.train.num_steps=9',
    )  # fmt: skip
    call(monkeypatch, *arguments)
    assert 'local, seed 0: 2 steps' in capsys.readouterr().out
    found = report.read(tmp_path / 'local/0')
    assert found.decided and [row['distance'] for row in found.rows] == [16, 40]
    assert (tmp_path / 'recall.png').exists()

    call(monkeypatch, *arguments)
    out = capsys.readouterr().out
    assert 'seed 0' not in out and '| `local` | 0 | 2 |' in out
    assert '| look up: its segment of 32 | | | ' in out
    with pytest.raises(UsageError, match='choose another --output'):
        call(monkeypatch, *arguments[:2], '--documents=8', *arguments[3:])


def test_the_table_has_reach_steps_and_spread():
    rows = [{'distance': 1024, 'exact_match': 0.5, 'exact_match_reset': 0.1}]
    other = [{'distance': 1024, 'exact_match': 1.0, 'exact_match_reset': 0.1}]
    runs = {
        name: [report.Run({}, 1500, False, rows), report.Run({}, 300, True, other)]
        for name in ('linear', 'transformer_xl')
    }
    configs = {name: recall.get_config(f'tiny,memory={name}') for name in runs}
    assert report.table(runs, configs).splitlines() == [
        '| memory | reads back | steps | 1,024 |',
        '|---|---|---|---|',
        '| `linear` | no limit | 1,500*, 300 | 75 (50 - 100) |',
        '| ... reset |  |  | 10 |',
        '| `transformer_xl` | 256 | 1,500*, 300 | 75 (50 - 100) |',
        '| ... reset |  |  | 10 |',
    ]
