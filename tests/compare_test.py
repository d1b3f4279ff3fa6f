"""The table and the figure of compared runs, and the updates whose speed is compared."""

import itertools
import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import compare, compare_figures
from experiments.layer_memories import speed
from longmem_jax.evaluation.result import Result


def numbers(seed: int, **changes):
    """The numbers of one run."""
    result = {
        'bits_per_byte': 2.0 + seed,
        'perplexity': 4.0,
        'num_bytes': 10.0,
        'answers': 0.0,
        'protocol': 'all',
    }
    return {
        'test': result,
        'reset': {**result, 'bits_per_byte': 3.0},
        'bleu': None,
        'parameters': 1000,
        'state_bytes': 2000,
        'memory_size': 5.0,
        'ms_per_step': 10.0,
        'peak_mb': 100.0,
        'validation': [{'step': 1, 'bits_per_byte': 2.0}, {'step': 2, 'bits_per_byte': 1.0 + seed}],
        **changes,
    }


def cells(table: str) -> list[list[str]]:
    """Cells by line, without the line below the headings."""
    lines = table.splitlines()
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[:1] + lines[2:]]


def test_seeds_are_joined():
    rows = cells(compare.table({'one': [numbers(0), numbers(1)]}))
    assert rows[0][:3] == ['run', 'bits/byte', 'bits/byte, reset']
    assert rows[1][:3] == ['one', '2.500 (2.000 - 3.000)', '3.000']
    assert len(rows[0]) == len(rows[1])


def test_the_result_without_memory_is_found_by_its_field():
    sums = dict(nll=2.0, scored=1, num_bytes=1.0)
    kept, reset = (Result('test', sums, '', memory) for memory in ('kept', 'reset'))
    written = {'step': 3, 'test': kept.as_json(), 'whatever': reset.as_json(), 'bleu': 3.0}
    assert compare.without_memory(written) == reset.as_json()
    assert compare.without_memory({'test': kept.as_json(), 'bleu': 3.0}) is None


def test_translations_have_bleu():
    rows = cells(compare.table({'one': [numbers(0, reset=None, bleu=17.25)]}))
    assert rows[0][:3] == ['run', 'bits/byte', 'BLEU'] and rows[1][:3] == ['one', '2.000', '17.250']
    assert len(rows[0]) == len(rows[1])


def test_a_mean_without_some_seeds_says_so():
    rows = cells(compare.table({'one': [numbers(0, bleu=17.0), numbers(1, bleu=None)]}))
    assert rows[1][rows[0].index('BLEU')] == '17.000, 1 of 2 seeds'
    rows = cells(compare.table({'one': [numbers(0), numbers(1, memory_size=None)]}))
    assert rows[1][rows[0].index('memory size')] == '5, 1 of 2 seeds'


def ran(folder, results, lines):
    """The numbers of a finished run with these results and metrics."""
    folder.mkdir(parents=True)
    (folder / 'results.json').write_text(json.dumps(results))
    (folder / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    return compare.run('c.py', '', [], 0, folder, together=[0])


def test_agents_have_rewards(tmp_path):
    """Without a score of texts, without a result for a memory that is reset."""
    test = {'reward': 0.75, 'success': 0.8, 'episodes': 256, 'protocol': 'new episodes'}
    lines = [
        {'step': 1, 'group': 'train', 'reward': 0.5, 'memory/memory_size': 7.0},
        {'step': 1, 'group': 'validation', 'reward': 0.5, 'length': 9.0},
    ]
    results = dict(test=test, test_greedy=test, parameters=1000, state_bytes_per_lane=2000)
    found = ran(tmp_path / 'agent', results, lines)
    assert found['validation'] == [{'step': 1, 'reward': 0.5}]
    rows = cells(compare.table({'one': [found]}))
    assert rows[0][:5] == ['run', 'reward', 'parameters', 'memory size', 'state, kB per lane']
    assert rows[1][:5] == ['one', '0.750', '1,000', '7', '2']
    compare_figures.draw({'one': [found]}, tmp_path / 'figure.png')


def test_lifelong_learners_have_accuracy_and_forgetting(tmp_path):
    """A run of a single task forgets nothing; it has a gap in that column."""
    test = {'accuracy': 0.5, 'answers': 20, 'protocol': 'mean of the tasks'}
    results = dict(test=test, parameters=1000, memory_bytes=5000, test_seconds=1.25)
    transfer = {'transfer': {'forgetting': 0.125}}
    runs = {
        'all': [ran(tmp_path / 'all', results | transfer, [])],
        'one task': [ran(tmp_path / 'one', results, [])],
    }
    heads, all_tasks, one_task = cells(compare.table(runs))
    assert heads[:6] == [
        'run', 'accuracy, %', 'forgetting, %', 'parameters', 'memory, kB', 'test, s',
    ]  # fmt: skip
    assert all_tasks[:6] == ['all', '50.000', '12.500', '1,000', '5', '1.2']
    assert one_task[2] == '-' and len(one_task) == len(heads)
    compare_figures.draw(runs, tmp_path / 'figure.png')


@pytest.mark.parametrize('speeds', [{}, {'tokens_per_s': {'512': 1000.0, '4096': 10.0}}])
def test_every_run_has_a_look_of_its_own(tmp_path, made_figures, speeds):
    """More runs than colours; generation is drawn where it was measured."""
    runs = {f'run {n}': [numbers(0, **speeds), numbers(1, **speeds)] for n in range(14)}
    compare_figures.draw(runs, tmp_path / 'figure.png')
    assert (tmp_path / 'figure.png').stat().st_size
    panels = made_figures[0].axes
    assert len(panels) == 1 + bool(speeds)
    for panel in panels:
        looks = [(line.get_color(), line.get_linestyle()) for line in panel.lines]
        assert len(looks) == 14
        assert all(one != other for one, other in itertools.combinations(looks, 2))
    heads = cells(compare.table(runs))[0]
    assert ('tokens/s after 4,096' in heads) == bool(speeds)


def finished(folder, label, values, sizes):
    """Folders of finished runs of a sweep, two seeds each; the score is 2 or 3 bits per byte."""
    for value, size in zip(values, sizes, strict=True):
        for seed in range(2):
            path = folder / label / value / str(seed)
            path.mkdir(parents=True)
            (path / 'numbers.json').write_text(json.dumps(numbers(seed, memory_size=size + seed)))


def drawn(figure):
    """Points of every line of a figure: label to (x, y, bars)."""
    (axes,) = figure.axes
    lines = {}
    for container in axes.containers:
        line, _, bars = container
        segments = [bar.get_segments() for bar in bars]
        lines[container.get_label()] = (*line.get_data(), segments)
    return lines


def called(monkeypatch, tmp_path, *arguments):
    """Runs the command, in which nothing may be trained."""
    monkeypatch.setattr(compare.subprocess, 'Popen', lambda *given, **_: pytest.fail('trained'))
    given = ['compare', '--config=c.py', f'--output={tmp_path}', '--seeds=2', *arguments]
    monkeypatch.setattr(compare.sys, 'argv', given)
    compare.main()


def test_score_by_size_of_the_memory(tmp_path, monkeypatch, capsys, made_figures):
    """Finished folders are read, not run again; points are sorted by size, with seeds as bars."""
    finished(tmp_path, 'spans', ['w=1e-4', 'w=1e-6'], [4.0, 32.0])
    finished(tmp_path, 'cache', ['w=1e-4', 'w=1e-6'], [64.0, 16.0])
    called(
        monkeypatch, tmp_path, '--sweep=w=1e-4,1e-6', f'--by_size={tmp_path / "f.png"}',
        'spans', 'cache: tiny,memory=cache',
    )  # fmt: skip
    (figure,) = made_figures
    lines = drawn(figure)
    assert list(lines) == ['spans', 'cache']
    for label, sizes in (('spans', [4.5, 32.5]), ('cache', [16.5, 64.5])):
        x, y, (x_bars, y_bars) = lines[label]
        assert list(x) == sizes and list(y) == [2.5, 2.5]
        np.testing.assert_allclose(x_bars[0][:, 0], [sizes[0] - 0.5, sizes[0] + 0.5])
        np.testing.assert_allclose(y_bars[0][:, 1], [2.0, 3.0])
    assert figure.axes[0].get_xlabel() == 'mean size of the memory'
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('|')]
    labels = [row[0] for row in cells('\n'.join(lines))[1:]]
    assert labels == ['spans, w 1e-4', 'spans, w 1e-6', 'cache, w 1e-4', 'cache, w 1e-6']


def test_scores_of_every_seed_are_saved(tmp_path, monkeypatch):
    """With the run of each, and beside them the floors and the run that wrote the file."""
    rules = {'n-grams of 1': {'bits_per_byte': 5.0}}
    measured = {'scores': rules, 'protocol': ''}
    monkeypatch.setattr(compare.floors, 'measure', lambda *_: measured)
    for seed in range(2):
        path = tmp_path / 'a_row' / str(seed)
        path.mkdir(parents=True)
        run = {'seeds': [seed], 'commit': 'abc'}
        (path / 'numbers.json').write_text(json.dumps(numbers(seed, run=run)))
    called(monkeypatch, tmp_path, '--floors', f'--save={tmp_path / "all.json"}', 'a row: tiny')
    saved = json.loads((tmp_path / 'all.json').read_text())
    assert saved.pop('run')['seeds'] == [0, 1] and saved.pop('floors') == rules
    assert list(saved) == ['a row'] and list(saved['a row']) == ['0', '1']
    second = saved['a row']['1']
    assert second['run'] == {'seeds': [1], 'commit': 'abc'} and second['state_bytes'] == 2000
    assert second['test'] == second['reset'] == {'bits_per_byte': 3.0, 'perplexity': 4.0}


@pytest.mark.parametrize('flags, together', [([], ()), (['--together'], [0, 1])])
def test_a_swept_field_is_trained_with_each_value(tmp_path, monkeypatch, flags, together):
    trained = []
    monkeypatch.setattr(compare, 'run', lambda *given: trained.append(given) or numbers(0))
    given = [
        'compare',
        'cache: tiny --config.a=1',
        '--config=c.py',
        f'--output={tmp_path}',
        '--seeds=2',
        *flags,
    ]
    monkeypatch.setattr(compare.sys, 'argv', [*given, '--sweep=model.w=8,16', '--', '--config.b=2'])
    compare.main()
    assert [seed for *_, seed, _, _ in trained] == [0, 1, 0, 1]
    assert all(seeds == together for *_, seeds in trained)
    for value, (config, variants, flags, seed, folder, _) in zip(
        (8, 8, 16, 16), trained, strict=True
    ):
        assert (config, variants) == ('c.py', 'tiny')
        assert flags == ['--config.a=1', '--config.b=2', f'--config.model.w={value}']
        assert folder == tmp_path / 'cache' / f'model.w={value}' / str(seed)


def test_score_by_value_of_evaluation(tmp_path, monkeypatch, capsys, made_figures):
    """One training per seed serves all values; each value is evaluated once."""
    finished(tmp_path, 'spans', [''], [4.0])
    commands = []

    def evaluate(command, **_):
        commands.append(command)
        value = int(command[-1].rpartition('=')[2])
        output = next(part for part in command if part.startswith('--output=')).partition('=')[2]
        score = {**numbers(0)['test'], 'bits_per_byte': 3.0 - value / 100}
        content = {'step': 1, 'test': score, 'reset': score, 'memory_size': value / 2}
        Path(output).write_text(json.dumps(content))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compare.subprocess, 'run', evaluate)
    sweep = '--sweep=evaluate.model.expire_span.limit=64,16'
    for expected in (4, 0):  # two values and two seeds; then everything is there
        commands.clear()
        called(
            monkeypatch, tmp_path, sweep, f'--by_value={tmp_path / "f.png"}', 'spans: tiny', '--',
            '--config.train.num_steps=5',
        )  # fmt: skip
        assert len(commands) == expected
        x, y, _ = drawn(made_figures.pop())['spans']
        assert not made_figures
        assert list(x) == [16, 64] and np.allclose(y, [2.84, 2.36])
        if expected:
            assert commands[1][-2:] == [
                '--config.train.num_steps=5', '--config.evaluate.model.expire_span.limit=64',
            ]  # fmt: skip
            assert '--config.data.seed=1' in commands[1]
    rows = cells('\n'.join(line for line in capsys.readouterr().out.splitlines() if line[0] == '|'))
    assert [row[0] for row in rows[-2:]] == ['spans, limit 64', 'spans, limit 16']


def test_floors_are_measured_once_below_the_table(tmp_path, monkeypatch, capsys, made_figures):
    finished(tmp_path, 'spans', [''], [4.0])
    commands = []

    def measure(command, **_):
        commands.append(command)
        scores = {'trigram': {'bits_per_byte': 2.25, 'loss': 1.0, 'perplexity': 7.0}}
        content = {'split': 'test', 'answers': 0, 'protocol': 'all of it', 'scores': scores}
        (tmp_path / 'spans' / '0' / 'floors' / 'floors.json').write_text(json.dumps(content))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compare.floors.subprocess, 'run', measure)
    for _ in range(2):
        given = ['--floors', 'spans: tiny --config.a=1', '--', '--config.b=2']
        called(monkeypatch, tmp_path, *given)
        assert not made_figures
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == 'all of it'
        rows = cells('\n'.join(lines[-5:-2]))
        assert rows == [
            ['without a learned memory', 'bits/byte', 'perplexity'],
            ['trigram', '2.250', '7.000'],
        ]
    (command,) = commands
    assert '--config=c.py:tiny' in command and '--mode=floors' in command
    # Another run or seed has floors of its own.
    assert f'--workdir={tmp_path}/spans/0/floors' in command
    assert command[-2:] == ['--config.a=1', '--config.b=2'] and '--config.data.seed=0' in command


def test_floors_of_tasks_are_in_percent():
    scores = {'counts: the question': {'exact_match': 0.001, 'accuracy': 0.4083}}
    text = compare.floors.table({'scores': scores, 'protocol': 'all'})
    assert cells('\n'.join(text.splitlines()[:3]))[1] == ['counts: the question', '0.100', '40.830']


@pytest.mark.parametrize('text', ['w', 'w=', '=1', 'w=1,,2', 'w=1,1'])
def test_sweeps_are_refused_before_anything_runs(text, tmp_path, monkeypatch, capsys):
    given = ['compare', 'a', '--config=c', f'--output={tmp_path}', f'--sweep={text}']
    monkeypatch.setattr(compare.sys, 'argv', given)
    monkeypatch.setattr(compare, 'run', lambda *given: pytest.fail('a run began'))
    with pytest.raises(SystemExit):
        compare.main()
    assert '--sweep' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['512,x', '', '0', '512,-4'])
def test_contexts_are_refused_before_anything_runs(text, tmp_path, monkeypatch, capsys):
    given = ['compare', 'a', '--config=c', f'--output={tmp_path}', f'--contexts={text}']
    monkeypatch.setattr(compare.sys, 'argv', given)
    monkeypatch.setattr(compare, 'run', lambda *given: pytest.fail('a run began'))
    with pytest.raises(SystemExit):
        compare.main()
    assert '--contexts' in capsys.readouterr().err


def test_updates_of_rows_are_those_of_the_table():
    """Moments and values of unread rows do not change."""
    random = np.random.default_rng(0)
    tables = [random.random((50, 4)).astype(np.float32) for _ in range(3)]
    slots = jnp.asarray(random.integers(0, 30, (40,)), jnp.int32)
    rows = jnp.asarray(random.normal(size=(40, 4)), jnp.float32)
    dense, some = (
        update(tuple(jnp.asarray(table) for table in tables), slots, rows)
        for update in (speed.dense_update, speed.rows_update)
    )
    read = np.isin(np.arange(50), slots)
    for old, whole, part in zip(tables, dense, some, strict=True):
        np.testing.assert_allclose(part[read], whole[read], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(part[~read], old[~read])
    assert jax.tree.all(jax.tree.map(lambda a: np.isfinite(a).all(), some))


def test_seeds_together_are_trained_by_one_process(tmp_path, monkeypatch):
    """Folders of all seeds, one process; nothing is said about the memory of one seed."""
    started = []

    def train(module, given, folder):
        started.append((module, given))
        for seed in range(2):
            path = folder / str(seed)
            path.mkdir(exist_ok=True)
            result = {**numbers(seed)['test'], 'memory': 'kept'}
            content = dict(test=result, parameters=1, state_bytes_per_lane=2)
            (path / 'results.json').write_text(json.dumps(content))
            lines = [{'step': 1, 'group': 'train', 'memory/memory_size': 3.0 + seed}]
            (path / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))

    monkeypatch.setattr(compare, '_process', train)
    found = [compare.run('c.py', 'tiny', [], n, tmp_path / str(n), range(2)) for n in range(2)]
    arguments = ['--config=c.py:tiny', f'--workdir={tmp_path}', '--seeds=0,1,']
    assert started == [('experiments.trainings', arguments)]
    assert [numbers['memory_size'] for numbers in found] == [3.0, 4.0]
    assert all(np.isnan(numbers['peak_mb']) for numbers in found)


@pytest.mark.parametrize(
    'given',
    [
        ('c.py', 'tiny,memory=infini', ['--config.a=/x']),
        ('other.py', 'tiny', ['--config.a=/x']),
        ('c.py', 'tiny', ['--config.a=/x', '--config.b=1']),
    ],
)
def test_a_label_whose_run_was_another_one_is_refused(given, tmp_path):
    """Its numbers would be shown as those of what is asked for."""
    known = numbers(0, flags=['c:tiny', '--config.a=PATH'])
    (tmp_path / 'numbers.json').write_text(json.dumps(known))
    assert compare.run('c.py', 'tiny', ['--config.a=/y'], 0, tmp_path) == known  # data may be moved
    with pytest.raises(SystemExit, match=r'was run with c:tiny .*, not with .* another --output'):
        compare.run(*given, 0, tmp_path)


def test_two_runs_have_two_labels(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        called(monkeypatch, tmp_path, 'a row: tiny', 'a_row: tiny,memory=infini')
    assert 'each needs a label and a folder of its own' in capsys.readouterr().err


def test_a_training_that_fails_says_why(tmp_path):
    with pytest.raises(SystemExit, match=r'failed: .*\nUsageError: .*nosuch'):
        compare.run('nosuch', 'tiny', [], 0, tmp_path)


def test_a_sweep_names_the_value_that_is_best_on_validation():
    """Of texts the least bits, of tasks the most answers; nothing where nothing was validated."""

    def seeds(name, *last, **test):
        return [
            {'test': test, 'validation': [{name: 0.5}, {name: value}]} for value in last
        ]  # fmt: skip

    text = {
        '1e-4': seeds('bits_per_byte', 3.0, 2.0, num_bytes=1),
        '1e-3': seeds('bits_per_byte', 1.0, 3.5, num_bytes=1),
    }
    assert compare.best_value(text) == '1e-3 is best on validation: 2.25 bits/byte'
    task = {
        '1e-4': seeds('accuracy', 0.25, answers=1, accuracy=0),
        '1e-3': seeds('accuracy', 0.5, answers=1, accuracy=0),
    }
    assert compare.best_value(task).startswith('1e-3 is best on validation: 0.5')
    task['1e-5'] = [{'test': {}, 'validation': []}]
    assert compare.best_value(task) == ''
