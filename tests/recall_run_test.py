"""Recall of several memories and seeds: what is finished is kept, trainings end when decided, tables."""

import sys

import pytest

from configs import recall
from experiments import short_trainings
from experiments.recall import report, run
from longmem_jax.errors import UsageError


def call(monkeypatch, *arguments):
    """Runs the command."""
    monkeypatch.setattr(sys, 'argv', ['run', *arguments])
    run.main()


@pytest.mark.slow  # compiles a training and two readings
def test_ends_when_enough_is_right_and_repeats_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, 'RECENT', 2)
    monkeypatch.setattr(short_trainings, 'LOOKED', 1)
    arguments = (
        f'--output={tmp_path}', '--seeds=1', '--documents=2', '--distances=16,40', '--enough=0',
        'local', '--', '--config.train.num_steps=9',
    )  # fmt: skip
    call(monkeypatch, *arguments)
    assert 'local, seed 0: 2 steps' in capsys.readouterr().out
    found = report.read(tmp_path / 'local/0')
    assert found.decided and sorted(found.rows) == [16, 40] and len(found.rows[16]) == 7
    assert found.rows[40]['run']['seeds'] == [0]
    assert (tmp_path / 'recall.png').exists()

    call(monkeypatch, *arguments)
    out = capsys.readouterr().out
    assert 'seed 0' not in out and '| `local` | 0 | 2 |' in out
    assert '| look up: its segment of 32 | | | ' in out

    call(
        monkeypatch,
        *arguments[:2],
        '--distances=500',
        *arguments[2:3],
        *arguments[4:],
    )
    out = capsys.readouterr().out
    assert 'steps in' not in out and 'seed 0, distance 500' in out
    assert sorted(report.read(tmp_path / 'local/0').rows) == [16, 40, 500]
    with pytest.raises(UsageError, match='choose another --output'):
        call(monkeypatch, *arguments[:-1], '--config.train.num_steps=8')


def test_the_table_has_reach_steps_and_spread():
    rows = {1024: {'exact_match': 0.5, 'exact_match_reset': 0.1}, 4096: {'exact_match': 0.5}}
    other = {1024: {'exact_match': 1.0, 'exact_match_reset': 0.1}, 4096: {'exact_match': 0.5}}
    runs = {
        name: [report.Run(1500, False, rows), report.Run(300, True, other)]
        for name in ('linear', 'transformer_xl')
    }
    configs = {name: recall.get_config(f'tiny,memory={name}') for name in runs}
    assert report.table(runs, configs, (1024, 4096)).splitlines() == [
        '| memory | reads back | steps | 1,024 | 4,096 |',
        '| --- | --- | --- | --- | --- |',
        '| `linear` | no limit | 1,500*, 300 | 75 (50 - 100) | 50 |',
        '| ... reset |  |  | 10 |  |',
        '| `transformer_xl` | 256 | 1,500*, 300 | 75 (50 - 100) | 50 |',
        '| ... reset |  |  | 10 |  |',
    ]
