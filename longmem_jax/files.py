"""Atomic writing of files, and checksums."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


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


def checksum(content: bytes | Path) -> str:
    """SHA-256 of some bytes, or of a file, in hexadecimal."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
