"""The cells of the scoreboard: a row, a column and a seed, each a small file of numbers.

A finished cell is DIR/COLUMN/ROW/SEED.json; it is never run again. What was finished elsewhere comes
with DIR/scoreboard.json.
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from experiments import provenance

FILE = 'scoreboard.json'
FLOORS = 'floors'  # the row of rules without a learned memory


class Column(NamedTuple):
    """A column of the scoreboard.

    Attributes:
      name: of `--columns=NAME`, and of `configs/scoreboard.py:task=`, but for `novels` and `speed`.
      titles: of its tables: key of its scores to words.
      scored: 'bits per byte', 'right answers, %' or '' (times).
      not_asked: what its mark of seeds that were not asked means.
      old: its cells are shown, and no more are run.
    """

    name: str
    titles: dict[str, str]
    scored: str
    not_asked: str = ''
    old: bool = False

    @property
    def task(self) -> str:
        """Of `configs/scoreboard.py:task=`."""
        return {'novels': 'text', 'speed': 'mqar'}.get(self.name, self.name)


ANSWERS, BITS = 'right answers, %', 'bits per byte'
RECALLED = {'passkey': 'Passkey', 'needles': 'Needles', 'copy': 'Copy of four digits'}
OLD = {name: f'{title} (old)' for name, title in RECALLED.items()}
KEYS = (1, 4, 16, 64)  # of a document of the surface
SURFACE = {str(keys): f'Recall: {keys} key{"s" * (keys > 1)}' for keys in KEYS}
GUESSING = (
    'they had less than half of the answers at the distance before: they count as guessing, 10 %.'
)
NEAR_CHANCE = (
    'they were within 5 points of chance (naming any value of the document; for one key, of all) at a '
    'shorter distance: they count with what they had there.'
)
COLUMNS = {
    column.name: column
    for column in (
        Column('speed', {'speed': 'Time'}, ''),
        Column('mqar', {'mqar': 'MQAR'}, ANSWERS),
        Column('surface', SURFACE, ANSWERS, NEAR_CHANCE),
        Column('stdlib', {'stdlib': "Python's standard library"}, BITS),
        Column('novels', {'novels': 'Novels'}, BITS),
        Column('recall', OLD, ANSWERS, GUESSING, old=True),
    )
}
RUN = [name for name, column in COLUMNS.items() if not column.old]  # the columns of the command


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
        found[int(file.stem)] = json.loads(file.read_text())
    return dict(sorted(found.items()))


def save(output: Path, column: str, row: str, seed: int, cell: dict[str, Any]) -> None:
    """Writes a cell at once, so that it is whole or not there."""
    file = path(output, column, row, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    provenance.save(file, cell, [seed])


@functools.lru_cache(maxsize=1)
def _brought(file: Path) -> dict[str, Any]:
    """The cells of `scoreboard.json` as it was when the program began; {} if there is none."""
    return json.loads(file.read_text()) if file.exists() else {}
