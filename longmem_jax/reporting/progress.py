"""Console output of a run: a bar on a terminal, plain lines elsewhere; process 0 only."""

import contextlib
import time
from typing import Any, TextIO

import jax
from rich import box
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from longmem_jax.errors import LONGEST, visible
from longmem_jax.reporting import waiting
from longmem_jax.reporting.waiting import duration


class Progress:
    """Progress of a run.

    Attributes:
      total: steps of the run; 0 = no bar.
      log_every: steps between plain lines if there is no terminal.
    """

    def __init__(
        self, total: int, *, log_every: int, out: TextIO | None = None, terminal: bool | None = None
    ):
        """Writes to `out` (default: stdout); `terminal` forces terminal or plain output."""
        self.total, self.log_every = total, log_every
        self._quiet = jax.process_index() != 0
        self._console = waiting.console(out, terminal)
        self._bar: Bar | None = None
        self._started: tuple[float, int] | None = None

    def _open(self, step: int) -> None:
        self._started = (time.monotonic(), step)
        if self._console.is_terminal and self.total:
            self._bar = Bar(
                TextColumn('step {task.completed:,.0f}/{task.total:,.0f}'),
                BarColumn(bar_width=16),
                TextColumn('{task.fields[numbers]}'),
                TimeRemainingColumn(),
                TextColumn('left'),
                console=self._console,
            )
            self._task = self._bar.add_task('', total=self.total, completed=step, numbers='')
            self._bar.start()

    def update(self, step: int, text: str) -> None:
        """Shows a step with a text: 'loss 2.1 nats/token, 900 tokens/s'."""
        if self._quiet:
            return
        if self._started is None:
            self._open(step)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=text)
        elif self.log_every and (step % self.log_every == 0 or step == self.total):
            self._print(f'step {step:,}/{self.total:,}: {text}, {self._left(step)} left')

    def _left(self, step: int) -> str:
        """The estimated remaining time, h:mm:ss."""
        started, first = self._started or (0.0, step)
        if step <= first:
            return '?'
        return duration((time.monotonic() - started) / (step - first) * (self.total - step))

    def _print(self, text: str) -> None:
        self._console.print(visible(text, LONGEST), markup=False)

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if not self._quiet:
            self._print(text)

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Shows `what ...` and how long it takes, while a call lasts; not while there is a bar."""
        console: Any = self._console
        return waiting.busy(what, out=console.file, terminal=console.is_terminal)

    def table(self, title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """Prints a table of numbers; the first column is text."""
        if self._quiet:
            return
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify='left')
        for i, column in enumerate(columns):
            table.add_column(column, justify='right' if i else 'left', no_wrap=True)
        for row in rows:
            table.add_row(*map(visible, row))
        self._console.print(table, soft_wrap=False)

    def close(self) -> None:
        """Removes the bar; may be called twice."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
