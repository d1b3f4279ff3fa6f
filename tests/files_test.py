"""Files are written completely or not at all."""

import hashlib
import os

import pytest

from longmem_jax.files import checksum, whole_file


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
