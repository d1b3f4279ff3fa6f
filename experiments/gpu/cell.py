"""Measures one cell in a process of its own; `experiments.gpu` starts it."""

import argparse
import shutil
import sys
from pathlib import Path

from experiments import provenance
from experiments.gpu.job import ABSENT, NOTE, RESULT, Absent, Cell, Place
from experiments.gpu.jobs import JOBS
from longmem_jax import files


def main(given: list[str]) -> None:
    """Writes the result, or that what the cell needs is absent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--job', required=True, choices=JOBS)
    parser.add_argument('--cell', required=True)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--tiny', action='store_true')
    options = parser.parse_args(given)
    place = Place(options.output, options.data, options.tiny)
    cell = Cell(JOBS[options.job], options.cell)
    folder = cell.folder(place)
    try:
        found = cell.job.measure(place, cell.name, folder)
    except Absent as absent:
        note = cell.note(place) | {'state': ABSENT, 'said': str(absent)}
        files.write_json(folder / NOTE, note)
        return
    provenance.save(folder / RESULT, {'tiny': place.tiny} | found, [cell.seed or 0])
    shutil.rmtree(folder / 'run', ignore_errors=True)  # checkpoints of a hundred cells fill a disk


if __name__ == '__main__':
    main(sys.argv[1:])
