r"""All memories of the library side by side: accuracy, bits per byte, bytes of state and time.

python -m experiments.leaderboard --output=DIR [--rows=infini,linear] [--columns=mqar,surface] \
    [--seeds=3] [--minutes=60] [--full] [--novels=FOLDER] [--compare=FILE] [-- --config.FIELD=VALUE ...]

Rows are all memories, in one backbone (`configs/leaderboard.py`) with equal parameters; `rows.py` says
how. A cell is a row, a column and a seed. Finished cells are kept, and of the surface every test, so the
command can be stopped and repeated, and several can run at once for different rows; every call writes
the table of what is there, DIR/leaderboard.md and .json, three figures, and the marked tables of pages
in DIR.
`--output=experiments/leaderboard` begins with the published cells. No cell of a row begins after the row
has taken `--minutes` in all. `--minutes=0` runs nothing: it only writes the table.
`--compare=FILE` says how the cells of DIR differ from those of FILE, the `leaderboard.json` of another
machine: to check its numbers, run one of its cells in an empty DIR.
"""

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

import jax

from experiments import provenance
from experiments.leaderboard import cells, columns, measure, pages, pictures, rows, speed, table
from experiments.options import add_seeds, make_parser, parse_with_flags, some_of
from longmem_jax.config import overrides
from longmem_jax.errors import UsageError, disk_errors

SEED = 0  # of times: parameters do not change them


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    parser = make_parser(__doc__, 'experiments.leaderboard')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--rows', type=some_of(rows.names()), default=rows.names())
    parser.add_argument('--columns', type=some_of(columns.RUN), default=columns.RUN)
    add_seeds(parser)
    parser.add_argument('--minutes', type=float, default=60.0)
    parser.add_argument('--novels', default='')
    parser.add_argument('--compare', type=Path, help='leaderboard.json of another machine')
    parser.add_argument('--full', action='store_true', help='the large backbone, for accelerators')
    options = parse_with_flags(parser, given)
    options.size = '' if options.full else 'tiny'
    if options.compare and not options.compare.is_file():
        parser.error(f'--compare={options.compare}: no such file')
    if not options.minutes >= 0:
        parser.error(f'--minutes={options.minutes}: must be 0 or more')
    try:
        options.output.mkdir(parents=True, exist_ok=True)  # before hours of cells
    except OSError as error:
        parser.error(f'--output={options.output}: {error.strerror}')
    return options


def main(given: list[str]) -> int:
    """Runs the command; returns its exit code, 1 if a cell failed."""
    options, failed = parse(given), 0
    if options.minutes > 0:
        require_same(options)
        failed = run(options)
    found = table.collect(options.output)
    text = table.write(options.output, found, len(options.seeds))
    pages.write(options.output, found)
    pictures.draw(found, options.output)
    print(text)
    if options.compare:
        print('\n'.join(cells.compared(found, cells.of_file(options.compare))))
    return min(failed, 1)


def settings(options: argparse.Namespace) -> list[str]:
    """What all cells of a folder must have been run with."""
    return ['--full'] * options.full + options.flags


def require_same(options: argparse.Namespace) -> None:
    """Raises `UsageError` if a cell of the folder was run with other settings."""
    for column, by_row in table.collect(options.output).items():
        for row, several in table.memories(by_row).items():
            for seed, cell in several.items():
                where = f'{options.output}: {row}, {column}, seed {seed}'
                provenance.require_same(where, cell.get('given', []), settings(options))


def run(options: argparse.Namespace) -> int:
    """Runs the cells that are missing; returns how many rows of columns failed.

    After a failed cell its row continues with the next one; the next call tries the failed one again.
    """
    baseline, failed = None, 0
    for column in map(columns.COLUMNS.__getitem__, options.columns):
        if column.name == 'novels' and not options.novels:
            print('novels: not run: no --novels=FOLDER', flush=True)
            continue
        if column.name != 'speed':
            _floors(options, column)
        for name in options.rows:
            label = f'{column.name}, {name}'
            seeds = missing(options, column.name, name)
            if not seeds:
                continue
            if used(options.output, name) >= 60 * options.minutes:
                reason = f'the row has had its {options.minutes:g} minutes'
                print(f'{label}: not run: {reason}', flush=True)
                continue
            try:
                row, config = _prepared(options, column, name, options.flags)
                if column.name == 'speed':
                    if baseline is None:  # compiled once for all rows
                        _, of_baseline = _prepared(options, column, rows.BASELINE, options.flags)
                        baseline, _ = speed.calls_of(of_baseline)
                    found = [(SEED, speed_cell(row, config, baseline))]
                else:
                    folder = cells.path(options.output, column.name, name, 0).parent
                    found = measure.scores(
                        row, column, config, options.size, seeds, folder, settings(options)
                    )
                for seed, cell in found:
                    if settings(options):
                        cell['given'] = settings(options)
                    cells.save(options.output, column.name, name, seed, cell)
                    print(
                        f'{label}, seed {seed}: {cell["seconds"]:.0f} s, {cell["scores"]}',
                        flush=True,
                    )
            except UsageError as error:
                failed += 1
                print(f'{label}: not run: {error}', flush=True)
            except Exception:  # whatever it is, other rows can still be measured
                failed += 1
                print(f'{label}: failed\n{traceback.format_exc()}', flush=True)
            if column.name != 'speed':
                jax.clear_caches()
    return failed


def missing(options: argparse.Namespace, column: str, name: str) -> list[int]:
    """The seeds of a row and a column that have no cell."""
    seeds = options.seeds if column != 'speed' else [SEED]
    return [seed for seed in seeds if not cells.finished(options.output, column, name, seed)]


def used(output: Path, row: str) -> float:
    """Seconds that the cells of a row have taken, but for old ones."""
    found = table.collect(output)
    by_column = [found.get(column, {}).get(row, {}) for column in columns.RUN]
    return sum(cell['seconds'] for several in by_column for cell in several.values())


def speed_cell(row: rows.Row, config: object, baseline: speed.Calls) -> dict[str, object]:
    """The cell with the times of a row."""
    began = speed.time.monotonic()
    times, size = speed.speed(config, baseline)
    return {
        'scores': {'speed': times},
        'parameters': rows.num_parameters(config),
        'positions': row.positions,
        'flags': row.flags,
        'state_bytes': size,
        'seconds': speed.time.monotonic() - began,
    }


def _prepared(
    options: argparse.Namespace, column: columns.Column, name: str, flags: list[str]
) -> tuple[rows.Row, Any]:
    """A row, and the configuration of its cells."""
    row, folder = rows.row(name, options.size, column.task), options.output / column.name
    return row, measure.config_of(row, column, options.size, flags, options.novels, folder)


def _floors(options: argparse.Namespace, column: columns.Column) -> None:
    """Scores rules without a learned memory, once for all rows; of the flags those of data count."""
    _, changes = overrides.split_arguments(options.flags)
    flags = [f'--config.{path}={text}' for path, text in changes if path.startswith('data.')]
    given = ['--full'] * options.full + flags
    there = cells.finished(options.output, column.name, cells.FLOORS, SEED)
    if there is not None:
        where = f'{options.output}: floors, {column.name}'
        provenance.require_same(where, there.get('given', []), given)
        return
    _, config = _prepared(options, column, rows.BASELINE, flags)
    found = measure.floors(column, config, options.size)
    cell = {'scores': found} | ({'given': given} if given else {})
    cells.save(options.output, column.name, cells.FLOORS, SEED, cell)


if __name__ == '__main__':
    try:
        with disk_errors():
            sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f'UsageError: {error}')
