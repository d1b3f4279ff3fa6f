"""Events for TensorBoard, written by the caller: an error of the disk is the caller's to report."""

import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from longmem_jax.files import open_own

_VERSION = 'brain.Event:2'  # of the format, in the first event of a file


class Events:
    """One new file of events in a folder."""

    def __init__(self, folder: Path, purge: int | None = None):
        """Opens the file.

        From step `purge` on TensorBoard forgets what older files hold; None = nothing.

        Raises:
          OSError: the file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which begin with the second. A name that
        # nobody can know cannot be that of a link.
        name = f'events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}'
        count, word = len(list(folder.glob('events*'))), secrets.token_hex(4)
        self._path = folder / f'{name}.{count:05}.{word}'
        self._file = open_own(self._path, 'ab')
        self._add(Event(file_version=_VERSION))
        if purge is not None:
            self._add(Event(step=purge, file_version=_VERSION))
            self._add(Event(step=purge, session_log=SessionLog(status=SessionLog.START)))

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """An error of writing names the file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _add(self, event: Event) -> None:
        """Adds one event: its length, the event, and a checksum of each."""
        event.wall_time = time.time()
        data = event.SerializeToString()
        with self._named():
            for part in (struct.pack('<Q', len(data)), data):
                self._file.write(part + struct.pack('<I', masked_crc32c(part)))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Adds a number."""
        self._add(Event(step=step, summary=summary.scalar(name, value)))

    def text(self, name: str, text: str, step: int) -> None:
        """Adds a text."""
        self._add(Event(step=step, summary=summary.text(name, text)))

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        """Adds an image: uint8 [height, width, 3]."""
        self._add(Event(step=step, summary=summary.image(name, pixels, dataformats='HWC')))

    def show(self) -> None:
        """Hands what was added to the system, so that TensorBoard can read it."""
        with self._named():
            self._file.flush()

    def flush(self) -> None:
        """Waits until what was added is on the disk."""
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, with all that was added."""
        with self._named():
            self._file.close()
