"""The one door for writing: no link is followed, and a file is there whole or not at all; checksums.

No other file of the package opens one for writing. What libraries write, they write to the path that
`whole_file` yields. A folder may come from anywhere with links in it (an archive, a shared disk), and a
link in the place of a name that a run writes would lead to a file of the user. A name is looked at when
it is opened; this does not protect from somebody who changes the folder at the same moment.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from longmem_jax.errors import UsageError, of_disk

# Of file systems that cannot synchronize a folder.
UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Makes a problem of a disk that names no file an `OSError` of `path`: a full disk names none, and
    safetensors has an error of its own.
    """
    try:
        yield
    except Exception as error:
        number = of_disk(error)
        if not number or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` when the block ends without an error.

    Readers of `path` find the old file or the new one, even if the process is killed or the power is
    cut in between; of two processes that write it, the last one's file is there. A link at `path` is
    replaced, and what it leads to stays as it is.

    Args:
      path: the file to write or replace; its folder must exist.

    Yields:
      An empty file in the same folder, to be opened by its name; it is deleted if the block fails.

    Raises:
      OSError: as of a file system; also if `path` is there and is a folder, a device or a pipe.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, 'is there and is not a file', str(path))
    partial = path.with_name(f'{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial')
    opened = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        os.close(opened)
        with naming(path):
            yield partial
        partial.chmod(mode)  # safetensors makes a file of its own, which nobody else may read
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write(path: str | Path, content: str | bytes) -> None:
    """Writes or replaces a file as a whole; text as UTF-8, its line ends as they are."""
    with whole_file(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: str | Path, content: Any, indent: int | None = 1) -> None:
    """Writes or replaces a file with JSON as a whole."""
    write(path, json.dumps(content, indent=indent) + '\n')


def write_arrays(path: str | Path, **arrays: np.ndarray) -> None:
    """Writes or replaces an .npz file as a whole."""
    with whole_file(path) as partial, partial.open('wb') as file:
        named: dict[str, Any] = dict(arrays)
        np.savez(file, **named)


def copy(source: Path, target: Path) -> None:
    """Copies the content of a file to a file that is written as a whole."""
    with whole_file(target) as partial:
        shutil.copyfile(source, partial)


def open_own(path: str | Path, mode: str) -> Any:
    """Opens a file that is written bit by bit, and only if it is this folder's own.

    Args:
      path: the file; made if `mode` makes one.
      mode: as of `open`; nothing is cut off before the file was looked at.

    Raises:
      UsageError: a symbolic link, a file with a second name (a hard link), or no file.
    """
    return open(path, mode, opener=_own, encoding=None if 'b' in mode else 'utf-8')


def _own(path: str, flags: int) -> int:
    """An opener for `open_own`."""
    cut = flags & os.O_TRUNC
    try:
        # Without O_NONBLOCK a named pipe would wait for a reader.
        opened = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_own(path) from error
        raise
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(opened)
        raise _not_own(path)
    if cut:
        os.ftruncate(opened, 0)
    return opened


def _not_own(path: str | Path) -> UsageError:
    return UsageError(
        f'{path}: is a link, has a second name, or is not a file, so that something elsewhere would be '
        'written. Nothing was written; move it away and run the same command.'
    )


def own_folder(path: Path) -> Path:
    """Makes a folder for what a run writes, unless it is there; returns it.

    Raises:
      UsageError: it is a link.
    """
    if path.is_symlink():
        raise UsageError(
            f'{path}: is a symbolic link, and what it leads to may be of another run. Nothing was '
            'written there; put the folder itself in the place of the link, or move the link away, and '
            'run the same command.'
        )
    path.mkdir(exist_ok=True, parents=True)
    return path


def named(folder: Path, pattern: str = '*') -> list[Path]:
    """The paths in a folder with such names, sorted; [] where it is not there.

    Raises:
      OSError: it cannot be listed; `Path.glob` takes that for an empty folder.
    """
    try:
        return sorted(path for path in folder.iterdir() if fnmatch(path.name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return []


def looked_for(path: str | Path) -> str:
    """Where a relative path that leads to nothing was looked for, for a message; '' for any other.

    The config.json of a run keeps paths as they were given, and its commands may be started elsewhere.
    """
    given = os.path.expanduser(path)
    nothing = given and not os.path.isabs(given) and not os.path.exists(given)
    return f' (it is looked for in {os.getcwd()})' if nothing else ''


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk, as after a power cut."""
    folder = path.is_dir()
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECTORY if folder else os.O_NOFOLLOW))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def require_writable(path: str | Path, argument: str) -> None:
    """Raises `UsageError` where `path` cannot become a file, so that hours of work are not lost.

    Args:
      path: the file to write.
      argument: what named it, for the message: '--output=FILE'.
    """
    path = Path(path).expanduser()
    try:
        if path.exists() and not path.is_file():
            raise IsADirectoryError('it is a folder or a device; name a file')
        if not (folder := path.absolute().parent).is_dir():
            raise FileNotFoundError(f'there is no folder {folder}; make it first')
        probe(folder)
    except OSError as error:
        raise UsageError(f'{argument}: cannot be written ({error}).') from error


def probe(folder: Path) -> None:
    """Raises `OSError` where no file can be made in a folder; leaves none there."""
    tempfile.TemporaryFile(dir=folder).close()


@contextlib.contextmanager
def temporary(folder: Path, prefix: str) -> Iterator[Path]:
    """An empty file in a folder, with a name that no other has; it is deleted after the block."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix) as file:
        yield Path(file.name)


@contextlib.contextmanager
def opened(output: str, otherwise: TextIO) -> Iterator[TextIO]:
    """The file `--output=` to write text to; `otherwise` if there is none.

    What was written is there if the process is killed. A device or a pipe (/dev/stdout) may be named.

    Raises:
      UsageError: the file cannot be written, or is a link to another.
    """
    if not output:
        yield otherwise
        return
    path = Path(output).expanduser()
    try:
        plain = path.exists() and not path.is_file()
        with path.open('w', encoding='utf-8') if plain else open_own(path, 'w') as file:
            yield file
    except OSError as error:
        raise UsageError(f'--output={output}: cannot be written ({error}).') from error


def nowhere() -> TextIO:
    """A stream whose text is lost."""
    return open(os.devnull, 'w')


def checksum(content: bytes | Path) -> str:
    """SHA-256 of some bytes, or of a file, in hexadecimal."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
