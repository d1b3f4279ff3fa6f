"""The scoreboard: what is finished is kept, tables and figures of what is there, equal parameters."""

import itertools
import json
import re
from pathlib import Path

import pytest

from experiments.scoreboard import __main__ as command
from experiments.scoreboard import by_size, cells, pictures, rows, speed, table
from longmem_jax.config import checks

SIZES = ('64 x 4', '128 x 8')


def cell(column, seed, **changes):
    """The contents of a finished cell."""
    if column == 'speed':
        time = {'row': 0.01, 'baseline': 0.005, 'ratio': 2.0, 'ratio_min': 1.5, 'ratio_max': 2.5}
        scores = {'train': time, 'generate': time}
    elif column in table.TEXT:
        scores = {'bits/byte': {'kept': 3.0 + seed, 'reset': 4.0, 'protocol': 'all'}}
    else:
        sizes = SIZES if column == 'mqar' else ('16', '64')
        scores = {size: {'size': size, 'kept': 0.5 + seed / 10, 'reset': 0.25} for size in sizes}
    return {
        'scores': scores,
        'state_bytes': 2000,
        'parameters': 1000,
        'positions': 'rotary',
        'flags': ['--config.a=1'],
        'seconds': 100.0,
        'commands': [f'python -m longmem_jax.main --workdir=DIR/{column}'],
        **changes,
    }


def finish(output, column, row, seed, **changes):
    """Writes a finished cell."""
    file = cells.path(output, column, row, seed)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(cell(column, seed, **changes)))


@pytest.fixture
def ran(monkeypatch):
    """Replaces the commands of cells; the list of (column, row, seed, folder of the training)."""
    seen = []

    def score(output, column, row, seed, size, flags):
        seen.append((column.name, row.name, seed))
        return {k: v for k, v in cell(column.name, seed).items() if k != 'seconds'}

    monkeypatch.setattr(cells, '_score', score)
    monkeypatch.setattr(cells, '_speed', score)
    monkeypatch.setattr(cells, 'measure_floors', lambda *given: None)
    return seen


def test_finished_cells_are_not_repeated(tmp_path, ran, capsys):
    finish(tmp_path, 'mqar', 'infini', 0)
    given = [f'--output={tmp_path}', '--rows=infini,linear', '--columns=mqar,stdlib', '--seeds=2']
    command.main(given)
    # Seed by seed and column by column, without the one that was there.
    assert ran == [
        ('mqar', 'linear', 0), ('stdlib', 'infini', 0), ('stdlib', 'linear', 0),
        ('mqar', 'infini', 1), ('mqar', 'linear', 1), ('stdlib', 'infini', 1),
        ('stdlib', 'linear', 1),
    ]  # fmt: skip
    ran.clear()
    command.main(given)
    assert not ran
    assert '| `infini` | 2 | 2.0 |' in capsys.readouterr().out


def test_a_failed_cell_is_told_and_tried_again(tmp_path, ran, monkeypatch, capsys):
    given = [f'--output={tmp_path}', '--rows=local,infini', '--columns=mqar', '--seeds=1']
    works = cells._score

    def fails(output, column, row, *rest):
        if row.name == 'local':
            raise SystemExit('failed: because')
        return works(output, column, row, *rest)

    monkeypatch.setattr(cells, '_score', fails)
    command.main(given)
    assert 'mqar, local, seed 0: failed: because' in capsys.readouterr().out
    assert ran == [('mqar', 'infini', 0)]
    monkeypatch.setattr(cells, '_score', works)
    command.main(given)
    assert ran == [('mqar', 'infini', 0), ('mqar', 'local', 0)]


def test_a_row_has_its_minutes(tmp_path, ran, capsys):
    finish(tmp_path, 'mqar', 'infini', 0, seconds=61.0)
    finish(tmp_path, 'mqar', 'linear', 0, seconds=59.0)
    given = [f'--output={tmp_path}', '--rows=infini,linear', '--columns=copy', '--seeds=1']
    command.main([*given, '--minutes=1'])
    assert ran == [('copy', 'linear', 0)]
    assert 'copy, infini, seed 0: not run: the row has had its 1 minutes' in capsys.readouterr().out
    ran.clear()
    command.main([*given, '--minutes=0'])  # only the table
    assert not ran


def test_only_memories_without_an_end_are_asked_far_away(tmp_path, ran):
    given = [f'--output={tmp_path}', '--rows=transformer_xl,infinity_former,recurrent', '--seeds=1']
    command.main([*given, '--columns=passkey_far,novels'])
    assert ran == [('passkey_far', 'infinity_former', 0), ('passkey_far', 'recurrent', 0)]
    ran.clear()
    command.main([*given, '--columns=novels', '--novels=folder'])
    assert len(ran) == 3


def test_far_away_is_asked_of_the_training_nearby(tmp_path, monkeypatch):
    """One training serves both columns; its commands are shown with DIR."""
    trained, called, measured = [], [], []

    def train(config, variants, flags, seed, folder):
        trained.append((variants, flags, folder))
        result = {'bits_per_byte': 1.0, 'protocol': 'all'}
        return {'test': result, 'reset': result, 'state_bytes': 5, 'ms_per_step': 1.0}

    def call(arguments, log):
        called.append(arguments)
        file = next(a for a in arguments if a.startswith('--output=')).partition('=')[2]
        Path(file).write_text(json.dumps([{'size': '16', 'kept': 1.0}]))

    def floors(config, variants, flags, folder):
        measured.append((flags, folder))
        folder.mkdir(parents=True)
        scores = {'look up: everything': {'exact_match': 1.0}}
        (folder / 'floors.json').write_text(json.dumps({'scores': scores, 'protocol': 'all'}))

    monkeypatch.setattr(cells.compare, 'run', train)
    monkeypatch.setattr(cells.floors, 'measure', floors)
    monkeypatch.setattr(cells, '_call', call)
    command.main(
        [f'--output={tmp_path}', '--rows=infini', '--columns=passkey,passkey_far', '--seeds=1']
        + ['--', '--config.train.num_steps=7']
    )
    assert {folder for *_, folder in trained} == {tmp_path / 'passkey' / 'infini' / '0'}
    assert {variants for variants, *_ in trained} == {'tiny,task=passkey,memory=infini'}
    assert all('--config.train.num_steps=7' in [*flags] for _, flags, _ in trained)
    ((flags, folder),) = measured
    assert (
        folder == tmp_path / 'passkey' / 'floors'
        and flags[-1] == cells.COLUMNS['passkey'].tested['tiny']
    )
    near, far = called
    assert '--noreset' in far and '--noreset' not in near
    done = cells.finished(tmp_path, 'passkey_far', 'infini', 0)
    assert done['scores'] == {'16': {'size': '16', 'kept': 1.0}}
    assert '--workdir=DIR/passkey/infini/0' in done['commands'][0]


def test_the_table_of_what_is_there(tmp_path, capsys):
    for seed in (0, 1):
        finish(tmp_path, 'mqar', 'infini', seed)
    finish(tmp_path, 'mqar', 'local', 0, state_bytes=0)
    finish(tmp_path, 'stdlib', 'infini', 0)
    folder = tmp_path / 'stdlib' / 'floors'
    folder.mkdir()
    floors = {'protocol': 'all of it', 'scores': {'trigram': {'bits_per_byte': 2.5}}}
    (folder / 'floors.json').write_text(json.dumps(floors))
    (folder / 'command.txt').write_text('python --mode=floors\n')
    finish(tmp_path, 'speed', 'infini', 0)
    command.main([f'--output={tmp_path}', '--minutes=0', '--seeds=2'])
    text = capsys.readouterr().out
    assert (tmp_path / 'scoreboard.md').read_text() in text
    assert '| `infini` | 2 | 2.0 | 55 (50 - 60) [25 (25 - 25)] |' in text
    assert '| `local` | 1 | 0.0 | 50 [25] |' in text
    assert '| `infini` | 1 | 2.0 | 3.000 [4.000] |' in text
    assert '| `infini` | 1 | 0.0100 | 2.00 (1.50 - 2.50) |' in text
    assert (
        '| trigram | 2.500 |' in text and '`python --mode=floors`' in text and 'all of it' in text
    )
    assert '- Needles: no row.' in text
    assert '`local` (1 of 2 seeds)' in text
    assert len(re.findall('^- .*: `python -m', text, re.MULTILINE)) == 5
    assert set(json.loads((tmp_path / 'scoreboard.json').read_text())) == {
        'mqar',
        'stdlib',
        'speed',
    }
    for lines in re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE):
        assert len({line.count('|') for line in lines.splitlines()}) == 1


def test_nothing_is_a_table_too(tmp_path):
    command.main([f'--output={tmp_path}', '--minutes=0'])
    assert '## Not run' in (tmp_path / 'scoreboard.md').read_text()


def test_every_row_is_told_apart(tmp_path, monkeypatch):
    """A panel or a labelled line per row; all marks are inside of their panel."""
    every = rows.names()
    for column, row, seed in itertools.product(('mqar', 'copy', 'stdlib'), every, (0, 1)):
        finish(tmp_path, column, row, seed)
    found = table.collect(tmp_path, 2)
    files = pictures.draw(found, tmp_path)
    assert [file.name for file in files] == ['pairs.png', 'distance.png', 'cost.png']
    for function in (pictures.by_pairs, pictures.by_distance):
        titles = [axes.get_title() for axes in function(found).axes if axes.get_visible()]
        assert [title.split('\n')[0] for title in titles] == every
    labels = [label.get_text() for label in pictures.by_cost(found).axes[0].get_yticklabels()]
    assert labels == every[::-1]


@pytest.mark.parametrize('name', rows.names())
def test_parameters_are_equal(name):
    """Within one percent, with the flags that are typed; and the model can be trained."""
    row = rows.row(name, 'tiny', 'mqar')
    assert abs(row.parameters / rows.baseline_parameters('tiny', 'mqar') - 1) < 0.01
    config = rows.config_of(name, 'tiny', 'mqar')
    for flag in row.flags:
        path, _, value = flag.removeprefix('--config.').partition('=')
        *sections, field = path.split('.')
        section = config
        for part in sections:
            section = section[part]
        section[field] = int(value) if value.isdigit() else value
    assert rows.num_parameters(config) == row.parameters
    assert checks.find_faults(config, 1) == []


def test_a_memory_larger_than_the_model_has_the_least_width():
    config = rows.config_of('infini', 'tiny', 'mqar')
    assert rows.equal_width(config, 10) == 1
    assert rows.equal_width(config, rows.num_parameters(config)) == config.model.d_feed_forward


@pytest.mark.parametrize(
    'task, labels',
    [('passkey', ['16', '64', '256']), ('mqar', ['16 x 2', '32 x 4', '64 x 8'])],
)
def test_sizes_are_scored_one_by_one(task, labels):
    data = rows.config_of('local', 'tiny', task).data
    by_label = by_size.settings_by_size(data)
    assert list(by_label) == labels
    field = 'distances' if task == 'passkey' else 'sizes'
    assert [settings[field] for settings in by_label.values()] == [(n,) for n in data.task[field]]


@pytest.mark.parametrize('option', ['--rows=nothing', '--columns=mqar,nothing'])
def test_unknown_names_are_refused(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main([f'--output={tmp_path}', option])
    assert "'nothing': allowed are" in capsys.readouterr().err


def test_times_are_taken_in_turns(monkeypatch):
    """Row and baseline alternate, and the ratio is of the same round."""
    now, called = [0.0], []

    def call(name, milliseconds):
        def timed():
            called.append(name)
            # The machine is ten times slower in the second half of the rounds.
            slow = 10 if len(called) > 2 * 2 * (speed.ROUNDS + 2) / 2 else 1
            now[0] += slow * milliseconds / 1000
            return ()

        return timed

    monkeypatch.setattr(speed.time, 'perf_counter', lambda: now[0])
    calls = {'row': call('row', 6.0), 'baseline': call('baseline', 2.0)}
    found = speed.in_turns(calls, tokens=4, repeats=2)
    assert called[:8] == ['row', 'row', 'baseline', 'baseline'] * 2
    ratios = [found[name] for name in ('ratio', 'ratio_min', 'ratio_max')]
    assert ratios == pytest.approx([3, 3, 3])
