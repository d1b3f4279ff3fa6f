"""Files that are written whole or not at all, and checksums of what is stored."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A name to write to; that file takes the place of `path` when the block ends without an error.

    Whoever reads `path` finds the old file or the new one, also if the process is killed meanwhile.

    Args:
      path: the file to write or to replace; its folder exists.

    Yields:
      A temporary name in the same folder; what was written there is deleted if the block fails.
    """
    path = Path(path)
    partial = path.with_name(path.name + '.partial')
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
