"""Parts of files that others made: exactly the bytes that are asked for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError


def opened(path: Path, where: str, buffering: int = 0) -> Any:
    """A file for reading; a pipe would be waited for, so only regular files are opened.

    Raises:
      UsageError: naming `where`, it cannot be read.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError('no regular file of that name')
        return path.open('rb', buffering=buffering)
    except (OSError, ValueError) as error:
        raise UsageError(f'{where}: cannot be read ({error}).') from error


def read(
    file: Any, start: int, size: int, where: str, problem: Callable[[str], UsageError]
) -> bytearray:
    """`size` bytes from `start` on; the caller has compared both with the size of the file.

    Any number of threads may read from one file.

    Raises:
      UsageError: `problem` of the reason, if the file has become shorter; naming `where`, if it cannot
        be read.
    """
    try:
        content, at = bytearray(size), 0
        while at < size:
            count = os.preadv(file.fileno(), [memoryview(content)[at : at + (1 << 30)]], start + at)
            if not count:
                raise problem('it ends early')
            at += count
    except (OSError, MemoryError) as error:
        raise UsageError(f'{where}: cannot be read ({error}).') from error
    return content
