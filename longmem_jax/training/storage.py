"""What went wrong with the disk of a run, in one message instead of many tracebacks."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import logging as absl_logging

from longmem_jax import files
from longmem_jax.errors import FULL, LOCKED, UsageError, of_disk


def whole_steps(checkpoints: Path) -> list[int]:
    """Steps of the committed checkpoints in a folder, oldest first; errors as of `files.named`."""
    return sorted(int(path.name) for path in files.named(checkpoints) if path.name.isdecimal())


def require_room(
    error: BaseException, workdir: Path, checkpoints: Path, *, reads: bool = False
) -> None:
    """Raises `UsageError` if `error` is a problem of the disk of a run; returns if it is another.

    `reads`: checkpoints are only read.
    """
    name = _name_of(error)
    inside = name is not None and _is_in(name, workdir)
    if name is not None and not inside:
        return  # such as a file of the data
    # Orbax asks whether a path is there, takes a problem for a no, and has words of its own for it.
    about = os.path.realpath(checkpoints) in str(error)
    number = of_disk(error)
    if number in FULL:
        raise UsageError(
            f'the disk of {workdir} is full; {_last_whole(checkpoints)}. Make room and run the same '
            'command.'
        ) from error
    if number or inside or about:
        done = 'written' if inside or number in LOCKED else 'read or written'
        done = 'read' if reads else done
        raise UsageError(
            f'{name if inside else workdir}: cannot be {done} ({_short(error, number)}); '
            f'{_last_whole(checkpoints)}. Correct this and run the same command.'
        ) from error


def _last_whole(checkpoints: Path) -> str:
    """The last step with a checkpoint, in words."""
    try:
        steps = whole_steps(checkpoints)
    except OSError:
        return 'the checkpoints cannot be listed'
    return f'step {steps[-1]:,} is whole' if steps else 'there is no checkpoint yet'


def _name_of(error: BaseException) -> Any:
    """The file that an `OSError` names; None if there is none, or only its name in an open folder."""
    name = getattr(error, 'filename', None)
    bare = isinstance(name, str) and os.path.basename(name) == name and not os.path.lexists(name)
    return None if bare else name


def _is_in(name: Any, folder: Path) -> bool:
    """Whether a file name of an `OSError`, which may be missing or a number, is in a folder."""
    if not isinstance(name, str | Path):
        return False
    try:
        return Path(name).resolve().is_relative_to(folder.resolve())
    except OSError:
        return False


def _short(error: BaseException, number: int) -> str:
    return (
        getattr(error, 'strerror', None)
        or (number and os.strerror(number))
        or (str(error).splitlines() or [''])[0][:200]
    )


class Quiet:
    """While it is open, no words of Orbax and its tasks: what is wrong is raised as well.

    With `--debug` all are shown. Late reports (see `_late`) may come until the process ends, and are
    hidden until then.
    """

    def __init__(self) -> None:
        """Begins."""
        # asyncio reports tasks that Orbax has left behind.
        self._loggers = absl_logging.get_absl_logger(), logging.getLogger('asyncio')
        for logger in self._loggers:
            logger.addFilter(_not_of_orbax)
        for name in ('excepthook', 'unraisablehook'):
            if not isinstance(getattr(sys, name), _WithoutLate):
                setattr(sys, name, _WithoutLate(getattr(sys, name)))

    def close(self) -> None:
        """Ends; may be called twice."""
        for logger in self._loggers:
            logger.removeFilter(_not_of_orbax)


class _WithoutLate:
    """A hook of `sys` for errors that nobody catches, without late reports."""

    def __init__(self, previous: Callable[..., None]):
        self._previous = previous

    def __call__(self, *about: Any) -> None:
        """`about`: kind, error and trace of `excepthook`, or what `unraisablehook` gets."""
        if not _late(about[0].exc_value if len(about) == 1 else about[1]):
            self._previous(*about)


def _late(error: BaseException | None) -> bool:
    """Whether a write or a read reported to an event loop that the failure of another has closed."""
    return isinstance(error, RuntimeError) and str(error) == 'Event loop is closed'


def _not_of_orbax(record: logging.LogRecord) -> bool:
    if absl_logging.get_verbosity() >= absl_logging.INFO:
        return True
    return 'orbax' not in f'{record.pathname} {record.exc_info and record.getMessage()}'
