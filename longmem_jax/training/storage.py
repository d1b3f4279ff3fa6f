"""What went wrong with the disk of a run, in one message instead of many tracebacks."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from absl import logging as absl_logging

from longmem_jax.errors import FULL, LOCKED, UsageError, of_disk


def whole_steps(checkpoints: Path) -> list[int]:
    """Steps of the committed checkpoints in a folder, oldest first."""
    try:
        return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal())
    except OSError:
        return []


def require_room(error: BaseException, workdir: Path, checkpoints: Path) -> None:
    """Raises `UsageError` if `error` is a fault of the disk of a run; returns if it is another.

    Args:
      error: what was raised while something was written.
      workdir: the folder of the run.
      checkpoints: the folder of its checkpoints.
    """
    named, steps = getattr(error, 'filename', None) is not None, whole_steps(checkpoints)
    inside = named and _is_in(error.filename, workdir)
    if named and not inside:
        return  # such as a file of the data
    number = of_disk(error)
    whole = f'step {steps[-1]:,} is whole' if steps else 'there is no checkpoint yet'
    if number in FULL:
        raise UsageError(
            f'the disk of {workdir} is full; {whole}. Make room and run the same command.'
        ) from error
    if number or inside:
        done = 'written' if inside or number in LOCKED else 'read or written'
        raise UsageError(
            f'{error.filename if inside else workdir}: cannot be {done} ({_short(error, number)}); '
            f'{whole}. Correct this and run the same command.'
        ) from error


def _is_in(name: Any, folder: Path) -> bool:
    """Whether a file name of an `OSError`, which may be missing or a number, is in a folder."""
    if not isinstance(name, str | Path):
        return False
    try:
        return Path(name).resolve().is_relative_to(folder.resolve())
    except OSError:
        return False


def _short(error: BaseException, number: int) -> str:
    if number:
        return os.strerror(number)
    return getattr(error, 'strerror', None) or (str(error).splitlines() or [''])[0][:200]


class Quiet:
    """While it is open, no tracebacks of Orbax's threads: what they report is raised as well.

    With `--debug` all are shown.
    """

    def __init__(self):
        """Begins."""
        self._logger = absl_logging.get_absl_logger()
        self._previous = sys.excepthook, sys.unraisablehook
        self._logger.addFilter(_not_of_orbax)
        sys.excepthook, sys.unraisablehook = self._except, self._unraisable

    def _except(self, kind: Any, error: BaseException, trace: Any) -> None:
        if not _late(error):
            self._previous[0](kind, error, trace)

    def _unraisable(self, about: Any) -> None:
        if not _late(about.exc_value):
            self._previous[1](about)

    def close(self) -> None:
        """Ends; may be called twice."""
        self._logger.removeFilter(_not_of_orbax)
        if sys.excepthook == self._except:
            sys.excepthook = self._previous[0]
        if sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._previous[1]


def _late(error: BaseException | None) -> bool:
    """Whether a write reported to an event loop that the failure of another has closed."""
    return isinstance(error, RuntimeError) and str(error) == 'Event loop is closed'


def _not_of_orbax(record: logging.LogRecord) -> bool:
    if absl_logging.get_verbosity() >= absl_logging.INFO:
        return True
    return not (record.exc_info and 'orbax' in record.pathname)
