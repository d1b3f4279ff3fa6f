"""Atomic writing of files, files that commands write, and checksums."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from longmem_jax.errors import UsageError


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` when the block ends without an error.

    Readers of `path` find the old file or the new one, even if the process is killed in between; of two
    processes that write it, the last one's file is there.

    Args:
      path: the file to write or replace; its folder must exist.

    Yields:
      A temporary path in the same folder; the file is deleted if the block fails.
    """
    path = Path(path)
    partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
    partial.unlink(missing_ok=True)  # of a killed process of that number, or a link to elsewhere
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def require_writable(path: str | Path, argument: str) -> None:
    """Raises `UsageError` where `path` cannot become a file, so that hours of work are not lost.

    Args:
      path: the file to write.
      argument: what named it, for the message: '--output=FILE'.
    """
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            raise IsADirectoryError('it is a folder; name a file in it')
        tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        raise UsageError(f'{argument}: cannot be written ({error}).') from error


@contextlib.contextmanager
def opened(output: str, otherwise: TextIO) -> Iterator[TextIO]:
    """The file `--output=` to write text to; `otherwise` if there is none.

    Raises:
      UsageError: the file cannot be written.
    """
    if not output:
        yield otherwise
        return
    try:
        with Path(output).expanduser().open('w', encoding='utf-8') as file:
            yield file
    except OSError as error:
        raise UsageError(f'--output={output}: cannot be written ({error}).') from error


def checksum(content: bytes | Path) -> str:
    """SHA-256 of some bytes, or of a file, in hexadecimal."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
