"""The folder of a run: made, proved to be writable, and written by one run at a time."""

import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from longmem_jax.errors import UsageError

LOCK = '.lock'
# Which process this is: the system gives the number of one that has ended to another.
_PROCESS = uuid.uuid4().hex
# The open lock files of this process, with how many hold each: `flock` would refuse the second.
_held: dict[tuple[int, int], list[Any]] = {}


def prepare_workdir(workdir: str, *, trained: bool = False) -> Path:
    """Makes the folder of a run and checks that it can be written.

    Args:
      workdir: as given by the user.
      trained: the folder must be there already; none is made.

    Raises:
      UsageError: no folder was given, it is not there or cannot be written, or it is an address.
    """
    if not workdir:
        raise UsageError('--workdir= is missing: the folder for checkpoints, events and results.')
    if '://' in workdir:
        raise UsageError(
            f'--workdir={workdir}: an address; give a folder, such as one where a bucket is mounted.'
        )
    path = Path(workdir).expanduser()
    if trained and not path.is_dir():
        raise UsageError(f'--workdir={workdir}: there is no such folder; train first.')
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f'.writable-{os.getpid()}'
        probe.write_text('')
        probe.unlink()
    except OSError as error:
        raise UsageError(f'--workdir={workdir}: cannot be written ({error}).') from error
    return path


class Hold:
    """A run's hold on its folder: nobody else writes there, and the folder stays where it is.

    Process 0 has a lock (`flock`) on the file `.lock`, which the system takes back when the process
    ends, however it ends. The file says who has it. One process may hold a folder several times.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]):
        """Takes the folder, and makes it if needed.

        Args:
          folder: the folder of a run.
          report: called with a line where the file system has no locks, and the run goes on without.

        Raises:
          UsageError: another run writes there, or the folder cannot be written.
        """
        self.folder, self._report = folder, report
        self._key, self._descriptor = None, None
        if jax.process_index() != 0:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._key = self._take()
            # Open, so that no other folder gets its number.
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f'--workdir={folder}: cannot be written ({error}).') from error

    def _take(self) -> tuple[int, int] | None:
        """The key of the lock in `_held`; None where there are no locks."""
        path = self.folder / LOCK
        # Looked up before it is opened: on some file systems closing any handle gives up the lock.
        if path.exists() and (held := _held.get(_number(os.stat(path)))):
            held[1] += 1
            return _number(os.stat(path))
        file = path.open('a+')
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = _holder(file.read())
            file.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    f'--workdir={self.folder}: {holder} is writing there. Wait for it, stop it, or use '
                    'another --workdir.'
                ) from error
            self._report(
                f'{self.folder}: this file system has no locks ({error.strerror}); take care that no '
                'other run writes there.'
            )
            return None
        file.truncate(0)
        about = {'host': socket.gethostname(), 'pid': os.getpid(), 'process': _PROCESS}
        file.write(json.dumps(about) + '\n')
        file.flush()
        key = _number(os.fstat(file.fileno()))
        _held[key] = [file, 1]
        return key

    def require_there(self) -> None:
        """Raises `UsageError` if the folder was deleted, renamed or replaced."""
        if self._descriptor is None:
            return
        try:
            there = os.path.samestat(os.stat(self.folder), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise UsageError(
                f'--workdir={self.folder}: the folder was deleted, renamed or replaced while the run '
                'was writing there. The run has stopped; put the folder back in the '
                'place of what is there now, and run the same command.'
            )

    def close(self) -> None:
        """Gives the folder up; may be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._key in _held:
            held = _held[self._key]
            held[1] -= 1
            if not held[1]:
                # Not deleted: another run could have it open, and a third one make a new one.
                held[0].truncate(0)
                held[0].close()
                del _held[self._key]
        self._key = None


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(text: str) -> str:
    """Who has a lock, in words, from the content of its file."""
    try:
        about = json.loads(text)
        return f'process {int(about["pid"])} on {str(about["host"])!r}'
    except (ValueError, TypeError, KeyError):
        return 'another process'
