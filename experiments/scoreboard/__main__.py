"""All memories of the library side by side: accuracy, bits per byte, bytes of state and time.

python -m experiments.scoreboard --output=DIR [--rows=infini,linear] [--columns=mqar,passkey] \
    [--seeds=3] [--minutes=60] [--full] [--novels=FOLDER] [-- --config.FIELD=VALUE ...]

Rows are all memories, in one backbone (`configs/scoreboard.py`) with equal parameters; `rows.py` says
how. A cell is a row, a column and a seed. Finished cells are kept, so the command can be stopped and
repeated; every call writes the table of what is there, DIR/scoreboard.md and .json, and three figures.
No cell of a row begins after the row has taken `--minutes` in all. `--minutes=0` runs nothing: it only
writes the table.
"""

import argparse
import sys
from pathlib import Path

from experiments.scoreboard import cells, pictures, rows, table


def some_of(known: list[str]) -> object:
    """A parser of names of `known`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = text.split(',')
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r}: allowed are {", ".join(known)}')
        return names

    return parse


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    cut = given.index('--') if '--' in given else len(given)
    parser = argparse.ArgumentParser(
        'experiments.scoreboard',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--rows', type=some_of(rows.names()), default=rows.names())
    parser.add_argument('--columns', type=some_of([*cells.COLUMNS]), default=[*cells.COLUMNS])
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--minutes', type=float, default=60.0)
    parser.add_argument('--novels', default='')
    parser.add_argument('--full', action='store_true', help='the large backbone, for accelerators')
    options = parser.parse_args(given[:cut])
    options.flags = given[cut + 1 :]
    return options


def main(given: list[str]) -> None:
    """Runs the command."""
    options = parse(given)
    if options.minutes > 0:
        run(options)
    options.output.mkdir(parents=True, exist_ok=True)
    found = table.collect(options.output, options.seeds)
    text = table.write(options.output, found, options.seeds)
    pictures.draw(found, options.output)
    print(text)


def run(options: argparse.Namespace) -> None:
    """Runs the cells that are missing, seed by seed, so that early tables have all rows.

    A row with a failed cell goes on with the next one; the failed cell is tried again by the next call.
    """
    size = '' if options.full else 'tiny'
    for column in map(cells.COLUMNS.__getitem__, options.columns):
        try:
            cells.measure_floors(options.output, column, size, options.flags, options.novels)
        except SystemExit as failure:
            print(f'{column.name}, floors: {failure}', flush=True)
    for seed in range(options.seeds):
        for column in map(cells.COLUMNS.__getitem__, options.columns):
            for name in options.rows:
                label = f'{column.name}, {name}, seed {seed}'
                if cells.finished(options.output, column.name, name, seed) is not None:
                    continue
                row = rows.row(name, size, column.task)
                reason = cells.excused(column, row, options.novels)
                if not reason and used(options.output, name) >= 60 * options.minutes:
                    reason = f'not run: the row has had its {options.minutes:g} minutes'
                if reason:
                    print(f'{label}: {reason}', flush=True)
                    continue
                try:
                    cell = cells.run(
                        options.output, column, row, seed, size, options.flags, options.novels
                    )
                except SystemExit as failure:
                    print(f'{label}: {failure}', flush=True)
                    continue
                print(f'{label}: {cell["seconds"]:.0f} s, {cell["scores"]}', flush=True)


def used(output: Path, row: str) -> float:
    """Seconds that the finished cells of a row have taken."""
    found = [cells.json.loads(file.read_text()) for file in output.glob(f'*/{row}/*/{cells.FILE}')]
    return sum(cell['seconds'] for cell in found)


if __name__ == '__main__':
    main(sys.argv[1:])
