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
LOOKED = 0.2  # seconds between two looks
COMMIT = 'commit'  # file of the data folder, for a copy of the repository without git


def run(cell: Cell, place: Place, seconds: float, saving: float = SAVING) -> str:
    """Runs a cell for at most `seconds`; returns how it ended: done, stopped, failed or absent."""
    folder, before = cell.folder(place), cell.note(place)
    folder.mkdir(parents=True, exist_ok=True)
    note = {'state': STOPPED, 'said': '', 'attempts': before['attempts'] + 1}
    files.write_json(folder / NOTE, note)  # also if this process is killed
    log = folder / 'log.txt'
    with open(log, 'w') as out:
        process = subprocess.Popen(
            command(cell, place), stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            env=environment(place), start_new_session=True,
        )  # fmt: skip
    try:
        in_time = _ended(process, seconds - saving)
        if not in_time:
            _signal(process, signal.SIGTERM)
            _ended(process, saving, group=True)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
    state = cell.note(place)['state']
    if state in (DONE, ABSENT):
        return state
    said = f'stopped after {seconds:.0f} s' if not in_time else last_line(log)
    state = STOPPED if not in_time else FAILED
    files.write_json(folder / NOTE, note | {'state': state, 'said': said})
    return state


def command(cell: Cell, place: Place) -> list[str]:
    """The command line of a cell."""
    given = [f'--job={cell.job.name}', f'--cell={cell.name}', f'--output={place.output.resolve()}']
    given += [f'--data={place.data.resolve()}', *['--tiny'] * place.tiny]
    return [sys.executable, '-m', 'experiments.gpu.cell', *given]


def environment(place: Place) -> dict[str, str]:
    """Of all cells: nothing is looked for in a network."""
    variables = os.environ | {'HF_HUB_OFFLINE': '1', 'TFDS_OFFLINE': '1'}
    path = place.data / COMMIT
    if path.exists():
        variables['LONGMEM_JAX_COMMIT'] = path.read_text().strip()
    return variables


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors='replace').splitlines()]
    return next((line for line in reversed(lines) if line), 'ended without a word')[:300]


def _ended(process: subprocess.Popen[bytes], seconds: float, group: bool = False) -> bool:
    """Whether a process ends in time; with `group`, and all that it has started."""
    until = time.monotonic() + seconds
    while process.poll() is None or (group and _signal(process, 0)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOKED)
    return True


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Sends a signal to the group of a process; whether there was one left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False
