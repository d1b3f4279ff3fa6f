"""The leaderboard: what is finished is kept, tables and figures of what is there, equal parameters."""

import itertools
import json
import pathlib
import re
import shutil

import pytest
from flax.serialization import msgpack_serialize

from configs import leaderboard
from experiments.leaderboard import __main__ as command
from experiments.leaderboard import cells, columns, measure, pages, pictures, rows, speed, table
from longmem_jax.config import checks, overrides
from longmem_jax.errors import UsageError

SIZES = {'mqar': ('64 x 4', '128 x 8'), 'surface': ('64', '4096'), 'recall': ('16', '64')}
SIZES |= dict.fromkeys(('swaps', 'state'), ('1x', '4x', '16x'))


def cell(column, seed, **changes):
    """The contents of a finished cell."""
    names = columns.COLUMNS[column].titles
    if column == 'speed':
        time = {'row': 0.01, 'baseline': 0.005, 'ratio': 2.0, 'ratio_min': 1.5, 'ratio_max': 2.5}
        scores = {'speed': {'train': time, 'generate': time}}
    elif columns.COLUMNS[column].scored == columns.BITS:
        scores = {column: {'bits/byte': {'kept': 3.0 + seed, 'reset': 4.0, 'protocol': 'all'}}}
    else:
        score = {'answers': 8, 'kept': 0.5 + seed / 10, 'reset': 0.25}
        scores = {name: dict.fromkeys(SIZES[column], score) for name in names}
    return {
        'scores': scores,
        'steps': 100 + 50 * seed,
        'state_bytes': 2000,
        'parameters': 1000,
        'positions': 'rotary',
        'flags': ['--config.a=1'],
        'seconds': 100.0,
        **changes,
    }


@pytest.fixture
def ran(monkeypatch):
    """Replaces what is measured; the list of (column, row, seeds)."""
    seen = []

    def scores(row, column, config, size, seeds, folder, given):
        seen.append((column.name, row.name, seeds))
        for seed in seeds:
            yield seed, cell(column.name, seed)

    monkeypatch.setattr(command.measure, 'scores', scores)
    monkeypatch.setattr(command.measure, 'config_of', lambda *given: None)
    monkeypatch.setattr(rows, 'row', lambda name, *given: rows.Row(name, [], 1000, 'rotary'))
    monkeypatch.setattr(command, '_floors', lambda *given: None)
    return seen


def test_finished_cells_are_not_repeated(tmp_path, ran, capsys):
    cells.save(tmp_path, 'mqar', 'infini', 0, cell('mqar', 0))
    given = [f'--output={tmp_path}', '--rows=infini,linear', '--columns=mqar,stdlib', '--seeds=2']
    command.main(given)
    # The seeds of a row share what is compiled.
    assert ran == [
        ('mqar', 'infini', [1]), ('mqar', 'linear', [0, 1]),
        ('stdlib', 'infini', [0, 1]), ('stdlib', 'linear', [0, 1]),
    ]  # fmt: skip
    ran.clear()
    command.main(given)
    assert not ran
    assert '| `infini` | 2 | 100 - 150 | 2.0 |' in capsys.readouterr().out


def test_a_cell_is_not_that_of_other_settings(tmp_path, ran):
    given = [f'--output={tmp_path}', '--rows=infini', '--columns=mqar', '--seeds=1']
    command.main([*given, '--', '--config.model.infini.rule=delta'])
    command.main([*given, '--', '--config.model.infini.rule=delta'])
    assert len(ran) == 1
    with pytest.raises(UsageError, match='seed 0: was run with --config.*, not with no flags'):
        command.main(given)
    # Nor are those of other rows and columns, and of the other size: they stand in one table.
    with pytest.raises(UsageError, match='not with no flags'):
        command.main([f'--output={tmp_path}', '--rows=linear', '--columns=stdlib'])
    with pytest.raises(UsageError, match='not with --full --config'):
        command.main([*given, '--full', '--', '--config.model.infini.rule=delta'])
    assert len(ran) == 1


def test_a_begun_seed_of_other_settings_is_refused(tmp_path):
    file = tmp_path / '0.msgpack'
    file.write_bytes(msgpack_serialize({'steps': 2, 'given': ['--config.train.num_steps=2']}))
    assert measure._begun(file, ['--config.train.num_steps=2'])['steps'] == 2
    with pytest.raises(UsageError, match='num_steps=2, not with no flags'):
        measure._begun(file, [])
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UsageError, match='is damaged'):
        measure._begun(file, [])


def test_floors_take_the_flags_of_data_alone(tmp_path, monkeypatch):
    """The model of the floors has no section of the row that a flag is for."""
    monkeypatch.setattr(measure, 'floors', lambda column, config, size: str(config.data.task.sizes))
    flags = ['--config.model.delta.gate=none', '--config.data.task.sizes=((32,3),)']
    options = command.parse([f'--output={tmp_path}', '--rows=delta_net', '--', *flags])
    command._floors(options, columns.COLUMNS['mqar'])
    assert cells.finished(tmp_path, 'mqar', cells.FLOORS, 0)['scores'] == '((32, 3),)'
    options = command.parse([f'--output={tmp_path}', '--rows=delta_net'])
    with pytest.raises(UsageError, match='floors, mqar: was run with .--config.data'):
        command._floors(options, columns.COLUMNS['mqar'])


def test_published_cells_are_taken(tmp_path, ran):
    """What is in leaderboard.json counts as finished, without the files of its cells."""
    command.main([f'--output={tmp_path / "a"}', '--rows=infini', '--columns=mqar', '--seeds=2'])
    (tmp_path / 'b').mkdir()
    shutil.copy(tmp_path / 'a' / cells.FILE, tmp_path / 'b')
    ran.clear()
    command.main([f'--output={tmp_path / "b"}', '--rows=infini', '--columns=mqar', '--seeds=3'])
    assert ran == [('mqar', 'infini', [2])]
    assert sorted(table.collect(tmp_path / 'b')['mqar']['infini']) == [0, 1, 2]


def test_cells_of_another_machine_are_compared(tmp_path, ran, capsys):
    theirs = tmp_path / 'theirs.json'
    there = cell('mqar', 0)
    there['scores']['mqar']['64 x 4'] = dict(there['scores']['mqar']['64 x 4'], kept=0.9)
    theirs.write_text(
        json.dumps({'run': {}, 'mqar': {'linear': {'0': there, '1': cell('mqar', 1)}}})
    )
    arguments = [f'--output={tmp_path / "here"}', '--columns=mqar', '--rows=linear', '--seeds=2']
    command.main([*arguments, f'--compare={theirs}'])
    said = capsys.readouterr().out
    assert 'mqar, linear, seed 0: 1 of 2 scores are the same\n  mqar, 64 x 4: 0.5 here, 0.9' in said
    assert 'mqar, linear, seed 1: 2 of 2 scores are the same' in said
    with pytest.raises(SystemExit):
        command.main([*arguments, '--compare=/nowhere.json'])


def test_a_failed_cell_is_told_and_tried_again(tmp_path, ran, monkeypatch, capsys):
    given = [f'--output={tmp_path}', '--rows=local,infini', '--columns=mqar', '--seeds=1']
    works = command.measure.scores

    def fails(row, *rest):
        if row.name == 'local':
            raise ValueError('because')
        return works(row, *rest)

    monkeypatch.setattr(command.measure, 'scores', fails)
    assert command.main(given) == 1
    told = capsys.readouterr().out
    assert 'mqar, local: failed' in told and 'because' in told
    assert ran == [('mqar', 'infini', [0])]
    monkeypatch.setattr(command.measure, 'scores', works)
    command.main(given)
    assert ran == [('mqar', 'infini', [0]), ('mqar', 'local', [0])]


def test_a_row_has_its_minutes(tmp_path, ran, capsys):
    cells.save(tmp_path, 'mqar', 'infini', 0, cell('mqar', 0, seconds=61.0))
    cells.save(tmp_path, 'mqar', 'linear', 0, cell('mqar', 0, seconds=59.0))
    cells.save(tmp_path, 'recall', 'linear', 0, cell('recall', 0, seconds=61.0))  # old
    given = [f'--output={tmp_path}', '--rows=infini,linear', '--columns=surface', '--seeds=1']
    command.main([*given, '--minutes=1'])
    assert ran == [('surface', 'linear', [0])]
    assert 'surface, infini: not run: the row has had its 1 minutes' in capsys.readouterr().out
    ran.clear()
    command.main([*given, '--minutes=0'])  # only the table
    assert not ran


def test_novels_need_a_folder(tmp_path, ran, capsys):
    given = [f'--output={tmp_path}', '--rows=local', '--seeds=1', '--columns=novels']
    command.main(given)
    assert not ran and 'novels: not run: no --novels=FOLDER' in capsys.readouterr().out
    command.main([*given, '--novels=folder'])
    assert ran == [('novels', 'local', [0])]


# One layer, two steps and few documents: the programs are real.
SMALL = [
    '--config.model.num_layers=1', '--config.train.num_steps=2', '--config.train.num_lanes=2',
    '--config.evaluate.num_lanes=4', '--config.data.task.eval_documents=4',
    '--config.model.attention=linear,', '--config.model.feed_forward=dense,',
]  # fmt: skip


@pytest.mark.slow
def test_a_surface_is_taken_up_where_it_was_left(tmp_path, monkeypatch, capsys):
    """Trained once, and every test is made once; rules are beside it."""
    monkeypatch.setattr(columns, 'DISTANCES', (64, 80, 112))
    monkeypatch.setattr(columns, 'FAR', 80)
    monkeypatch.setattr(columns, 'FARTHEST', 112)
    monkeypatch.setattr(columns, 'FEW', 2)
    monkeypatch.setattr(columns, 'LEAST_ANSWERS', 8)
    monkeypatch.setattr(measure, 'ABOVE', -1.0)  # everything is asked
    losses, train, score = {}, measure.Trainer.train, measure._score

    def trains(trainer, seed, *given):
        assert seed not in losses, 'a seed is trained once'
        trained = train(trainer, seed, *given)
        losses[seed] = trained.lines[-1]['loss']
        return trained

    def stops(trained, evaluator, test):
        if test.table == '16':
            raise KeyboardInterrupt
        return score(trained, evaluator, test)

    monkeypatch.setattr(measure.Trainer, 'train', trains)
    given = [
        f'--output={tmp_path}',
        '--rows=linear',
        '--columns=surface',
        '--seeds=2',
        '--',
        *SMALL,
    ]
    monkeypatch.setattr(measure, '_score', stops)
    with pytest.raises(KeyboardInterrupt):
        command.main(given)
    asked = []
    monkeypatch.setattr(measure, '_score', lambda *a: asked.append(a[-1]) or score(*a))
    command.main(given)
    text = capsys.readouterr().out
    assert 'failed' not in text and losses[0] != losses[1]
    assert [test.table for test in asked[:6]] == ['16'] * 3 + ['64'] * 3
    assert len(asked) == 6 + 12
    done = cells.of_row(tmp_path, 'surface', 'linear')
    assert sorted(done) == [0, 1] and not [*tmp_path.rglob('*.msgpack')]
    for found in done.values():
        assert {k: [*s] for k, s in found['scores'].items()} == dict.fromkeys(
            ['1', '4', '16', '64'], ['64', '80', '112']
        )
        assert [*found['scores']] == ['1', '4', '16', '64']
        assert found['steps'] == 2 and not found['decided'] and len(found['training']) == 1
        counts = [[s['answers'] for s in found['scores'][k].values()] for k in ('1', '16')]
        assert counts == [[8, 4, 2], [64, 64, 32]]
    line = r'\| {} \|  \|  \|  \| {} \| {} \| {} \|'
    for rule, chance in (('look up: everything', 100), ('any value: everything', 6)):
        assert re.search(line.format(rule, chance, chance, chance), text)
    assert re.search(line.format('any value: its segment of 32', 1, 1, 1), text)


@pytest.mark.slow
@pytest.mark.parametrize('column', ['state', 'swaps', 'copying', 'vt', 'qa1'])
def test_a_benchmark_is_asked_by_length(column, tmp_path, monkeypatch, capsys):
    """Documents 1 and 4 times as long as in training; rules are beside them."""
    monkeypatch.setattr(columns, 'MOST_TIMES', dict.fromkeys(columns.MOST_TIMES, 4))
    monkeypatch.setattr(columns, 'LEAST_ANSWERS', 4)
    monkeypatch.setattr(measure, 'ABOVE', -1.0)  # everything is asked
    given = [
        f'--output={tmp_path}',
        '--rows=linear',
        f'--columns={column}',
        '--seeds=1',
        '--',
        *SMALL,
    ]
    command.main(given)
    text = capsys.readouterr().out
    assert 'failed' not in text, text
    (table_name,) = columns.COLUMNS[column].titles
    (cell,) = cells.of_row(tmp_path, column, 'linear').values()
    assert [*cell['scores'][table_name]] == ['1x', '4x']
    parts = 5 if column == 'vt' else 1  # names of variables, each scored by itself
    answers = [score['answers'] for score in cell['scores'][table_name].values()]
    assert answers == [4 * parts, 4 * parts]
    rule = 'rules: everything' if column == 'qa1' else 'everything'
    assert re.search(rf'{rule}.*\| 100 \| 100 \|', text), text


@pytest.mark.parametrize(
    'keys, kept, asked',
    [
        (1, (0.9, 0.04), 2), (4, (0.9, 0.29), 2), (4, (0.9, 0.31, 0.2), 3), (64, (0.08, 0.06), 2),
        (64, (0.08, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07), 7),
    ],
)  # fmt: skip
def test_who_is_at_chance_is_not_asked_farther_away(keys, kept, asked, monkeypatch):
    """Chance is to name any value of the document, and for one key any value of all."""
    scores = iter(kept)

    def score(trained, evaluator, test):
        if test.task['sizes'] != ((4 * keys, keys),):
            return {'answers': 8, 'kept': 0.0}
        return {'answers': 8, 'kept': next(scores)}

    monkeypatch.setattr(measure, '_score', score)
    config = rows.config_of('linear', 'tiny', 'surface')
    found = {}
    tests = columns.surface(config, 'tiny')
    assert len([*measure.score_all(tests, None, None, found)]) == 4 * len(columns.DISTANCES)
    by_distance = [*found[str(keys)].values()]
    assert [score['answers'] for score in by_distance] == [8] * asked + [0] * (7 - asked)
    assert [score['kept'] for score in by_distance] == [*kept, *[kept[-1]] * (7 - asked)]


def test_a_mean_is_not_one_of_the_seeds_that_did_not_fail(tmp_path, capsys):
    asked, failed = ({'answers': n, 'kept': kept} for n, kept in ((16, 0.7), (0, 0.1)))
    for seed, score in ((0, asked), (1, failed)):
        for column in ('surface', 'recall'):
            names = columns.COLUMNS[column].titles
            scores = {name: {'16384': score, '1048576': failed} for name in names}
            cells.save(tmp_path, column, 'infini', seed, cell(column, seed, scores=scores))
    command.main([f'--output={tmp_path}', '--minutes=0', '--seeds=2'])
    text = capsys.readouterr().out
    line, tables = '| `infini` | 2 | 100 - 150 | 2.0 | 40 (10 - 70) † | - |', re.split('## ', text)
    for column in ('surface', 'recall'):
        for title in columns.COLUMNS[column].titles.values():
            (shown,) = (part for part in tables if part.startswith(title))
            assert line in shown and columns.COLUMNS[column].not_asked in shown
            assert ('(old)' in title) == ('No longer run' in shown) == (column == 'recall')


def test_seeds_are_a_number_or_a_list(tmp_path, ran):
    given = [f'--output={tmp_path}', '--rows=infini', '--columns=mqar']
    command.main([*given, '--seeds=11,23'])
    command.main([*given, '--seeds=2'])
    assert ran == [('mqar', 'infini', [11, 23]), ('mqar', 'infini', [0, 1])]


def test_the_table_of_what_is_there(tmp_path, capsys):
    for seed in (0, 1):
        cells.save(tmp_path, 'mqar', 'infini', seed, cell('mqar', seed))
    cells.save(tmp_path, 'mqar', 'local', 0, cell('mqar', 0, state_bytes=0))
    cells.save(tmp_path, 'stdlib', 'infini', 0, cell('stdlib', 0))
    floors = {'scores': {'stdlib': {'bits/byte': {'trigram': 2.5}}}}
    cells.save(tmp_path, 'stdlib', cells.FLOORS, 0, floors)
    cells.save(tmp_path, 'speed', 'infini', 0, cell('speed', 0))
    command.main([f'--output={tmp_path}', '--minutes=0', '--seeds=2'])
    text = capsys.readouterr().out
    assert (tmp_path / 'leaderboard.md').read_text() in text
    assert '| `infini` | 2 | 100 - 150 | 2.0 | 55 (50 - 60) [25] |' in text
    assert '| `infini` | 2.0 | - | - | - | - | - | - | - | 3.000* | 2.0 | 2.0 |' in text
    assert '| `local` | 1 | 100 | 0.0 | 50 [25] |' in text
    assert '| `infini` | 1 | 100 | 2.0 | 3.000 [4.000] |' in text
    assert '| `infini` | 0.0100 | 2.00 (1.50 - 2.50) |' in text
    assert '| trigram |  |  |  | 2.500 |' in text
    assert '- novels: not run: all.' in text
    assert '- mqar: 1 of 2 seeds: `local`; 2 of 2 seeds: `infini`; not run: all others.' in text
    assert set(json.loads((tmp_path / 'leaderboard.json').read_text())) == {
        'mqar',
        'stdlib',
        'speed',
    }
    for lines in re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE):
        assert len({line.count('|') for line in lines.splitlines()}) == 1


def test_the_pages_have_the_published_cells(tmp_path):
    """After new cells: run the command with `--output=experiments/leaderboard --minutes=0`."""
    folder = pathlib.Path(table.__file__).parent
    found, marked = table.collect(folder), set()
    for page in folder.glob('*.md'):
        marked |= {mark[2] for mark in pages.MARKED.finditer(page.read_text())}
        shutil.copy(page, tmp_path)
    for file in folder.glob('*.json'):
        shutil.copy(file, tmp_path)
    assert {'summary', 'state', 'qa1', 'qa2', 'niah_single_1'} <= marked
    pages.write(tmp_path, found)
    changed = [page.name for page in tmp_path.iterdir() if not _equal(page, folder / page.name)]
    assert changed == [], 'the tables of these pages are not those of leaderboard.json'


def _equal(one, other):
    return one.read_text() == other.read_text()


def test_a_page_gets_the_table_of_a_column(tmp_path):
    """Best row first, then the rules that see something; text around the marks stays."""
    page = tmp_path / 'page.md'
    page.write_text('Before.\n\n<!-- table: state -->\n\nold\n<!-- end -->\n\nAfter.\n')
    answers = {'answers': 96, 'kept': 0.25}
    asked = {f'{times}x': answers for times in (1, 4, 16, 64)}
    better = asked | {'1x': {'answers': 96, 'kept': 0.5}}
    cell = {'state_bytes': 2000, 'scores': {'state_tracking': asked}}
    rules = {size: {'product: the question': 0.2, 'product: everything': 1.0} for size in asked}
    found = {
        'state': {
            'local': {0: cell},
            'infini': {0: cell | {'scores': {'state_tracking': better}}},
            'floors': {0: {'scores': {'state_tracking': rules}}},
        }
    }
    pages.write(tmp_path, found)
    once = page.read_text()
    pages.write(tmp_path, found)
    assert page.read_text() == once, 'writing again changes nothing'
    before, heads, _, *lines, after = [line for line in page.read_text().splitlines()[2:] if line]
    assert (before, after) == ('<!-- table: state -->', 'After.')
    assert heads == '| row | seeds | state, kB | 16 | 64 | 256 | 1,024 |'
    assert [line.split(' | ')[0] for line in lines[:-1]] == [
        '| `infini`',
        '| `local`',
        '| product: everything',
    ]
    assert lines[0] == '| `infini` | 1 | 2.0 | 50 | 25 | 25 | 25 |'
    (tmp_path / 'other.json').write_text(json.dumps({'state': {'linear': {'3': cell}}}))
    page.write_text(page.read_text().replace('table: state', 'table: state of other.json'))
    pages.write(tmp_path, {})
    assert '| `linear` | 1 | 2.0 | 25 |' in page.read_text()
    page.write_text(page.read_text().replace('table: state of other.json', 'table: qa1'))
    with pytest.raises(UsageError, match='qa1'):
        pages.write(tmp_path, found)


@pytest.mark.parametrize('column', ['stdlib', 'novels'])
def test_rows_of_a_text_were_scored_on_one(column):
    """The standard library is another with another Python: then all rows have to be run again."""
    found = table.collect(pathlib.Path(table.__file__).parent)[column]
    texts = {
        name: re.search(r'the first .* tokens', cell['scores'][column]['bits/byte']['protocol'])[0]
        for name, seeds in found.items()
        if name != cells.FLOORS
        for cell in seeds.values()
    }
    assert len({*texts.values()}) == 1, texts


def test_nothing_is_a_table_too(tmp_path):
    command.main([f'--output={tmp_path}', '--minutes=0'])
    assert '## Not run' in (tmp_path / 'leaderboard.md').read_text()


def test_every_row_is_told_apart(tmp_path, made_figures, monkeypatch):
    """A panel or a labelled line per row; seven panels are more than one line of them."""
    every = rows.names()[:7]
    monkeypatch.setattr(rows, 'names', lambda: every)
    alone = {'product: its segment of 8': 0.5}
    floors = {'scores': {'state_tracking': dict.fromkeys(SIZES['swaps'], alone)}}
    cells.save(tmp_path, 'swaps', cells.FLOORS, 0, floors)
    tested = ('mqar', 'surface', 'stdlib', 'swaps', 'state')
    for column, row, seed in itertools.product(tested, every, (0, 1)):
        cells.save(tmp_path, column, row, seed, cell(column, seed))
    files = pictures.draw(table.collect(tmp_path), tmp_path)
    assert [file.stem for file in files] == ['pairs', 'surface', 'cost', 'computed']
    pairs, surface, cost, computed = made_figures
    for figure in (pairs, surface):
        panels = [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]
        assert [axes.get_title().split('\n')[0] for axes in panels] == every
    assert [line.get_ydata().tolist() for line in pairs.axes[0].lines][-2:] == [[55, 55], [25, 25]]
    (image,) = surface.axes[0].images
    assert image.get_array().tolist() == [[55, 55]] * 4 and image.get_clim() == (0, 100)
    assert [label.get_text() for label in surface.axes[5].get_xticklabels()] == ['64', '4k']
    assert [label.get_text() for label in surface.axes[5].get_yticklabels()] == [
        '1',
        '4',
        '16',
        '64',
    ]
    assert surface.axes[0].get_title().endswith('2.0 kB of state')
    for figure in (cost, computed):
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == every[::-1]
    swaps, state = computed.axes
    dashed = [line for line in swaps.lines if line.get_linestyle() == '--']
    assert [[*line.get_xdata()] for line in dashed] == [[50, 50]] * 3 + [[]]
    assert [*dict.fromkeys(x for line in state.lines for x in line.get_xdata())] == [55, 50, 60]


# Instead of attention, of a feed-forward layer, and around blocks.
QUICK = ('infini', 'product_key', 'memory_tokens', 'transformer_xl')


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in rows.names()],
)
def test_parameters_are_equal(name):
    """Within one percent, with the flags that are typed; and the model can be trained."""
    row = rows.row(name, 'tiny', 'mqar')
    assert abs(row.parameters / rows.baseline_parameters('tiny', 'mqar') - 1) < 0.01
    config = rows.config_of(name, 'tiny', 'mqar')
    _, changes = overrides.split_arguments(row.flags)
    overrides.apply(config, changes)
    assert rows.num_parameters(config) == row.parameters
    assert checks.find_problems(config, 1) == []


@pytest.mark.parametrize(
    'task, size, longest',
    [('surface', '', 576), ('surface', 'tiny', 320), ('qa1', '', 512), ('qa2', 'tiny', 256)],
)
def test_a_step_has_more_tokens_than_its_longest_document(task, size, longest):
    config = rows.config_of('delta_net', size, task)
    data, tokens = config.data.task, config.train.segments_per_step * config.train.segment_length
    of_data = data.sizes[-1][0] + data.distances[-1] if task == 'surface' else data.lengths[-1]
    assert of_data == longest
    assert 1.2 * longest <= tokens < 1.2 * longest + config.train.segment_length, (
        'set segments_per_step in configs/leaderboard.py: with fewer, some memories do not begin'
    )


def test_a_memory_larger_than_the_model_has_the_least_width():
    config = rows.config_of('infini', 'tiny', 'mqar')
    assert rows.equal_width(config, 10) == 1
    assert rows.equal_width(config, rows.num_parameters(config)) == config.model.d_feed_forward


@pytest.mark.parametrize('size', ['', 'tiny'])
@pytest.mark.parametrize('task', leaderboard.RULER)
def test_a_step_of_ruler_has_the_tokens_of_its_longest_document(task, size):
    config = rows.config_of('delta_net', size, task)
    tokens = config.train.segments_per_step * config.train.segment_length
    longest = max(config.data.task.lengths)
    assert longest <= tokens < longest + config.train.segment_length, (
        'set segments_per_step in configs/leaderboard.py: with fewer, most seeds find no number'
    )


@pytest.mark.parametrize('option', ['--rows=nothing', '--columns=mqar,nothing', '--columns=recall'])
def test_unknown_names_are_refused(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main([f'--output={tmp_path}', option])
    name = re.split('[=,]', option)[-1]
    assert f'{name!r}: allowed are' in capsys.readouterr().err


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
