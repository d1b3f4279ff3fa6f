"""A job of the suite for one GPU, and the cells that it consists of.

A cell is what one process measures. Its folder DIR/JOB/CELL has `result.json` once it is finished, until
then `note.json` (how it ended) and what it needs to go on; and `log.txt`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import provenance
from longmem_jax.config.recipes import recipes

LONGEST = 8.0  # minutes of a process
BEGAN = time.monotonic()  # of this process
RESULT, NOTE = 'result.json', 'note.json'
MISSING, STOPPED, FAILED, ABSENT, DONE = 'missing', 'stopped', 'failed', 'absent', 'done'
RUNS = 'runs'


class Absent(Exception):
    """What a cell needs is not on this machine, and so not what the cells of its group need."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where jobs run.

    Attributes:
      output: folder of the results.
      data: folder of the data that was brought along; see run_it.md.
      tiny: with models so small that a test can run them.
    """

    output: Path
    data: Path
    tiny: bool = False

    def brought(self, name: str) -> Path:
        """A file or folder of the data.

        Raises:
          Absent: it was not brought along.
        """
        if not (self.data / name).exists():
            raise Absent(f'no {name} in the data folder')
        return self.data / name


@dataclasses.dataclass(frozen=True)
class Cell:
    """One of the cells of a job; `name` is GROUP/.../NAME, with the seed at the end if it has one."""

    job: 'Job'
    name: str

    @property
    def label(self) -> str:
        """Its name among all."""
        return f'{self.job.name}/{self.name}'

    @property
    def group(self) -> str:
        """The cells that need the same; without the memory and the seed."""
        return self.label.removesuffix(f'/{self.seed}').rpartition('/')[0]

    @property
    def seed(self) -> int | None:
        """The seed, or None."""
        last = self.name.rpartition('/')[2]
        return int(last) if self.job.seeded and last.isdecimal() else None

    def folder(self, place: Place) -> Path:
        """Its folder."""
        return place.output / self.job.name / self.name

    def result(self, place: Place) -> dict[str, Any] | None:
        """What it measured; None = it is not finished."""
        return provenance.saved(self.folder(place) / RESULT)

    def note(self, place: Place) -> dict[str, Any]:
        """`state`, `said`, and `attempts`, how often it was begun."""
        if (self.folder(place) / RESULT).exists():
            return {'state': DONE}
        nothing = {'state': MISSING, 'said': '', 'attempts': 0}
        return nothing | (provenance.saved(self.folder(place) / NOTE) or {})


@dataclasses.dataclass(frozen=True)
class Job:
    """A question and the cells that answer it.

    Attributes:
      name: of `--only=NAME` and of its folder.
      question: what its numbers decide.
      minutes: that a cell takes on an H100, by estimate; more than a process may take = it is resumed.
      cells: names, the most valuable first; those of `tiny` if that is asked for.
      measure: (place, name of the cell, its folder) to the numbers, as JSON. What is in the folder is
        not done again.
      shown: columns of the job's table: heading, path of the number in the result, format.
      seeded: the names end with a seed.
      beside: cells of this job that may run at once.
      timed: no other job runs meanwhile.
    """

    name: str
    question: str
    minutes: float
    cells: Callable[[bool], list[str]]
    measure: Callable[[Place, str, Path], dict[str, Any]]
    shown: tuple[tuple[str, str, str], ...]
    seeded: bool = False
    beside: int = 1
    timed: bool = True

    @functools.cache  # noqa: B019  (jobs are as many as there are)
    def all(self, tiny: bool) -> tuple[Cell, ...]:
        """Its cells."""
        return tuple(Cell(self, name) for name in self.cells(tiny))


def memories(tiny: bool) -> list[str]:
    """Every memory of the library; one of them if it is only to be seen that a job runs."""
    return list(recipes())[: 1 if tiny else None]


def seeds(names: list[str], number: int, tiny: bool) -> list[str]:
    """Cells of several seeds, all of the first seed first."""
    return [f'{name}/{seed}' for seed in range(1 if tiny else number) for name in names]


def seconds_left() -> float:
    """Of this process, less a minute to end in; what takes longer would never be finished."""
    return BEGAN + 60 * (LONGEST - 1) - time.monotonic()


def kept(path: Path) -> dict[str, Any]:
    """The numbers that `keep` wrote; {} if there are none."""
    found = provenance.saved(path) or {}
    found.pop('run', None)
    return found


def keep(path: Path, found: dict[str, Any]) -> None:
    """Writes what a cell has measured so far, so that it is not measured again."""
    provenance.save(path, found, [0])
