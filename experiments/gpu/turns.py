"""Programs are compiled side by side, and timed while nothing else runs on the device.

Two files are locked, and free again when their process ends, however it ends. Whoever waits to be alone
holds `next`, so that nobody begins to compile before him.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from typing import IO

from experiments.gpu.job import Place

LONGEST = 90.0  # seconds that one waits for those who compile: one of them may take all its time
LOOKED = 0.05  # seconds between two looks


@contextlib.contextmanager
def shared(place: Place) -> Iterator[None]:
    """Together with others who compile, while nobody is alone."""
    with _file(place, 'device') as device:
        with _file(place, 'next') as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(device, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone(place: Place) -> Iterator[bool]:
    """Alone on the device: True; False if after `LONGEST` seconds others still compile."""
    with _file(place, 'device') as device, _file(place, 'next') as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        until, free = time.monotonic() + LONGEST, False
        while not free and time.monotonic() < until:
            try:
                fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except BlockingIOError:
                time.sleep(LOOKED)
        yield free


def _file(place: Place, name: str) -> IO[str]:
    """A file to be locked; closing it gives the lock back."""
    place.output.mkdir(parents=True, exist_ok=True)
    return open(place.output / f'{name}.lock', 'w')
