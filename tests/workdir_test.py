"""The folder of a run: one run at a time, and no folder for a mistyped name."""

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from longmem_jax.errors import UsageError
from longmem_jax.workdir import LOCK, Hold, prepare_workdir

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


def test_a_process_may_hold_a_folder_again(tmp_path):
    first, second = (Hold(tmp_path / 'new', pytest.fail) for _ in range(2))
    first.close()
    first.close()
    path = tmp_path / 'new' / LOCK
    with path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second.close()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    third = Hold(tmp_path / 'new', pytest.fail)
    third.require_there()
    third.close()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', none)
    lines = []
    hold = Hold(tmp_path, lines.append)
    assert len(lines) == 1 and 'no locks (No locks available); take care' in lines[0]
    hold.require_there()
    (tmp_path / LOCK).unlink()
    hold.require_there()
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
