"""The speed of recurrent memories: rows in turns, kept in a file, and a run of a tiny layer."""

import json
import os
import shutil

import pytest

from experiments.speed import recurrent

TINY = ('--toy', '--rounds=1')


def test_the_second_is_given_as_a_multiple_of_the_first_round_by_round():
    log = []

    def side(name: str, *milliseconds: float):
        times = iter(milliseconds)

        def step() -> dict[str, float]:
            log.append(name)
            time = next(times)
            return dict(cpu=time, wall=2 * time, loss=0.0, most=1.0)

        return step

    found = recurrent.in_turns(side('a', 2.0, 4.0, 8.0), side('b', 3.0, 6.0, 16.0), 3)
    assert log == ['a', 'b'] * 3
    assert found['ratio'] == {'low': 1.5, 'median': 1.5, 'high': 1.75}
    assert found['base']['cpu'] == {'median': 4.0, 'least': 2.0}
    assert found['this']['wall']['median'] == 12.0


def test_rows_are_chosen_by_kind_or_one_by_one(capsys):
    assert recurrent.chosen('steps/gla,steps/gla') == [('steps', 'gla')]  # not gla_64
    assert len(recurrent.chosen('starts,peers/mamba2')) == len(recurrent.ROWS['starts']) + 1
    with pytest.raises(SystemExit):
        recurrent.main(['--output=nowhere', '--rows=steps/lstm'])
    assert "'steps/lstm': allowed are steps" in capsys.readouterr().err


def test_a_row_is_measured_once_on_one_core(tmp_path, capsys, monkeypatch):
    """The command goes on with rows that are not there, and refuses those of other flags."""
    cores = os.sched_getaffinity(0)
    given = [f'--output={tmp_path}', '--rows=starts/retnet', *TINY]
    found = recurrent.main(given)
    assert os.sched_getaffinity(0) == cores
    row = found['starts']['retnet']
    written = json.loads((tmp_path / recurrent.FILE).read_text())
    assert written.pop('run')['seeds'] == [0] and written == found
    assert row['ratio']['median'] > 0 and row['run']['seeds'] == [0]
    assert '| retnet | ' in capsys.readouterr().out
    monkeypatch.setattr(recurrent, 'MEASURE', {})
    assert recurrent.main(given) == found
    with pytest.raises(SystemExit):
        recurrent.main([*given, '--rounds=2'])
    assert 'was run with --rounds=1' in capsys.readouterr().err


def test_a_peer_that_does_not_run_is_left_out(tmp_path, capsys):
    options = [f'--output={tmp_path}', '--rows=peers/mamba2', f'--python={shutil.which("false")}']
    assert recurrent.main([*options, *TINY])['peers'] == {}
    assert 'Left out: peers/mamba2.' in capsys.readouterr().out
    assert not (tmp_path / recurrent.FILE).exists()


@pytest.mark.parametrize('sizes', [recurrent.TOY, recurrent.FULL], ids=['toy', 'full'])
def test_documents_begin_inside_of_segments(sizes):
    start = recurrent.ours.starts(sizes, recurrent.DOCUMENTS)
    assert start.shape == (sizes.lanes, sizes.segment) and not start[:, 0].any()
    assert (start.sum(1) == recurrent.DOCUMENTS).all()
    assert len({tuple(lane) for lane in start}) == sizes.lanes
    assert recurrent.ours.starts(sizes, 0).shape == (sizes.lanes,)
