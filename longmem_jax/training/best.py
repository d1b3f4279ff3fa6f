"""The best checkpoint of a run by its evaluations, and whether there has been no better one for long."""

import math

from longmem_jax.devices import processes
from longmem_jax.errors import UsageError
from longmem_jax.reporting.writers import Writer
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.job import Plan


class Best:
    """Keeps the checkpoint of the best evaluation, with `Plan.best`; the same in all processes.

    All it knows is in the metrics of the run, so a run that is resumed chooses as one that was not
    stopped.
    """

    def __init__(self, plan: Plan, saver: Checkpointer, writer: Writer, step: int):
        """Reads the evaluations up to `step`, at which the run is."""
        self._plan, self._saver, self._writer = plan, saver, writer
        self._since = 0  # evaluations after the best one
        self._values: dict[int, float] = {}
        if plan.best:
            rows = writer.rows(plan.evaluated)
            found = {at: row[plan.best] for at, row in rows.items() if plan.best in row}
            self._values = {at: self._rank(value) for at, value in found.items() if at <= step}
            self._choose()

    def is_stale(self) -> bool:
        """Whether the last `Plan.patience` evaluations were no better than one before them."""
        return 0 < self._plan.patience <= self._since

    def _rank(self, value: float | str) -> float:
        """A number that is least for the best."""
        number = float(value)
        if math.isnan(number):
            return math.inf
        return -number if self._plan.higher else number

    def add(self, step: int) -> None:
        """Takes in the evaluation that was written last, of `step`.

        Raises:
          UsageError: it has no number of this name.
        """
        name = self._plan.best
        if not name:
            return
        row = self._writer.last(self._plan.evaluated)
        if row and name not in row:
            have = ', '.join(each for each in row if each not in ('step', 'group'))
            raise UsageError(
                f'config.checkpoint.best = {name!r}: {self._plan.evaluated} has no such number here; it '
                f'has {have}.'
            )
        if row:
            self._values[step] = self._rank(row[name])
        self._choose()

    def _choose(self) -> None:
        there = [step for step in self._saver.steps() if step in self._values]
        best = min(there, key=lambda step: (self._values[step], step), default=None)
        since = 0 if best is None else sum(step > best for step in self._values)
        # The metrics are those of process 0.
        chosen, self._since = processes.from_first((best, since))
        self._saver.keep_best(chosen)
