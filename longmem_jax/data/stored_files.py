"""Bytes of files by position, so that one document can be read without the rest of its file.

A plain file is read directly. A .gz or .xz file has no random access: on the first read of a part it
is unpacked once into a temporary file, which disappears with the process.
"""

import contextlib
import gzip
import lzma
import os
import shutil
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError

PACKED: dict[str, Callable[..., Any]] = {'.gz': gzip.open, '.xz': lzma.open}
CHUNK = 1 << 20
MARK = b'\xef\xbb\xbf'  # a byte-order mark, which some editors write at the begin; it is no text
SMALL = 64 << 20  # bytes that any file may unpack to
MOST_TIMES = 250  # its own size: a larger file unpacks to more; texts, to less than 20 times
ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong with reading or unpacking a file into a `UsageError` that names it."""
    try:
        yield
    except ERRORS as error:
        raise UsageError(f'{path}: cannot be read ({error}).') from error


def memory() -> int:
    """Bytes that may be read at once: half of the memory of this machine."""
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 2


def unpacked(path: Path, room: int, where: str) -> Iterator[bytes]:
    """The bytes of a .gz or .xz file, or of a plain one, a chunk at a time.

    Args:
      room: bytes that it may have, at most.
      where: whose room that is, and what to do if it is too little.

    Raises:
      UsageError: it has more, or is packed as no text is; nothing of more than `room` is unpacked.
      OSError and others of `ERRORS`: it cannot be read or unpacked.
    """
    size, most = 0, max(SMALL, MOST_TIMES * path.stat().st_size)
    with PACKED.get(path.suffix, open)(path, 'rb') as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            if size > room:
                raise UsageError(f'{path}: has more than {room:,} bytes, {where}.')
            if path.suffix in PACKED and size > most:
                raise UsageError(
                    f'{path}: unpacks to more than {most:,} bytes, {MOST_TIMES} times its size, which '
                    'no text does; if it is one, unpack it yourself.'
                )
            yield chunk


def read_whole(path: Path) -> bytes:
    """The unpacked bytes of a file, without a byte-order mark.

    Raises:
      UsageError: it cannot be read or unpacked, or has no room in memory.
    """
    where = (
        'half of the memory of this machine: cut it into files, or read it by lines '
        '(--config.data.documents=line)'
    )
    with errors_of(path):
        return b''.join(unpacked(path, memory(), where)).removeprefix(MARK)


class StoredFiles:
    """Parts of files; every method raises `UsageError` if a file cannot be read or unpacked."""

    def __init__(self) -> None:
        """Opens nothing yet."""
        self._unpacked: Any = None
        self._ranges: dict[Path, tuple[int, int]] = {}  # start and size in the temporary file
        self._lock = threading.Lock()

    def _unpack(self, path: Path) -> tuple[int, int]:
        """Start and size of a file in the temporary file, unpacked at the first call."""
        with self._lock:
            if path not in self._ranges:
                if self._unpacked is None:
                    self._unpacked = tempfile.TemporaryFile(prefix='longmem_jax_')
                    weakref.finalize(self, self._unpacked.close)
                start = self._unpacked.seek(0, os.SEEK_END)
                folder = tempfile.gettempdir()
                room = shutil.disk_usage(folder).free * 9 // 10
                where = (
                    f'which {folder} has no room for: set TMPDIR to another folder, or unpack it'
                )
                try:
                    for chunk in unpacked(path, room, where):
                        self._unpacked.write(chunk)
                except BaseException:
                    self._unpacked.truncate(start)
                    raise
                self._unpacked.flush()
                self._ranges[path] = start, self._unpacked.tell() - start
            return self._ranges[path]

    def size(self, path: Path) -> int:
        """Unpacked bytes of a file."""
        with errors_of(path):
            return self._unpack(path)[1] if path.suffix in PACKED else path.stat().st_size

    def read(self, path: Path, start: int, end: int) -> bytes:
        """The unpacked bytes from `start` to `end`, which the file had when it was opened."""
        with errors_of(path):
            if path.suffix in PACKED:
                base = self._unpack(path)[0]
                return self._pread(self._unpacked.fileno(), base + start, end - start)
            with open(path, 'rb', buffering=0) as file:
                return self._pread(file.fileno(), start, end - start)

    @staticmethod
    def _pread(descriptor: int, start: int, size: int) -> bytes:
        chunks = []
        while size and (chunk := os.pread(descriptor, size, start)):  # at most 2 GiB per call
            chunks.append(chunk)
            start, size = start + len(chunk), size - len(chunk)
        if size:
            raise OSError(f'it has become shorter: {size} bytes before {start + size} are missing')
        return b''.join(chunks)

    def lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """(start, line without its end) of every line; holds one chunk and one line in memory."""
        parts, start, size = [], 0, self.size(path)  # of the line whose end has not come yet
        for at in range(0, size, CHUNK):
            first, *others = self.read(path, at, min(at + CHUNK, size)).split(b'\n')
            parts.append(first)
            if not others:
                continue  # joined once, when the end is there: else long lines take quadratic time
            *lines, rest = b''.join(parts), *others
            for line in lines:
                yield start, line
                start += len(line) + 1
            parts = [rest]
        if line := b''.join(parts):
            yield start, line
