"""Everything that is to be measured on one GPU, in short jobs that can be stopped and go on.

python -m experiments.gpu --output=DIR [--minutes=30] [--data=FOLDER] [--only=steps,language/38M]

Runs the cells that are missing in DIR, of the most valuable job first, each in a process of its own and
none longer than eight minutes; several at once (--processes) where that does not disturb what is timed.
One that is stopped continues with the next call, or later in this one. A cell begins only if its minutes
are left. What failed is tried again by the next call, after all others. DIR/gpu.md has the tables.
`--list` only shows the cells; `--minutes=0` only writes the tables; `--publish` puts them into the page.
`--tiny` runs every job with small models, on any device, in DIR/tiny. No network is needed; run_it.md
says what the data folder has.
"""

import argparse
import importlib.metadata
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments import provenance
from experiments.gpu import process, table
from experiments.gpu.job import ABSENT, DONE, FAILED, LONGEST, RUNS, STOPPED, Cell, Place
from experiments.gpu.jobs import JOBS
from experiments.options import make_parser
from longmem_jax import files, registry
from longmem_jax.errors import UsageError

LOOKED = 0.2  # seconds between two looks at what runs
SOME_MORE = 2  # processes that a cell may take beyond those of its minutes, before others go first


def chosen(only: Sequence[str], tiny: bool) -> list[Cell]:
    """The cells of jobs, or whose names begin so, in this order; all = the most valuable first."""
    cells = [cell for job in JOBS.values() for cell in job.all(tiny)]
    if not only:
        return cells
    found = [c for name in only for c in cells if f'{c.label}/'.startswith(f'{name}/')]
    return list(dict.fromkeys(found))


def minutes(cell: Cell) -> float:
    """Of its next process."""
    return min(cell.job.minutes, LONGEST)


def late(cell: Cell, place: Place) -> bool:
    """Whether all others go first: it failed, lacks something, or was stopped too often."""
    note = cell.note(place)
    most = cell.job.minutes // LONGEST + SOME_MORE
    return note['state'] in (FAILED, ABSENT) or note.get('attempts', 0) > most


def possible_in(
    left: float, cells: Sequence[Cell], place: Place, tried: dict[str, str]
) -> list[Cell]:
    """The cells that may begin in the `left` minutes.

    `tried`: label of every cell of this call to how it ended.
    """
    absent = {cell.group for cell in cells if tried.get(cell.label) == ABSENT}

    def possible(cell: Cell) -> bool:
        ended = tried.get(cell.label)
        again = ended is None or (ended == STOPPED and not late(cell, place))
        return (
            again
            and minutes(cell) <= left
            and cell.group not in absent
            and cell.note(place)['state'] != DONE
        )

    return [cell for cell in cells if possible(cell)]


def run(cells: Sequence[Cell], place: Place, given: float, processes: int) -> None:
    """Runs what is missing in the given minutes, in at most so many processes at once."""
    end, tried, running = time.monotonic() + 60 * given, {}, []
    try:
        while True:
            left = (end - time.monotonic()) / 60
            others = {each.cell.label: RUNS for each in running}
            waiting = possible_in(left, cells, place, tried | others)
            cell = min(waiting, key=lambda cell: late(cell, place), default=None)
            if cell and len(running) < most(cell, running, processes):
                running.append(process.Running(cell, place, min(60 * LONGEST, 60 * left)))
                continue
            if not running:
                if short := possible_in(math.inf, cells, place, tried):
                    labels = ', '.join(cell.label for cell in short)
                    print(f'Left for want of minutes (--minutes={given:g}): {labels}', flush=True)
                return
            for each in list(running):
                if ended := each.ended():
                    running.remove(each)
                    tried[each.cell.label] = ended
                    tell(each, place, ended)
            time.sleep(LOOKED)
    finally:
        for each in running:
            each.kill()


def most(cell: Cell, running: Sequence[process.Running], processes: int) -> int:
    """How many may run at once if this one does."""
    jobs = {cell.job, *(each.cell.job for each in running)}
    if len(jobs) > 1 and any(job.timed for job in jobs):
        return 0
    return min(processes, *(job.beside for job in jobs))


def tell(ran: process.Running, place: Place, ended: str) -> None:
    """Prints how a cell ended."""
    said = ran.cell.note(place).get('said', '')
    words = f'{ended}{": " * bool(said)}{said}'
    print(f'{ran.cell.label}, {time.monotonic() - ran.began:.0f} s: {words}', flush=True)


def require_gpu() -> None:
    """Ends the program where JAX finds no GPU; asks another process, which leaves it free."""
    ask = [sys.executable, '-c', 'import jax; print(jax.default_backend())']
    found = subprocess.run(ask, capture_output=True, text=True).stdout.strip() or 'nothing'
    if found != 'gpu':
        raise SystemExit(
            f'No GPU here: JAX finds {found}. Run this where there is one; --tiny runs every job with '
            'small models on any device, --list shows the cells, --minutes=0 the tables.'
        )


def require_installed() -> None:
    """Ends the program where the package is not installed: cells would fail, some at their end."""
    try:
        provenance.of_run([], device='none')
        registry.require_installed()
    except (UsageError, importlib.metadata.PackageNotFoundError) as error:
        install = 'pip install --no-deps --no-build-isolation --no-index -e .'
        raise SystemExit(f'{error} First run: {install}') from error


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = make_parser(__doc__, 'experiments.gpu')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--data', type=Path, default=Path('gpu_data'))
    parser.add_argument('--minutes', type=float, default=30.0)
    parser.add_argument('--processes', type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument('--only', type=lambda text: text.split(','), default=[])
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--publish', action='store_true')
    parser.add_argument('--tiny', action='store_true')
    options = parser.parse_args(given)
    for name in options.only:
        if not chosen([name], options.tiny):
            parser.error(
                f'--only={name}: no cell begins so; jobs are {", ".join(JOBS)}, --list has their cells'
            )
    if options.publish and options.tiny:
        parser.error('--publish: not with --tiny, whose numbers mean nothing')
    return options


def main(given: Sequence[str] | None = None) -> None:
    """Runs the command."""
    options = parse(given)
    folder = options.output / 'tiny' if options.tiny else options.output
    place = Place(folder, options.data, options.tiny)
    cells = chosen(options.only, options.tiny)
    if options.list:
        for cell in cells:
            print(f'{cell.label}, {minutes(cell):g} minutes: {cell.note(place)["state"]}')
        return
    if options.minutes > 0:
        require_installed()
        if not options.tiny:
            require_gpu()
        run(cells, place, options.minutes, options.processes)
    found = table.collect(place)
    place.output.mkdir(parents=True, exist_ok=True)
    files.write(place.output / 'gpu.md', table.tables(found, place))
    if options.publish:
        table.publish(place)
    print(table.overview(found, place))


if __name__ == '__main__':
    # So that what runs is ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
