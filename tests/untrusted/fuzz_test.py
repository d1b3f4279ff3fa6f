"""Damaged and hostile files for every reader: a `UsageError`, or something sound, and nothing else.

In all about 300 inputs, always the same; `LONGMEM_FUZZ=10000 pytest tests/untrusted/fuzz_test.py` tries
10,000, others in every run (some ten minutes). No error but `UsageError` comes out, no byte beyond the
end of a file is asked for, and nothing outside of the folder that is read is made, changed or deleted.
"""

import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from tests.untrusted import damage
from tests.untrusted.readers import CASES

ASKED = os.environ.get('LONGMEM_FUZZ')
INPUTS = -(-int(ASKED or 300) // len(CASES))


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """Case to the folder of its whole files, which are made at the first call."""
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp('whole')
            CASES[name].make(made[name])
        return made[name]

    return folder_of


def files_of(folder):
    """Everything in a folder, with its bytes."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


@pytest.fixture
def pread(monkeypatch):
    """Checks that nothing beyond the end of a file is asked for."""
    preadv = os.preadv

    def checked(descriptor, buffers, at):
        end = at + sum(len(buffer) for buffer in buffers)
        assert end <= os.fstat(descriptor).st_size, 'read beyond the end'
        return preadv(descriptor, buffers, at)

    monkeypatch.setattr(os, 'preadv', checked)


@pytest.mark.parametrize('name', CASES)
def test_whole_files_are_read(name, whole, tmp_path):
    shutil.copytree(whole(name), tmp_path / 'place')
    CASES[name].read(tmp_path / 'place')


@pytest.mark.parametrize('name', CASES)
def test_damaged_files_are_one_error(name, whole, tmp_path, pread):
    case, folder = CASES[name], whole(name)
    outside = tmp_path / 'victim.safetensors'
    outside.write_bytes((folder / case.names[0]).read_bytes())
    place = tmp_path / 'place'
    before = files_of(folder)

    @settings(
        max_examples=INPUTS,
        derandomize=ASKED is None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def try_one(data):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        file = data.draw(st.sampled_from(case.names), 'file')
        path, content = place / file, (folder / file).read_bytes()
        if content[8:9] == b'{' and content[:1] != b'{':
            changed = damage.changed_tensors(content, tmp_path / 'scratch')
        elif path.suffix == '.json':
            changed = damage.changed_json(content)
        elif path.suffix == '.jsonl':
            changed = damage.changed_json_lines(content)
        else:
            changed = damage.changed_bytes(content)
        path.write_bytes(data.draw(changed, 'content'))
        kept = {
            path: text for path, text in files_of(tmp_path).items() if place not in path.parents
        }
        try:
            case.read(place)
        except UsageError as error:
            said = str(error)
            assert len(said) < 3000, 'a message nobody reads'
            assert '\x1b' not in said and '\0' not in said, 'the terminal would obey the message'
            said.encode()
        after = {
            path: text for path, text in files_of(tmp_path).items() if place not in path.parents
        }
        assert after == kept, 'something outside of the folder was changed'

    try_one()
    assert files_of(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_no_field_is_a_command_for_the_terminal(name, whole, tmp_path, capfd):
    """Every part of every file is replaced by an escape code; what is said shows it."""
    case, place = CASES[name], tmp_path / 'place'
    for file in case.names:
        changed = list(damage.with_escapes((whole(name) / file).read_bytes()))
        for content in changed[:: -(-len(changed) // 30)]:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(whole(name), place)
            (place / file).write_bytes(content)
            try:
                case.read(place)
            except UsageError as error:
                entry.fail(error)
                assert '\x1b' not in str(error)
    said = ''.join(capfd.readouterr())
    assert '\x1b' not in said and '\x07' not in said


FOUND = [
    ('folder with tokenizer.json', 'tokenizer_config.json', '{"chat_template": [{"name": []}]}'),
    ('folder with merges.txt', 'merges.txt', '\0version: 0.2\na b\n'),
    ('host', 'config.json', '{"model_type": "qwen2", "\\u001b[2J": 1}'),
    ('BoolQ', 'BoolQ/val.jsonl', '{"passage": "\\ud800", "question": "", "label": true}'),
    ('CMU-DoG', 'WikiData/Jaws.json', '{"0": {"cast": [null]}}'),
    ('memory', 'state.safetensors', '\x0c\0\0\0\0\0\0\0{"\\u001b": 1}'),
]


@pytest.mark.parametrize('name, file, content', FOUND, ids=[f'{name}' for name, *_ in FOUND])
def test_what_was_found_stays_mended(name, file, content, whole, tmp_path):
    """Parts of JSON objects are put into the whole ones."""
    place = tmp_path / 'place'
    shutil.copytree(whole(name), place)
    if file.endswith('.json'):
        content = json.dumps(merged(json.loads((place / file).read_text()), json.loads(content)))
    (place / file).write_text(content)
    try:
        CASES[name].read(place)
    except UsageError as error:
        assert str(error).isprintable() or '\n' in str(error), ascii(str(error))


def merged(into, part):
    """An object with the fields of another, also inside."""
    if not isinstance(into, dict) or not isinstance(part, dict):
        return part
    return into | {name: merged(into.get(name), value) for name, value in part.items()}
