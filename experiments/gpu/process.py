"""Runs a cell for a limited time: whatever it does, the next one can run after it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from experiments.gpu.job import ABSENT, DONE, FAILED, NOTE, STOPPED, Cell, Place
from longmem_jax import files

ROOT = Path(__file__).parents[2]
SAVING = 45.0  # seconds of its time in which a process that was told to stop can save
COMMIT = 'commit'  # file of the data folder, for a copy of the repository without git


class Running:
    """A cell that is measured in a process of its own, for at most `seconds`."""

    def __init__(self, cell: Cell, place: Place, seconds: float, saving: float = SAVING) -> None:
        self.cell, self._place, self._seconds, self._saving = cell, place, seconds, saving
        folder, before = cell.folder(place), cell.note(place)
        folder.mkdir(parents=True, exist_ok=True)
        self._note = {'state': STOPPED, 'said': '', 'attempts': before['attempts'] + 1}
        files.write_json(folder / NOTE, self._note)  # also if this process is killed
        self._log, self._told = folder / 'log.txt', False
        with open(self._log, 'w') as out:
            self._process = subprocess.Popen(
                command(cell, place), stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                env=environment(place), start_new_session=True,
            )  # fmt: skip
        self.began = time.monotonic()

    def ended(self) -> str | None:
        """How it ended: done, stopped, failed or absent; None = it still runs. Ends it in time."""
        late = time.monotonic() - self.began - (self._seconds - self._saving)
        busy = self._process.poll() is None
        if not busy and not (self._told and _signal(self._process, 0) and late < self._saving):
            return self._end()
        if busy and late >= self._saving:
            return self._end()
        if busy and late >= 0 and not self._told:
            self._told = True
            _signal(self._process, signal.SIGTERM)
        return None

    def kill(self) -> None:
        """Ends it and all that it has started."""
        _signal(self._process, signal.SIGKILL)
        self._process.wait()

    def _end(self) -> str:
        self.kill()
        state = self.cell.note(self._place)['state']
        if state in (DONE, ABSENT):
            return state
        state = STOPPED if self._told else FAILED
        said = f'stopped after {self._seconds:.0f} s' if self._told else last_line(self._log)
        note = self._note | {'state': state, 'said': said}
        files.write_json(self.cell.folder(self._place) / NOTE, note)
        return state


def command(cell: Cell, place: Place) -> list[str]:
    """The command line of a cell."""
    given = [f'--job={cell.job.name}', f'--cell={cell.name}', f'--output={place.output.resolve()}']
    given += [f'--data={place.data.resolve()}', *['--tiny'] * place.tiny]
    return [sys.executable, '-m', 'experiments.gpu.cell', *given]


def environment(place: Place) -> dict[str, str]:
    """Of all cells: nothing is looked for in a network."""
    variables = os.environ | {'HF_HUB_OFFLINE': '1', 'TFDS_OFFLINE': '1'}
    variables['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'  # other processes need room beside it
    path = place.data / COMMIT
    if path.exists():
        variables['LONGMEM_JAX_COMMIT'] = path.read_text().strip()
    return variables


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors='replace').splitlines()]
    return next((line for line in reversed(lines) if line), 'ended without a word')[:300]


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Sends a signal to the group of a process; whether there was one left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False
