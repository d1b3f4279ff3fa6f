"""Where the lines of a file begin and end: found a chunk at a time, without an object per line."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data import stored_files
from longmem_jax.data.stored_files import StoredFiles

IN_MEMORY = 1 << 20  # lines of a file, at most; the borders of more are in a temporary file
BLANK = np.isin(np.arange(256), np.frombuffer(b' \t\n\r\v\f', np.uint8))  # as of `bytes.strip`


class _Borders:
    """Rows (start, end) that are collected, in memory or in a temporary file."""

    def __init__(self, path: Path):
        self._path, self._number = path, 0
        self._rows: list[np.ndarray] = []
        self._file: Any = None

    def add(self, rows: np.ndarray) -> None:
        """Appends int64 [n, 2]."""
        self._rows.append(rows)
        self._number += len(rows)
        if self._number > IN_MEMORY:
            with stored_files.errors_of(self._path):
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix='longmem_jax_')
                for rows in self._rows:
                    self._file.write(rows)
            self._rows = []

    def whole(self) -> np.ndarray:
        """All rows, int64 [n, 2]; those in a file are read when they are asked for."""
        if self._file is None:
            return np.concatenate([np.zeros((0, 2), np.int64), *self._rows])
        with self._file:  # what is mapped stays readable
            self._file.flush()
            return np.memmap(self._file, np.int64, 'r', shape=(self._number, 2))


def line_borders(files: StoredFiles, path: Path) -> np.ndarray:
    """(start, end) of the lines that are not blank, line ends included, int64 [lines, 2].

    Takes 16 bytes per line, on disk if there are many, and reads every byte once.

    Raises:
      UsageError: the file cannot be read or unpacked, or there is no room for a temporary file.
    """
    size, chunk = files.size(path), stored_files.CHUNK
    borders, begin, filled = _Borders(path), 0, False  # the open line: its start; is it not blank
    for at in range(0, size, chunk):
        data = np.frombuffer(files.read(path, at, min(at + chunk, size)), np.uint8)
        ends = np.flatnonzero(data == ord('\n')) + 1
        starts = np.concatenate([[0], ends])
        inside = starts[:-1] if starts[-1] == len(data) else starts
        lines = np.logical_or.reduceat(~BLANK[data], inside)  # which are not blank
        lines[0] |= filled
        if len(ends):
            rows = np.stack([starts[:-1], ends], axis=1) + at
            rows[0, 0] = begin
            borders.add(rows[lines[: len(ends)]])
            begin = at + int(ends[-1])
        filled = bool(lines[-1]) and begin < at + len(data)
    if filled:
        borders.add(np.asarray([[begin, size]], np.int64))
    return borders.whole()
