"""The curve of MQAR: cells are kept, all rates are shown, and a curve has the one that learned best."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import mqar_curve
from experiments.leaderboard import rows
from longmem_jax.config import checks
from longmem_jax.errors import UsageError

SIZES = ('32 x 4', '64 x 8')


@pytest.fixture
def ran(monkeypatch):
    """Replaces training and tests; the list of (flags, seeds)."""
    seen = []

    def scores(row, column, config, size, seeds, folder, given):
        seen.append((row.flags, seeds))
        rate = config.optimizer.learning_rate
        for seed in seeds:
            yield (
                seed,
                {
                    # The higher rate is better on the tests, the lower one in training.
                    'scores': {'mqar': {s: {'kept': 100 * rate + seed / 100} for s in SIZES}},
                    'training': [0.0, *[1 - rate] * 4],
                    'steps': 100,
                    'state_bytes': 10 * config.model.d_model,
                    'parameters': row.parameters,
                    'flags': row.flags,
                },
            )

    monkeypatch.setattr(mqar_curve.measure, 'scores', scores)
    return seen


def given(path, *more):
    return [f'--output={path}', '--rows=infini,linear', '--rates=1e-3,2e-3', '--tiny', *more]


@pytest.mark.slow
def test_finished_cells_are_not_repeated(tmp_path, ran, capsys):
    mqar_curve.main(given(tmp_path, '--seeds=1', '--widths=16,32'))
    assert len(ran) == 8 and all(seeds == [0] for _, seeds in ran)
    flags, _ = ran[0]
    assert flags[:3] == [
        '--config=configs/mqar.py:tiny,width=16,memory=infini',
        '--config.optimizer.learning_rate=0.001',
        '--config.model.token_shift=half',
    ]
    assert '--config.model.linear.shift=none' in ran[4][0], 'one view of the token before'
    ran.clear()
    mqar_curve.main(given(tmp_path, '--seeds=2', '--widths=16'))
    assert [seeds for _, seeds in ran] == [[1]] * 4
    ran.clear()
    mqar_curve.main(given(tmp_path, '--seeds=2', '--rows='))
    assert not ran
    written = json.loads((tmp_path / 'mqar_curve.json').read_text())
    assert len(written) == 12 and all(cell['run']['seeds'] == [cell['seed']] for cell in written)
    line = '| `infini` | 16 | **0.001** | 2 | 100 | 0.2 |'
    text = (tmp_path / 'mqar_curve.md').read_text()
    assert line in text and line in capsys.readouterr().out
    assert '| `infini` | 16 | 0.002 | 2 |' in text and '10.5 (10.0 - 11.0)' in text
    assert text.rstrip().endswith('| 25.0 | 12.5 |'), 'chance is the last line'


def test_the_page_has_the_published_numbers():
    folder = Path(rows.__file__).parent
    page = folder / 'mqar_curve.md'
    for line in mqar_curve.table(mqar_curve.collect(folder)).splitlines():
        assert line in page.read_text(), f'put this line into {page}: {line}'


def test_cells_that_were_brought_are_not_repeated(tmp_path, ran):
    first, second = tmp_path / 'first', tmp_path / 'second'
    mqar_curve.main(given(first, '--seeds=1', '--widths=16'))
    second.mkdir()
    (first / 'mqar_curve.json').rename(second / 'mqar_curve.json')
    ran.clear()
    mqar_curve.main(given(second, '--seeds=2', '--widths=16'))
    assert [seeds for _, seeds in ran] == [[1]] * 4
    assert all(list(cells) == [0, 1] for cells in mqar_curve.collect(second).values())


def test_a_seed_that_one_rate_alone_has_does_not_choose_it():
    def cells(*ends):
        return {seed: {'training': [end]} for seed, end in enumerate(ends)}

    low, high = (mqar_curve.Point('linear', 16, rate) for rate in (1e-3, 1e-2))
    assert [*mqar_curve.chosen({low: cells(0.5), high: cells(0.4, 1.0)})] == [low]
    assert [*mqar_curve.chosen({low: cells(0.5, 0.1), high: cells(0.4, 1.0)})] == [high]


def test_a_curve_has_the_rate_that_learned_best(tmp_path, ran, made_figures):
    mqar_curve.main(given(tmp_path, '--seeds=2', '--widths=32,16'))
    found = mqar_curve.collect(tmp_path)
    assert [point.rate for point in mqar_curve.chosen(found)] == [1e-3] * 4
    panels = [axes for axes in made_figures[-1].axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == list(SIZES)
    lines = {line.get_label(): line.get_xydata() for line in panels[0].lines}
    for name in ('infini', 'linear'):
        np.testing.assert_allclose(lines[name], [[160, 10.5], [320, 10.5]])


def test_a_failed_point_does_not_stop_the_others(tmp_path, ran, monkeypatch, capsys):
    works = mqar_curve.measure.scores

    def fails(row, *rest):
        if row.name == 'infini':
            raise ValueError('because')
        return works(row, *rest)

    monkeypatch.setattr(mqar_curve.measure, 'scores', fails)
    mqar_curve.main(given(tmp_path, '--seeds=1', '--widths=16'))
    said = capsys.readouterr().out
    assert 'infini, 16, 0.001: failed' in said and 'because' in said and len(ran) == 2


def test_cells_of_other_flags_are_refused(tmp_path, ran):
    mqar_curve.main(given(tmp_path, '--seeds=1', '--widths=16'))
    with pytest.raises(UsageError, match='choose another --output'):
        mqar_curve.main(
            given(tmp_path, '--seeds=2', '--widths=16', '--', '--config.train.num_steps=9')
        )
    assert len(ran) == 4


def test_unknown_rows_and_empty_folders(tmp_path, capsys):
    with pytest.raises(SystemExit):
        mqar_curve.main([f'--output={tmp_path}', '--rows=infinity'])
    assert "'infinity': allowed are" in capsys.readouterr().err
    mqar_curve.main([f'--output={tmp_path}', '--rows='])
    assert 'no finished cells' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize('size', ['tiny', ''])
def test_every_memory_goes_into_every_width(size):
    for name in rows.names():
        for width in mqar_curve.WIDTHS[size]:
            _, config = mqar_curve.prepared(mqar_curve.Point(name, width, 1e-3), size, [])
            assert checks.find_problems(config, 1) == [], f'{name}, width {width}'


@pytest.mark.slow
def test_a_cell_is_trained_and_tested(tmp_path):
    small = [
        '--config.train.num_steps=2', '--config.train.num_lanes=2',
        '--config.evaluate.num_lanes=4', '--config.data.task.eval_documents=4',
    ]  # fmt: skip
    arguments = [
        '--rows=linear',
        '--rates=1e-3',
        '--widths=16',
        '--seeds=1',
        '--tiny',
        '--',
        *small,
    ]
    mqar_curve.main([f'--output={tmp_path}', *arguments])
    (cell,) = json.loads((tmp_path / 'mqar_curve.json').read_text())
    assert (cell['row'], cell['width'], cell['rate'], cell['seed']) == ('linear', 16, 1e-3, 0)
    assert list(cell['scores']['mqar']) == ['64 x 8', '128 x 16', '256 x 32', '256 x 60']
    assert all(0 <= score['kept'] <= 1 for score in cell['scores']['mqar'].values())
    assert cell['steps'] == 2 and cell['state_bytes'] > 0 and len(cell['training']) == 1
    assert (tmp_path / 'mqar_curve.png').exists()
    assert not (tmp_path / 'linear/16/0.001/0.msgpack').exists()
