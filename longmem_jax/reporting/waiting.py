"""What is shown while one long thing is done: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import jax
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from longmem_jax.errors import visible

FIRST, EVERY = 10.0, 30.0  # seconds before the first line, and between lines


def console(out: TextIO | None, terminal: bool | None) -> Console:
    """Writes to `out`, None = stdout; `terminal`: whether that is one, None = ask it."""
    return Console(file=out or sys.stdout, force_terminal=terminal, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{seconds:02}'


class Waiting:
    """How much of something is done, with the time that is left; silent on processes other than 0.

    Work shorter than `FIRST` seconds shows no line where there is no terminal.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        *,
        out: TextIO | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Shows nothing yet; after `FIRST` seconds without an update a line that it compiles.

        Args:
          what: what is done: 'Reading the prompt'.
          total: of units; 0 = not known.
          terminal: whether `out` is one; None = ask it.
        """
        self._what, self._total, self._unit, self._clock = visible(what), total, unit, clock
        self._console = console(out, terminal)
        self._quiet = jax.process_index() != 0
        self._first: tuple[float, int] | None = None
        self._due = clock() + FIRST
        self._bar: Bar | None = None
        self._compiling = threading.Timer(FIRST, self._say_compiling)
        self._compiling.daemon = True
        if not self._quiet:
            self._compiling.start()

    def _say_compiling(self) -> None:
        of = f'{self._total:,} {self._unit}' if self._total else self._unit
        self._console.print(f'{self._what}: {of}, compiling ...', markup=False)

    def update(self, done: int, note: str = '') -> None:
        """Shows that `done` units are done, with a note after them."""
        if self._quiet:
            return
        self._compiling.cancel()
        if self._first is None:  # what is done first may have compiled programs
            self._first = self._clock(), done
        if self._console.is_terminal:
            if self._bar is None:
                self._bar = Bar(
                    TextColumn('{task.description}'),
                    BarColumn(bar_width=16),
                    console=self._console,
                    transient=True,
                )
                self._task = self._bar.add_task('', total=self._total or None)
                self._bar.start()
            self._bar.update(self._task, completed=done, description=self._text(done) + note)
        elif self._clock() >= self._due:
            self._due = self._clock() + EVERY
            self._console.print(self._text(done) + note, markup=False)

    def _text(self, done: int) -> str:
        of = f' of {self._total:,}' if self._total else ''
        return f'{self._what}: {done:,}{of} {self._unit}{self._left(done)}'

    def _left(self, done: int) -> str:
        """The rate, or the time that is left where the total is known; '' before both are."""
        began, before = self._first or (self._clock(), done)
        seconds = self._clock() - began
        if done <= before or seconds <= 0:
            return ''
        rate = (done - before) / seconds
        if not self._total:
            return f', {rate:,.0f} {self._unit}/s'
        return f', {duration((self._total - done) / rate)} left'

    def close(self) -> None:
        """Removes the bar; may be called twice."""
        self._compiling.cancel()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextlib.contextmanager
def busy(
    what: str,
    *,
    out: TextIO | None = None,
    terminal: bool | None = None,
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[None]:
    """Shows `what ...` and the time it takes, while one call lasts that prints nothing: compiling.

    Args:
      terminal: whether `out` is one; None = ask it.
      wait: waits this number of seconds for an event, True if it came; for tests.
    """
    if jax.process_index() != 0:
        yield
        return
    shown, what = console(out, terminal), visible(what)
    shown.print(f'{what} ...', markup=False)
    began = time.monotonic()
    if shown.is_terminal:
        columns = SpinnerColumn(), TextColumn(what), TimeElapsedColumn()
        with Bar(*columns, console=shown, transient=True) as bar:
            bar.add_task('', total=None)
            yield
        return
    ended = threading.Event()

    def tell() -> None:
        while not wait(ended, EVERY):
            shown.print(f'{what}: {duration(time.monotonic() - began)} so far', markup=False)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
