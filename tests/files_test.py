"""Files are written completely or not at all."""

import ast
import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from longmem_jax import files
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, whole_file
from longmem_jax.hosts import hosts

PACKAGE = Path(files.__file__).parent
# By themselves these write to the path that they are given.
WRITERS = {
    'write_text', 'write_bytes', 'touch', 'symlink_to', 'hardlink_to', 'copyfile', 'copy2', 'copytree',
    'savez', 'savez_compressed', 'savetxt', 'symlink', 'mkfifo', 'write_index', 'save_model',
    'save_pretrained', 'to_csv', 'to_parquet', 'write_table', 'NamedTemporaryFile', 'mkstemp',
}  # fmt: skip
LIBRARIES = {'savefig', 'save_file', 'start_trace'}  # these only to a name that comes from the door
DOOR = {'whole_file', 'open_own', 'own_folder'}


def names_of(node):
    """Names of functions that are called, and plain names, in a part of the code."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def from_the_door(tree):
    """Names that are bound to what a function of the door returned, by `with`, `=` or `for`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            for item in node.items:
                if item.optional_vars and DOOR & names_of(item.context_expr):
                    found |= names_of(item.optional_vars)
        elif isinstance(node, ast.For) and 'own_folder' in names_of(node):
            found |= names_of(node.iter)
    return found


def writes(call, bound):
    """Whether a call opens a file for writing, other than one from the door."""
    function = call.func
    name = getattr(function, 'attr', getattr(function, 'id', ''))
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = {value.value for value in values if isinstance(value, ast.Constant)}
    modes = {text for text in texts if isinstance(text, str) and len(text) < 4 and text.isascii()}
    given = bool(values) and any(bound & names_of(value) for value in values)
    if name == 'open' and getattr(getattr(function, 'value', None), 'id', '') == 'os':
        return bool({'O_WRONLY', 'O_RDWR', 'O_CREAT', 'O_TRUNC'} & names_of(call))
    if name in ('open', 'fdopen'):
        return any(set(mode) & set('wax+') and set(mode) <= set('rwaxbt+') for mode in modes)
    if name == 'move':
        return getattr(getattr(function, 'value', None), 'id', '') == 'shutil'
    if name == 'memmap':
        return 'r' not in modes and not given
    if name == 'save':
        return any(keyword.arg == 'format' for keyword in call.keywords) and not given
    return name in WRITERS or (name in LIBRARIES and not given)


def outside_of_the_door(code):
    """Lines of the calls in some code that write past the door."""
    tree = ast.parse(code)
    bound = from_the_door(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if writes(call, bound)]


def test_only_the_door_opens_files_for_writing():
    found = [
        f'{path}:{line}'
        for path in sorted(PACKAGE.rglob('*.py'))
        if path != Path(files.__file__)
        for line in outside_of_the_door(path.read_text())
    ]
    assert not found, f'write with longmem_jax/files.py, which follows no link: {found}'


@pytest.mark.parametrize(
    'code',
    [
        "open(path, 'w')", "path.open('ab')", "path.open(mode='r+b')", 'path.write_text(text)',
        'os.open(path, os.O_RDWR | os.O_CREAT)', 'figure.savefig(path)', 'np.savez(path, a=a)',
        "np.memmap(path, 'int8', 'r+')", "page.save(path, format='PNG')", 'shutil.copyfile(a, b)',
        'jax.profiler.start_trace(str(folder))', 'save_file(arrays, path)',
    ],
)  # fmt: skip
def test_the_search_finds_what_writes_past_the_door(code):
    assert outside_of_the_door(code) == [1]


def test_a_file_that_does_not_reach_the_disk_is_named(tmp_path, monkeypatch):
    """The system names no file where a descriptor fails."""

    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match='Input/output error') as caught:
        files.write(tmp_path / 'a.json', '')
    assert caught.value.filename.startswith(str(tmp_path / 'a.json'))
    assert not list(tmp_path.iterdir())


def test_a_file_that_finds_no_room_is_named(tmp_path):
    with pytest.raises(OSError, match='No space left') as caught:
        with files.whole_file(tmp_path / 'a.json'), open('/dev/full', 'wb', buffering=0) as full:
            full.write(b'text')
    assert caught.value.filename == str(tmp_path / 'a.json')
    with pytest.raises(ConnectionResetError) as other, files.naming('a.json'):
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    assert other.value.filename is None, 'it is not of the disk'


def test_a_library_that_finds_no_room_is_given_the_name_of_the_file(tmp_path):
    class OfSafetensors(Exception):
        pass

    with pytest.raises(OSError, match='No space left on device') as caught:
        with whole_file(tmp_path / 'weights'):
            raise OfSafetensors('I/O error: No space left on device (os error 28)')
    assert caught.value.filename == str(tmp_path / 'weights') and caught.value.errno == errno.ENOSPC
    with pytest.raises(OfSafetensors, match='another'), whole_file(tmp_path / 'weights'):
        raise OfSafetensors('another')
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_closed_leaves_none_behind(tmp_path, monkeypatch):
    """Network file systems say only there that a disk is full."""

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, 'close', fail)
        with pytest.raises(OSError, match='No space left'):
            files.write(tmp_path / 'a.json', '')
    assert not list(tmp_path.iterdir())


def test_no_link_is_followed(tmp_path):
    victim = tmp_path / 'victim'
    victim.write_text('precious')
    link, second = tmp_path / 'link', tmp_path / 'second'
    link.symlink_to(victim)
    os.link(victim, second)
    for path in (link, second):
        for mode in ('a', 'w', 'a+', 'r+b', 'w+b'):
            with pytest.raises(UsageError, match='Nothing was written'):
                files.open_own(path, mode)
        with pytest.raises(UsageError, match='Nothing was written'):
            with files.opened(str(path), None) as file:
                file.write('other')
        files.write(path, 'other')
        assert path.read_text() == 'other' and not path.is_symlink()
    assert victim.read_text() == 'precious'
    folder, elsewhere = tmp_path / 'folder', tmp_path / 'elsewhere'
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(UsageError, match='symbolic link'):
        files.own_folder(folder)
    assert files.own_folder(tmp_path / 'new' / 'one').is_dir()


def test_what_is_not_a_file_is_not_replaced(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    with pytest.raises(OSError, match='not a file'):
        files.write(pipe, 'x')
    with pytest.raises(UsageError, match='Nothing was written'):
        files.open_own(pipe, 'w')
    with pytest.raises(UsageError, match='device'):
        files.require_writable('/dev/null', '--output=/dev/null')
    with pytest.raises(UsageError, match=f'there is no folder {tmp_path}/new; make it first'):
        files.require_writable(tmp_path / 'new' / 'file', '--output=new/file')
    with files.opened('/dev/null', None) as file:
        file.write('read by nobody')


def test_a_file_is_on_the_disk_before_its_name_and_its_folder_after(tmp_path, monkeypatch):
    path, seen = tmp_path / 'a', []
    monkeypatch.setattr(files, 'sync', lambda each: seen.append((each.name, path.exists())))
    files.write(path, 'text')
    (first, before), *rest = seen
    assert first.endswith('.partial') and not before and rest == [(tmp_path.name, True)]


def test_arrays_and_json_are_read_back(tmp_path):
    files.write_arrays(tmp_path / 'a.npz', one=np.arange(3))
    assert np.load(tmp_path / 'a.npz')['one'].tolist() == [0, 1, 2]
    files.write_json(tmp_path / 'a.json', {'é': 1})
    assert (tmp_path / 'a.json').read_text() == '{\n "\\u00e9": 1\n}\n'
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / 'a.json'
    with whole_file(path) as partial:
        partial.write_text('first')
        assert not path.exists(), 'the name must not exist before the file is whole'
    with whole_file(str(path)) as partial:
        partial.write_text('second')
        assert path.read_text() == 'first', 'the old file stays until the new one is whole'
    assert path.read_text() == 'second'
    assert [file.name for file in tmp_path.iterdir()] == ['a.json']


def test_experiments_write_figures_and_tables_through_the_door():
    for path in (PACKAGE.parent / 'experiments').rglob('*.py'):
        text = path.read_text()
        assert '.savefig(' not in text, f'{path}: use `figures.save`'
        if path.stem in ('table', 'report', 'story_report', 'mqar_curve'):
            assert '.write_text(' not in text, f'{path}: use `files.write`'


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text('old')
    with pytest.raises(ValueError, match='halfway'), whole_file(path) as partial:
        partial.write_text('ne')
        raise ValueError('halfway')
    assert path.read_text() == 'old'
    assert [file.name for file in tmp_path.iterdir()] == ['a.json']


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    path = tmp_path / 'a.json'
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.write_text('precious')
    (tmp_path / f'a.json.{os.getpid()}.partial').symlink_to(elsewhere)
    with whole_file(path) as partial:
        partial.write_text('whole')
    assert path.read_text() == 'whole' and elsewhere.read_text() == 'precious'


def test_processes_that_write_one_file_do_not_meet(tmp_path, monkeypatch):
    path = tmp_path / 'a.json'
    with whole_file(path) as partial:
        partial.write_text('first')
        with monkeypatch.context() as other:
            other.setattr(os, 'getpid', lambda: 1)
            with whole_file(path) as second:
                second.write_text('second')
        assert path.read_text() == 'second'
    assert path.read_text() == 'first', 'a part of the other process must not be taken or missed'


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError), whole_file(tmp_path / 'none' / 'a') as partial:
        partial.write_text('x')


def test_checksums_of_files_and_bytes_agree(tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / 'a').write_bytes(content)
    assert checksum(tmp_path / 'a') == checksum(content) == hashlib.sha256(content).hexdigest()
    assert checksum(content) != checksum(content[:-1])


def test_a_whole_file_can_be_read_by_those_who_may_read_others(tmp_path):
    (tmp_path / 'plain').touch()
    with whole_file(tmp_path / 'made') as partial:
        partial.unlink()
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))  # as safetensors does
    assert (tmp_path / 'made').stat().st_mode == (tmp_path / 'plain').stat().st_mode


def test_a_relative_path_to_nothing_says_where_it_was_looked_for(tmp_path, monkeypatch):
    """The config.json of a run keeps it, and the next command may be started elsewhere."""
    (tmp_path / 'there').mkdir()
    monkeypatch.chdir(tmp_path)
    assert files.looked_for('DATA') == f' (it is looked for in {tmp_path})'
    for given in ('there', str(tmp_path / 'DATA'), ''):
        assert files.looked_for(given) == ''
    data = base().data
    data.path, data.documents = 'DATA', 'folder'
    for refused in (
        lambda: load.load_source(data, 'train'),
        lambda: load_tokenizer('bpe', Path('DATA')),
        lambda: hosts.find('DATA/a/b'),
    ):
        with pytest.raises(UsageError, match=f'DATA.*it is looked for in {tmp_path}'):
            refused()
