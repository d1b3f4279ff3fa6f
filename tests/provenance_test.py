"""Numbers of experiments have their origin beside them, and all writers of numbers go one way."""

import json
import re
from pathlib import Path

import pytest

from experiments import provenance

EXPERIMENTS = Path(provenance.__file__).parent
# Files that are no numbers: of hosts, of data sets, of a datastore; pages; cells that have their origin;
# trainings that go on later; what a process tells another.
OTHERS = {
    'hosts/load.py', 'hosts/dialogue.py', 'hosts/table.py', 'knn_lm/search_speed.py',
    'lifelong/fewrel.py', 'leaderboard/table.py', 'leaderboard/measure.py', 'second_reading/report.py',
    'leaderboard/pages.py', 'tpu_programs.py', 'claims.py', 'page_tables.py',
    'infini_attention/story_report.py', 'mqar_curve.py', 'gpu/__main__.py', 'gpu/cell.py',
    'gpu/hosts.py', 'gpu/process.py', 'gpu/pack.py', 'gpu/table.py', 'smollm2/report.py',
}  # fmt: skip


def test_a_file_has_commit_date_seeds_versions_device_and_command(tmp_path):
    path = tmp_path / 'made' / 'with it' / 'a.json'
    assert provenance.saved(path) is None
    written = provenance.save(path, {'kept': 0.5}, [11, 23])
    assert written == json.loads(path.read_text()) == provenance.saved(path)
    run = written['run']
    assert (
        written['kept'] == 0.5 and run['seeds'] == [11, 23] and run['command'].startswith('python ')
    )
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d\+00:00', run['date'])
    assert run['versions'].keys() == {'longmem-jax', 'jax'} and 'cpu' in run['device']
    assert run['commit'] is None or re.fullmatch('[0-9a-f]{12}', run['commit'])


def test_a_cell_that_is_there_keeps_its_origin(tmp_path):
    path = tmp_path / 'rows.json'
    provenance.save(path, [{'distance': 16}], [0], device='one')
    rows = [*provenance.saved(path), {'distance': 64}]
    rows = provenance.save(path, rows, [1], device='two')
    assert [row['run']['device'] for row in rows] == ['one', 'two']
    assert [row['run']['seeds'] for row in rows] == [[0], [1]]


def test_the_commit_is_that_of_the_checkout_and_none_outside_of_one(tmp_path, monkeypatch):
    assert provenance.git('rev-parse', 'HEAD', folder=tmp_path) is None
    monkeypatch.setenv('PATH', str(tmp_path))
    assert provenance.git('rev-parse', 'HEAD') is None


def test_all_numbers_are_written_with_their_origin():
    """Another way to write JSON would leave the origin out: use `provenance.save`."""
    writing = re.compile(r'files\.write\(|write_text\(|json\.dump\(|write_json\(')
    found = {
        str(path.relative_to(EXPERIMENTS))
        for path in EXPERIMENTS.rglob('*.py')
        if writing.search(path.read_text()) and path.name != 'provenance.py'
    }
    assert found == OTHERS, found ^ OTHERS


def test_what_may_be_missing_is_read_one_way():
    own = [
        str(path.relative_to(EXPERIMENTS))
        for path in EXPERIMENTS.rglob('*.py')
        if re.search(r'json\.loads\(.*\) if .*\.exists\(\) else', path.read_text())
    ]
    assert own == ['provenance.py'], 'use `provenance.saved`'


def origins(tree, run):
    """The origin of every number."""
    if isinstance(tree, dict):
        run = run | tree.get('run', {})
        for key, value in tree.items():
            yield from origins(value, run) if key not in ('run', 'number', 'keys') else ()
    elif isinstance(tree, list):
        for value in tree:
            yield from origins(value, run)
    elif isinstance(tree, int | float):
        yield run


@pytest.mark.parametrize(
    'file', sorted(EXPERIMENTS.rglob('*.json')), ids=lambda file: str(file.relative_to(EXPERIMENTS))
)
def test_every_published_number_has_an_origin(file):
    """The commit; the other fields are of what has been measured since they are written."""
    found = list(origins(json.loads(file.read_text()), {}))
    assert found and all(run.get('commit') for run in found)


def test_a_command_names_no_folder_of_the_machine():
    given = [
        '/usr/bin/python',
        '-m',
        'experiments.compare',
        '--output=/home/me/runs',
        '/tmp/x',
        '--lr=1/2',
    ]
    wanted = 'python -m experiments.compare --output=PATH PATH --lr=1/2'
    assert provenance.command(given) == wanted
