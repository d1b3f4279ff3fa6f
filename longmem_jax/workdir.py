"""The folder of a run: made, proved to be writable, and written by one run at a time."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from longmem_jax.errors import UsageError
from longmem_jax.files import open_own, probe

LOCK = '.lock'
# Which process this is: the system gives the number of one that has ended to another.
_PROCESS = uuid.uuid4().hex
TAKEN = (errno.EWOULDBLOCK, errno.EACCES)  # what `flock` says where another process has the lock
# The locks of this process by folder; None where the file system has none.
_held: dict[tuple[int, int], '_Lock | None'] = {}


@contextlib.contextmanager
def workdir_of(workdir: str, *, trained: bool = False, writes: bool = True) -> Iterator[Path]:
    """`prepare_workdir` for a block; a folder that it made goes again if the block leaves it empty.

    So does one that is refused, or that reads a pretrained model alone.
    """
    is_new = not os.path.lexists(Path(workdir).expanduser())
    path = prepare_workdir(workdir, trained=trained, writes=writes)
    try:
        yield path
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # something is in it, or it is gone
                path.rmdir()


def prepare_workdir(workdir: str, *, trained: bool = False, writes: bool = True) -> Path:
    """Makes the folder of a run, and checks that it can be written.

    Args:
      trained: the folder must be there already; none is made.
      writes: whether files will be written; else a folder that cannot be written will do.

    Raises:
      UsageError: no folder was given, it is not there or cannot be written, it is an address, or its
        name is not UTF-8.
    """
    if not workdir:
        raise UsageError('--workdir= is missing: the folder for checkpoints, events and results.')
    if '://' in workdir:
        raise UsageError(
            f'--workdir={workdir}: an address; give a folder, such as one where a bucket is mounted.'
        )
    path = Path(workdir).expanduser()
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f'--workdir={ascii(os.path.abspath(path))}: a path that is not UTF-8, which the library of '
            'checkpoints cannot open; rename the folder, or use another.'
        ) from error
    if trained and not path.is_dir():
        raise UsageError(f'--workdir={workdir}: no such folder; train first.')
    try:
        if writes or not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            probe(path)
    except OSError as error:
        raise UsageError(f'--workdir={workdir}: cannot be written ({error}).') from error
    return path


class _Lock:
    """What this process has of a folder: the locked `.lock`, and the folder."""

    def __init__(self, folder: Path, descriptor: int, field: str):
        self.file = _locked(folder, field)
        self.folder = os.dup(descriptor)
        try:
            # The file can be deleted while a run is writing; the folder not without the run.
            fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in TAKEN:
                self.close()
                holder = 'another process, whose .lock was deleted,'
                raise _taken(folder, holder, field) from error

    def close(self) -> None:
        """Gives both locks back; raises nothing, since an error may be under way that says more."""
        # Not deleted: another run could have it open, and a third one make a new one.
        for give_up in (
            lambda: self.file.truncate(0),
            self.file.close,
            lambda: os.close(self.folder),
        ):
            with contextlib.suppress(OSError):  # the system takes locks back in any case
                give_up()


class Hold:
    """A run's hold on its folder: nobody else writes there, and the folder stays where it is.

    Process 0 has a lock (`flock`) on the file `.lock`, which the system takes back when the process
    ends, however it ends. The file says who has it. Where the file system can, the folder is locked as
    well.
    """

    def __init__(self, folder: Path, report: Callable[[str], None], field: str = '--workdir'):
        """Takes the folder, and makes it if needed.

        Args:
          field: what names the folder, for messages.
          report: called with a line where the file system has no locks, which the run does without, and
            where `.lock` was deleted while the run was writing.

        Raises:
          UsageError: another run writes there, the folder cannot be written, or `.lock` is a link.
        """
        self.folder, self._report, self._field = folder, report, field
        self._key: tuple[int, int] | None = None
        self._descriptor: int | None = None
        if jax.process_index() != 0:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Open, so that no other folder gets its number.
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._take(self._descriptor)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise UsageError(f'{field}={folder}: cannot be written ({error}).') from error
            raise

    def _take(self, descriptor: int) -> None:
        """Locks the folder; sets the key of the lock in `_held`."""
        key = _number(os.fstat(descriptor))
        # Asked before the file is opened: on some file systems closing any handle gives up the lock.
        if key in _held:
            holder = 'another call in this process, such as one of a hook or a thread,'
            raise _taken(self.folder, holder, self._field)
        try:
            _held[key] = _Lock(self.folder, descriptor, self._field)
        except _NoLocks as error:
            _held[key] = None
            self._report_no_locks(error)
        self._key = key

    def _report_no_locks(self, error: '_NoLocks') -> None:
        self._report(
            f'{self.folder}: this file system has no locks ({error}); take care that no other run '
            'writes there.'
        )

    def require_there(self) -> None:
        """Raises `UsageError` if the folder was deleted, renamed or replaced, or its lock was taken.

        A `.lock` that was deleted is made and locked again, if no other run has done that.
        """
        if self._descriptor is None:
            return
        if not _same(self.folder.resolve(), self._descriptor):
            raise UsageError(
                f'--workdir={self.folder}: the folder was deleted, renamed or replaced while the run '
                'was writing there. The run has stopped; put the folder back in the '
                'place of what is there now, and run the same command.'
            )
        lock = _held.get(self._key) if self._key else None
        if lock and not _same(self.folder / LOCK, lock.file.fileno()):
            self._report(
                f'{self.folder / LOCK}: was deleted or replaced while the run was writing, and is taken '
                'again. Leave it there: it keeps other runs away.'
            )
            try:
                lost, lock.file = lock.file, _locked(self.folder, self._field)
            except _NoLocks as error:
                self._report_no_locks(error)
            else:
                lost.close()

    def close(self) -> None:
        """Gives the folder up; may be called twice."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # as in `_Lock.close`
                os.close(self._descriptor)
            self._descriptor = None
        if self._key is not None and self._key in _held:
            if (lock := _held.pop(self._key)) is not None:
                lock.close()
        self._key = None


class _NoLocks(Exception):
    """The file system has no locks."""


def _locked(folder: Path, field: str) -> Any:
    """The open file `.lock` of a folder, locked, with who has it; raises `UsageError` or `_NoLocks`."""
    file = open_own(folder / LOCK, 'a+')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = _holder(file.read())
        file.close()
        if error.errno in TAKEN:
            raise _taken(folder, holder, field) from error
        raise _NoLocks(error.strerror) from error
    file.truncate(0)
    about = {'host': socket.gethostname(), 'pid': os.getpid(), 'process': _PROCESS}
    # The lock holds on a full disk as well. No buffer: what one keeps fails again when it is closed.
    with contextlib.suppress(OSError):
        os.write(file.fileno(), json.dumps(about).encode() + b'\n')
    return file


def _taken(folder: Path, holder: str, field: str) -> UsageError:
    return UsageError(
        f'{field}={folder}: {holder} is writing there. Wait for it, stop it, or use another {field}.'
    )


def _same(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to what is open."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(text: str) -> str:
    """Who has a lock, in words, from the content of its file."""
    try:
        about = json.loads(text)
        return f'process {int(about["pid"])} on {str(about["host"])!r}'
    except (ValueError, TypeError, KeyError):
        return 'another process'
