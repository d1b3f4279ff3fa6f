"""The suite for one GPU: which cell is next, what a broken one leaves, the tables; every job."""

import dataclasses
import functools
import importlib
import importlib.metadata
import json
import lzma
import re
import time

import pytest

from experiments import provenance
from experiments.gpu import __main__ as suite
from experiments.gpu import (
    agreement,
    kernels,
    pack,
    papers,
    process,
    shortened,
    steps,
    table,
    trainings,
)
from experiments.gpu.job import (
    ABSENT,
    DONE,
    FAILED,
    MISSING,
    NOTE,
    RESULT,
    STOPPED,
    Absent,
    Cell,
    Job,
    Place,
    memories,
)
from experiments.gpu.jobs import JOBS
from longmem_jax import files
from longmem_jax.config import checks, overrides
from longmem_jax.data import load
from longmem_jax.data.text_files import TextFiles
from tests.processes import environment


def some_jobs(monkeypatch, **minutes):
    """Jobs of two cells each, in place of ours."""
    jobs = {
        name: Job(
            name, f'{name}?', number, lambda tiny: ['a', 'b'], None, (('kept', 'kept', '.1f'),)
        )
        for name, number in minutes.items()
    }
    for module in (suite, table):
        monkeypatch.setattr(module, 'JOBS', jobs)
    return suite.chosen((), False)


def leave(cell, place, **note):
    """What a process leaves in the folder of a cell: a result, or a note with a state."""
    folder = cell.folder(place)
    folder.mkdir(parents=True, exist_ok=True)
    if 'state' in note:
        files.write_json(folder / NOTE, note)
    else:
        provenance.save(folder / RESULT, note, [0])
    return note.get('state', DONE)


def order(monkeypatch, place, given, ends, **minutes):
    """Labels of the cells in the order in which they run, each for all of its minutes."""
    cells, clock, ran = some_jobs(monkeypatch, **minutes), [0.0], []

    class Running:
        """Takes all of the minutes of its cell at once."""

        def __init__(self, cell, place, seconds):
            ran.append(cell.label)
            self.cell, self.began, self.seconds = cell, clock[0], seconds

        def ended(self):
            clock[0] += min(self.seconds, 60 * self.cell.job.minutes)
            attempts = self.cell.note(place)['attempts'] + 1
            end = ends.get(self.cell.label, {'kept': 1.0})
            return leave(
                self.cell, place, **end | ({'attempts': attempts} if 'state' in end else {})
            )

    monkeypatch.setattr(process, 'Running', Running)
    monkeypatch.setattr(time, 'sleep', lambda seconds: None)
    monkeypatch.setattr(time, 'monotonic', lambda: clock[0])
    suite.run(cells, place, given, 1)
    return ran


def test_the_most_valuable_comes_first_and_only_what_fits(monkeypatch, tmp_path, capsys):
    place = Place(tmp_path, tmp_path)
    assert order(monkeypatch, place, 8, {}, other=5, short=2) == ['other/a', 'short/a']
    left = 'Left for want of minutes (--minutes=8): other/b, short/b\n'
    assert capsys.readouterr().out.endswith(left)
    assert order(monkeypatch, place, 60, {}, other=5, short=2) == ['other/b', 'short/b']
    assert 'Left' not in capsys.readouterr().out
    assert not order(monkeypatch, place, 60, {}, other=5, short=2)


def test_what_is_stopped_goes_on_and_does_not_take_all_the_time(monkeypatch, tmp_path):
    """A cell of 20 minutes gets three processes of eight, and two more, before others go first."""
    hangs = {'long/a': dict(state=STOPPED, said='')}
    ran = order(monkeypatch, Place(tmp_path, tmp_path), 100, hangs, long=20, short=2)
    assert ran == ['long/a'] * 5 + ['long/b', 'short/a', 'short/b']


def test_what_failed_is_tried_again_by_the_next_call_after_the_others(monkeypatch, tmp_path):
    place, fails = Place(tmp_path, tmp_path), {'other/a': dict(state=FAILED, said='no room')}
    assert order(monkeypatch, place, 10, fails, other=5, short=2) == ['other/a', 'other/b']
    assert order(monkeypatch, place, 10, {}, other=5, short=2) == ['short/a', 'short/b', 'other/a']


def test_cells_that_need_the_same_are_not_tried(monkeypatch, tmp_path):
    lacks = {'other/a': dict(state=ABSENT, said='no torch here')}
    place = Place(tmp_path, tmp_path)
    assert order(monkeypatch, place, 60, lacks, other=5, short=2) == [
        'other/a',
        'short/a',
        'short/b',
    ]
    shown = table.overview(table.collect(place), place)
    assert '| not run; 1 no torch here |' in shown and '| 2 of 2 cells |' in shown


@pytest.mark.parametrize(
    ('job', 'name', 'group', 'seed'),
    [
        ('steps', '512/fla/DeltaNet', 'steps/512/fla', None),
        ('language', '38M/local/2', 'language/38M', 2),
        ('drawing', '8 lanes/local', 'drawing/8 lanes', None),
        ('goldens', 'infini_attention', 'goldens', None),
    ],
)
def test_groups_and_seeds(job, name, group, seed):
    cell = Cell(JOBS[job], name)
    assert (cell.group, cell.seed) == (group, seed)


PROGRAM = """
import os, signal, subprocess, sys, time
{then}
"""
HANGS = 'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'


@pytest.mark.parametrize(
    ('then', 'state', 'said'),
    [
        ("sys.exit('no room')", FAILED, 'no room'),
        ("os.kill(os.getpid(), signal.SIGSEGV)", FAILED, 'ended without a word'),
        ("subprocess.run(['sleep', '60'])", STOPPED, 'stopped after 1 s'),
        (HANGS, STOPPED, 'stopped after 1 s'),
    ],
    ids=['error', 'crash', 'child', 'hang'],
)  # fmt: skip
def test_a_process_ends_in_time_whatever_it_does(then, state, said, monkeypatch, tmp_path):
    place, cell = Place(tmp_path, tmp_path), Cell(JOBS['steps'], 'peak')
    ours = [process.sys.executable, '-c', PROGRAM.format(then=then)]
    monkeypatch.setattr(process, 'command', lambda cell, place: ours)
    running = process.Running(cell, place, 1.0, saving=0.3)
    while (ended := running.ended()) is None:
        time.sleep(0.05)
    assert ended == state
    note = cell.note(place)
    assert (note['state'], note['said'], note['attempts']) == (state, said, 1)


def test_tables_have_means_of_seeds_and_leave_out_empty_columns(monkeypatch, tmp_path):
    place, job = Place(tmp_path, tmp_path), dataclasses.replace(
        JOBS['language'], cells=lambda tiny: ['38M/local/0', '38M/local/1', '38M/infini/0']
    )  # fmt: skip
    monkeypatch.setattr(table, 'JOBS', {job.name: job})
    for cell, bits in zip(job.all(False)[:2], (2.0, 3.0), strict=True):
        leave(cell, place, test={'bits_per_byte': bits}, parts={'8': 1.5}, reset=None)
    text = table.tables(table.collect(place), place)
    assert '| 2 of 3 cells |' in text
    assert '| language | seeds | bits/byte | to segment 8 |' in text
    assert '| 38M/local | 2 | 2.500 (2.000 - 3.000) | 1.500 |' in text


def test_publishing_keeps_what_was_there(monkeypatch, tmp_path):
    (cell, other, *_), place = some_jobs(monkeypatch, short=2), Place(tmp_path / 'run', tmp_path)
    monkeypatch.setattr(table, 'PAGE', tmp_path / 'README.md')
    monkeypatch.setattr(table, 'NUMBERS', tmp_path / 'gpu.json')
    table.PAGE.write_text('before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n')
    files.write_json(table.NUMBERS, {other.label: {'kept': 2.0, 'run': provenance.of_run([0])}})
    leave(cell, place, kept=1.0)
    table.publish(place)
    assert json.loads(table.NUMBERS.read_text()).keys() == {'short/a', 'short/b'}
    page = table.PAGE.read_text()
    assert '\nold\n' not in page and '| a | 1.0 |\n| b | 2.0 |' in page
    assert page.startswith('before\n') and page.endswith('\nafter\n')


def test_the_page_has_the_tables_of_its_numbers():
    """After new numbers run `python -m experiments.gpu --output=DIR --minutes=0 --publish`."""
    assert table.RENDERED.search(table.PAGE.read_text())[0] == table.tables(table.published())


def test_the_list_has_all_cells_in_order(capsys, tmp_path):
    suite.main([f'--output={tmp_path}', '--list'])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition('/')[0] for line in lines]
    assert list(dict.fromkeys(names)) == list(JOBS) and len(set(lines)) == len(lines)
    assert all(re.search(r', [\d.]+ minutes: missing$', line) for line in lines)
    suite.main([f'--output={tmp_path}', '--list', '--only=goldens,steps/2048/fla'])
    few = capsys.readouterr().out.splitlines()
    assert few[0].startswith('goldens/') and few[-1].startswith('steps/2048/fla/') and len(few) < 80


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--only=step'], '--only=step: no cell begins so'),
        (['--publish', '--tiny'], 'mean nothing'),
    ],
    ids=['only', 'publish'],
)
def test_problems_are_named(arguments, said, capsys, tmp_path):
    with pytest.raises(SystemExit):
        suite.main([f'--output={tmp_path}', *arguments])
    assert said in capsys.readouterr().err


def test_without_a_gpu_nothing_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(process, 'Running', None)
    monkeypatch.setattr(suite.subprocess, 'run', lambda *_, **__: argparse_like('cpu\n'))
    with pytest.raises(SystemExit, match='JAX finds cpu'):
        suite.main([f'--output={tmp_path}'])


def argparse_like(stdout):
    """What `subprocess.run` returns, as far as it is read."""
    return type('Done', (), {'stdout': stdout})


def test_what_was_not_brought_is_named(tmp_path):
    with pytest.raises(Absent, match='no novels in the data folder'):
        Place(tmp_path, tmp_path).brought('novels')


def test_the_data_folder_is_read_and_tells_the_commit(monkeypatch, tmp_path):
    code = [(f'package{number}', b'x = 1\n' * number) for number in range(1, 21)]
    monkeypatch.setattr(pack, 'packages', lambda: iter(code))
    monkeypatch.setattr(provenance, 'COMMIT', '0123456789ab')
    for split in pack.SPLITS:
        (tmp_path / 'books' / split).mkdir(parents=True)
        (tmp_path / 'books' / split / '1.txt').write_text(f'A novel for {split}.')
    pack.main([f'--novels={tmp_path}/books', f'--output={tmp_path}/data'])
    place = Place(tmp_path / 'run', tmp_path / 'data')
    assert process.environment(place)['LONGMEM_JAX_COMMIT'] == '0123456789ab'
    path = trainings.together(place, 'novels', 'code')
    assert trainings.together(place, 'novels', 'code') == path  # made once
    for split, number in {'train': 17, 'validation': 3, 'test': 3}.items():
        documents = TextFiles(str(path), split, 'file', (0.9, 0.05, 0.05))
        texts = [documents[index].text for index in range(len(documents))]
        assert len(texts) == number and f'A novel for {split}.'.encode() in texts


def test_what_a_cell_has_measured_is_not_measured_again(monkeypatch, tmp_path):
    checked = []

    def check(name, promise):
        if len(checked) == 2:
            raise SystemExit('stopped')
        checked.append(promise)
        assert promise != 'causal', 'it sees the future'

    monkeypatch.setattr(agreement.conformance, 'check', check)
    measure = functools.partial(agreement.promises, Place(tmp_path, tmp_path), 'infini', tmp_path)
    with pytest.raises(SystemExit):
        measure()
    first, checked[:] = list(checked), []
    with pytest.raises(SystemExit):
        measure()
    assert not set(first) & set(checked) and len(first + checked) == 4
    monkeypatch.setattr(agreement.conformance, 'check', lambda name, promise: None)
    found = measure()
    assert found['promises'] == found['good'] + 1 > 10
    assert found['broken'].keys() == {'causal'} and 'the future' in found['broken']['causal']


@pytest.mark.parametrize('task', papers.PAPERS)
def test_the_papers_tasks_have_no_problems(task):
    for row in papers.PAPERS[task][2]:
        name, variants, flags = papers.arguments(task, row)
        config = importlib.import_module(f'configs.{name}').get_config(variants)
        overrides.apply(config, overrides.split_arguments(flags)[1])
        assert not checks.find_problems(config, 1), row


def with_texts(folder, tiny=False):
    """A place whose data are two short texts of every split."""
    for name, ending in {'novels': '.txt', 'code': '.txt.xz'}.items():
        for split in pack.SPLITS:
            path = folder / 'data' / name / split / f'1{ending}'
            path.parent.mkdir(parents=True)
            text = f'A {name} for {split}. '.encode() * 100
            path.write_bytes(lzma.compress(text) if path.suffix == '.xz' else text)
    return Place(folder / 'run', folder / 'data', tiny)


@pytest.mark.parametrize('tiny', [False, True])
@pytest.mark.parametrize('config', shortened.CONFIGS)
def test_the_shortened_configs_have_no_problems_and_find_their_texts(config, tiny, tmp_path):
    place = with_texts(tmp_path, tiny)
    for row in shortened.CONFIGS[config].rows:
        built = shortened.config_of(config, *shortened.arguments(place, config, row))
        assert not checks.find_problems(built, 1), row
    for split, number in {'train': built.data.pieces, 'test': 1}.items():
        assert len(load.load_source(built.data, split)) == number * len(
            shortened.CONFIGS[config].texts
        )


def test_rows_of_a_config_share_a_vocabulary_and_leave_no_checkpoints(monkeypatch, tmp_path):
    place, ran = with_texts(tmp_path), []

    def train(place, folder, config, variants, flags, seed):
        (folder / 'checkpoints').mkdir(parents=True)
        ran.append((folder, variants, flags))
        return {'test': seed}

    monkeypatch.setattr(shortened, 'train', train)
    for cell in ('mem_transformer_wikitext103/memory tokens/1', 'expire_span_pg19/fixed span/2'):
        found = shortened.shortened(place, cell, place.output / 'configs' / cell)
        assert found == {'test': int(cell[-1])}
    (folder, variants, flags), (_, _, of_bytes) = ran
    assert variants == 'memory=memory_tokens' and not list(folder.iterdir())
    path = place.output / 'configs/mem_transformer_wikitext103/vocabulary/tokenizer.words.60000.txt'
    assert flags[-1] == f'--config.data.tokenizer.path={path}' and 'novels' in path.read_text()
    assert not any('tokenizer.path' in flag for flag in of_bytes)


def test_a_corridor_has_the_steps_held_by_all_layers_and_old_results_have_a_table(
    monkeypatch, tmp_path
):
    held = {'mean': 6.0, 'last': 9.0, 'before': 10.0, 'layers': [4.0, 8.0]}
    seed = {'test': {'reward': 1.0}, 'test_greedy': {}, 'parameters': 7, 'seconds': 1.0}
    monkeypatch.setattr(papers.runs, 'train', lambda *_: [seed | {'held': held}])
    name = next(name for name in papers.corridor_cells(tiny=False) if name.endswith('/0'))
    new = papers.corridors(Place(tmp_path, tmp_path), name, tmp_path)
    assert (new['held_together'], new['held']) == (12.0, held)
    old = seed | {'held': held}
    job, row = JOBS['corridor'], name.removesuffix('/0')
    head = '| corridor | seeds | reward | steps held, all layers | steps held, a layer |'
    text = table.of_job(job, {f'corridor/{name}': new})
    assert head in text and f'| {row} | 1 | 1.00 | 12.0 | 6.0 |' in text
    assert f'| {row} | 1 | 1.00 | 6.0 |' in table.of_job(job, {f'corridor/{name}': old})


def test_every_memory_has_a_step_to_be_timed():
    for memory in [*memories(False), *steps.VARIANTS]:
        for segment in steps.SEGMENTS:
            config = steps.config_of(memory, segment, 12, 8, False)
            assert not checks.find_problems(config, 1), memory


# Cells that need a GPU, PyTorch, or what was not brought.
OPTIONAL = re.compile('^authors/|/(fused|torch|fla)/|/transformers/')


@pytest.mark.slow
@pytest.mark.parametrize('job', JOBS)
def test_every_job_runs_tiny(job, tmp_path, monkeypatch):
    """One process per cell, as on a GPU; what is not installed here is said."""
    for name, value in environment(cache=tmp_path / 'cache').items():
        monkeypatch.setenv(name, value)
    suite.main([f'--output={tmp_path}', f'--data={tmp_path}/none', '--tiny', f'--only={job}'])
    place = Place(tmp_path / 'tiny', tmp_path / 'none', tiny=True)
    for cell in JOBS[job].all(True):
        state, log = cell.note(place)['state'], cell.folder(place) / 'log.txt'
        if OPTIONAL.search(cell.label):
            assert state in (DONE, ABSENT, MISSING), log.read_text()
        else:
            assert state == DONE, log.read_text()
    assert f'| `{job}` |' in (place.output / 'gpu.md').read_text()


def test_kernels_of_all_layers_are_summed():
    events = [('product_1', 2.0), ('product_12', 4.0), ('add', 1.0), ('add', 1.0)]
    found = kernels.summed(events, calls=2)
    assert found == {'kernels': 2, 'kernels_ms': 4, 'top': [['product', 1, 3], ['add', 1, 1]]}


def test_a_copy_that_is_not_installed_is_noticed_at_once(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, 'version', missing)
    with pytest.raises(SystemExit, match=r'First run: pip install .*-e \.'):
        suite.main([f'--output={tmp_path}', '--tiny', '--minutes=1', '--only=goldens'])
