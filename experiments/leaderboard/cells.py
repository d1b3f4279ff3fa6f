"""The cells of the leaderboard: a row, a column and a seed, each a small file of numbers.

A finished cell is DIR/COLUMN/ROW/SEED.json; it is never run again. What was finished elsewhere comes
with DIR/leaderboard.json.
"""

import functools
from pathlib import Path
from typing import Any

from experiments import provenance
from longmem_jax.errors import UsageError

Cells = dict[str, dict[str, dict[int, dict[str, Any]]]]  # by column, row and seed
FILE = 'leaderboard.json'
FLOORS = 'floors'  # the row of rules without a learned memory


def path(output: Path, column: str, row: str, seed: int) -> Path:
    """The file of a cell."""
    return output / column / row / f'{seed}.json'


def finished(output: Path, column: str, row: str, seed: int) -> dict[str, Any] | None:
    """A finished cell, or None."""
    return of_row(output, column, row).get(seed)


def of_row(output: Path, column: str, row: str) -> dict[int, dict[str, Any]]:
    """The finished cells of a row and a column by seed."""
    brought = _brought(output / FILE).get(column, {}).get(row, {})
    found = {int(seed): cell for seed, cell in brought.items()}
    for file in (output / column / row).glob('*.json'):
        if not file.stem.isdecimal():
            raise UsageError(f'{file}: is no cell, whose name is its seed; move it elsewhere')
        found[int(file.stem)] = provenance.read(file, 'scores')
    return dict(sorted(found.items()))


def save(output: Path, column: str, row: str, seed: int, cell: dict[str, Any]) -> None:
    """Writes a cell at once, so that it is whole or not there."""
    provenance.save(path(output, column, row, seed), cell, [seed])


def of_file(file: Path) -> Cells:
    """The cells of a file such as `leaderboard.json`: column, row, seed."""
    return {
        column: {
            row: {int(seed): cell for seed, cell in by_seed.items()}
            for row, by_seed in by_row.items()
        }
        for column, by_row in provenance.read(file).items()
        if column != 'run'
    }


def compared(ours: Cells, theirs: Cells) -> list[str]:
    """How the scores of cells that are in both differ, a line per cell; times are left out."""
    lines = []
    for column, row, seed in (
        (column, row, seed)
        for column, by_row in ours.items()
        for row, several in by_row.items()
        for seed in several
        if seed in theirs.get(column, {}).get(row, {}) and column != 'speed'
    ):
        here, there = (side[column][row][seed]['scores'] for side in (ours, theirs))
        tests = [(name, size) for name in here for size in here[name]]
        apart = {
            (name, size): (here[name][size], there[name][size])
            for name, size in tests
            if size in there.get(name, {}) and here[name][size] != there[name][size]
        }
        label = f'{column}, {row}, seed {seed}'
        lines.append(f'{label}: {len(tests) - len(apart)} of {len(tests)} scores are the same')
        lines += [
            f'  {name}, {size}: {one.get("kept")} here, {other.get("kept")} there'
            for (name, size), (one, other) in apart.items()
        ]
    return lines or ['no cell is in both']


@functools.lru_cache(maxsize=1)
def _brought(file: Path) -> dict[str, Any]:
    """The cells of `leaderboard.json` as it was when the program began; {} if there is none."""
    return provenance.read(file) if file.exists() else {}
