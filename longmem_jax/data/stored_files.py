"""Bytes of files by position, so that one document is read without its neighbours.

A plain file is read where it lies. A .gz or .xz cannot be entered in the middle: where a part of it
is asked for, it is unpacked once into a temporary file that disappears with the process.
"""

import gzip
import lzma
import os
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

from longmem_jax.errors import UsageError

PACKED = {'.gz': gzip.open, '.xz': lzma.open}
CHUNK = 1 << 20
FAULTS = (OSError, EOFError, lzma.LZMAError, zlib.error)


def _fault(path: Path, error: Exception) -> UsageError:
    return UsageError(f'{path}: cannot be read ({error}).')


def read_whole(path: Path) -> bytes:
    """The unpacked bytes of a file.

    Raises:
      UsageError: it cannot be read or unpacked.
    """
    try:
        with PACKED.get(path.suffix, open)(path, 'rb') as file:
            return file.read()
    except FAULTS as error:
        raise _fault(path, error) from error


class StoredFiles:
    """Parts of files; every method raises `UsageError` where a file cannot be read or unpacked."""

    def __init__(self):
        """Opens nothing yet."""
        self._unpacked = None
        self._places: dict[Path, tuple[int, int]] = {}  # start and size in the temporary file
        self._lock = threading.Lock()

    def _unpack(self, path: Path) -> tuple[int, int]:
        with self._lock:
            if path not in self._places:
                if self._unpacked is None:
                    self._unpacked = tempfile.TemporaryFile(prefix='longmem_jax_')
                    weakref.finalize(self, self._unpacked.close)
                start = self._unpacked.seek(0, os.SEEK_END)
                with PACKED[path.suffix](path, 'rb') as file:
                    while chunk := file.read(CHUNK):
                        self._unpacked.write(chunk)
                self._unpacked.flush()
                self._places[path] = start, self._unpacked.tell() - start
            return self._places[path]

    def size(self, path: Path) -> int:
        """Unpacked bytes of a file."""
        try:
            return self._unpack(path)[1] if path.suffix in PACKED else path.stat().st_size
        except FAULTS as error:
            raise _fault(path, error) from error

    def read(self, path: Path, start: int, end: int) -> bytes:
        """The unpacked bytes from `start` to `end`."""
        try:
            if path.suffix in PACKED:
                base = self._unpack(path)[0]
                return self._pread(self._unpacked.fileno(), base + start, end - start)
            with open(path, 'rb', buffering=0) as file:
                return self._pread(file.fileno(), start, end - start)
        except FAULTS as error:
            raise _fault(path, error) from error

    @staticmethod
    def _pread(number: int, start: int, size: int) -> bytes:
        parts = []
        while size and (part := os.pread(number, size, start)):  # one call gives 2 GiB at most
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b''.join(parts)

    def lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """(start, line without its end) of every line, in the memory of the longest line."""
        rest, start, size = b'', 0, self.size(path)
        for at in range(0, size, CHUNK):
            *whole, rest = (rest + self.read(path, at, min(at + CHUNK, size))).split(b'\n')
            for line in whole:
                yield start, line
                start += len(line) + 1
        if rest:
            yield start, rest
