"""The folder of a run: one run at a time, and no folder for a mistyped name."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from longmem_jax import workdir
from longmem_jax.errors import UsageError
from longmem_jax.workdir import LOCK, Hold, prepare_workdir, workdir_of

# A process that holds a folder until it is ended, without JAX, whose import takes seconds.
HOLDER = """
import fcntl, json, os, socket, sys, time
file = open(sys.argv[1], 'a+')
fcntl.flock(file, fcntl.LOCK_EX)
file.write(json.dumps({'host': socket.gethostname(), 'pid': os.getpid(), 'process': 'other'}))
file.flush()
print('held', flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    process = subprocess.Popen(
        [sys.executable, '-c', HOLDER, str(tmp_path / LOCK)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == 'held\n'
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_that_another_process_writes_is_refused(other, tmp_path):
    said = f"process {other.pid} on '{socket.gethostname()}' is writing there"
    with pytest.raises(UsageError, match=f'--workdir={tmp_path}: {said}'):
        Hold(tmp_path, pytest.fail)
    # Killed without a chance to give it up; what its file says counts no more.
    other.kill()
    other.wait()
    hold = Hold(tmp_path, pytest.fail)
    assert f'"pid": {os.getpid()}' in (tmp_path / LOCK).read_text()
    hold.close()


def test_a_process_holds_a_folder_once_at_a_time(tmp_path):
    """A hook or a thread that trains into the folder would write into the same files."""
    path, first = tmp_path / 'new' / LOCK, Hold(tmp_path / 'new', pytest.fail)
    with pytest.raises(UsageError, match='another call in this process, such as one of a hook'):
        Hold(tmp_path / 'new', pytest.fail)
    with path.open() as file, pytest.raises(BlockingIOError):  # the refused one took nothing away
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.close()
    first.close()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = Hold(tmp_path / 'new', pytest.fail)
    second.require_there()
    second.close()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', none)
    lines = []
    hold = Hold(tmp_path, lines.append)
    assert len(lines) == 1 and 'no locks (No locks available); take care' in lines[0]
    with pytest.raises(UsageError, match='another call in this process'):
        Hold(tmp_path, lines.append)
    hold.require_there()
    (tmp_path / LOCK).unlink()
    hold.require_there()
    hold.close()


def test_giving_up_a_folder_raises_nothing(tmp_path):
    """Or it would take the place of the error that ends a run."""
    hold = Hold(tmp_path, pytest.fail)
    os.close(workdir._held[hold._key].file.fileno())  # a file that cannot be written any more
    hold.close()
    assert not workdir._held
    Hold(tmp_path, pytest.fail).close()


def test_locks_that_a_file_system_has_lost_are_said(tmp_path, monkeypatch):
    lines = []
    hold = Hold(tmp_path, lines.append)
    (tmp_path / LOCK).unlink()

    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, 'flock', none)
        hold.require_there()
    assert 'no locks (No locks available); take care' in lines[-1]
    hold.close()


def test_a_mistyped_folder_is_not_made(tmp_path):
    with pytest.raises(UsageError, match='no such folder; train first'):
        prepare_workdir(str(tmp_path / 'typo'), trained=True)
    assert not list(tmp_path.iterdir())
    assert prepare_workdir(str(tmp_path / 'new')).is_dir()
    assert not list((tmp_path / 'new').iterdir())
    with pytest.raises(UsageError, match='gs://bucket/run: an address; give a folder'):
        prepare_workdir('gs://bucket/run')
    with pytest.raises(UsageError, match='--workdir= is missing'):
        prepare_workdir('')


def test_a_refused_command_leaves_no_empty_folder(tmp_path):
    """A folder that was there stays, and one in which something is."""
    (tmp_path / 'there').mkdir()
    for name, left in (('new', False), ('there', True), ('full', True)):
        with pytest.raises(UsageError, match='refused'):
            with workdir_of(str(tmp_path / name)) as path:
                assert path.is_dir()
                if name == 'full':
                    (path / 'tokenizer.json').touch()
                raise UsageError('refused')
        assert (tmp_path / name).exists() == left, name


def test_a_command_that_writes_nothing_leaves_no_empty_folder(tmp_path):
    (tmp_path / 'there').mkdir()
    for name, left in (('new', False), ('there', True)):
        with workdir_of(str(tmp_path / name), writes=False) as path:
            assert path.is_dir()
        assert (tmp_path / name).exists() == left, name


def test_a_link_in_place_of_the_lock_is_refused(tmp_path):
    victim, run = tmp_path / 'victim', tmp_path / 'run'
    victim.write_text('precious')
    run.mkdir()
    for link in (os.symlink, os.link):
        link(victim, run / LOCK)
        with pytest.raises(UsageError, match=f'{run / LOCK}: is a link'):
            Hold(run, pytest.fail)
        assert victim.read_text() == 'precious'
        (run / LOCK).unlink()
    (run / f'.writable-{os.getpid()}').symlink_to(victim)
    assert prepare_workdir(str(run)) == run and victim.read_text() == 'precious'


def test_a_deleted_lock_is_made_again(tmp_path):
    lines = []
    hold = Hold(tmp_path, lines.append)
    (tmp_path / LOCK).unlink()
    hold.require_there()
    hold.require_there()
    assert len(lines) == 1 and 'was deleted or replaced' in lines[0]
    with (tmp_path / LOCK).open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hold.close()


def test_a_deleted_lock_that_another_run_has_made_stops_this_one(tmp_path, request):
    hold = Hold(tmp_path, lambda _: None)
    (tmp_path / LOCK).unlink()
    other = request.getfixturevalue('other')
    with pytest.raises(UsageError, match=f'process {other.pid} on .* is writing there'):
        hold.require_there()
    hold.close()


def test_a_second_run_is_refused_where_the_lock_of_the_first_was_deleted(tmp_path):
    holder = (
        'import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); '
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, '-c', holder, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout.readline() == b'held\n'
        with pytest.raises(UsageError, match='whose .lock was deleted, is writing there'):
            Hold(tmp_path, pytest.fail)
    hold = Hold(tmp_path, pytest.fail)
    with pytest.raises(BlockingIOError):
        fcntl.flock(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    hold.close()


def test_a_folder_that_is_only_read_needs_no_probe(tmp_path, monkeypatch):
    def none(**_):
        raise OSError(errno.EROFS, 'Read-only file system')

    monkeypatch.setattr(tempfile, 'TemporaryFile', none)
    assert prepare_workdir(str(tmp_path), trained=True, writes=False) == tmp_path
    with pytest.raises(UsageError, match='cannot be written .*Read-only file system'):
        prepare_workdir(str(tmp_path), trained=True)


def test_a_path_that_is_not_utf8_is_refused_at_the_start(tmp_path):
    with pytest.raises(UsageError, match='not UTF-8'):
        prepare_workdir(os.fsdecode(os.fsencode(tmp_path) + b'/\xff'))
