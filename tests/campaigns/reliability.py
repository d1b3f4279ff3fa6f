r"""Kills commands, changes bytes of files, lets calls fail, and says what was lost or not noticed.

    python -m tests.campaigns.reliability --output=DIR [--kills=200] [--flips=2000] [--faults=1000] \
        [--of_four=4] [--seed=0]

Finished attempts are in DIR/kills.jsonl, DIR/flips.jsonl and DIR/faults.jsonl; the same command
continues after them, and a new DIR begins again. The tables are in DIR/table.md. The faults need a C
compiler, `cc`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.campaigns import faults, flips, kills, of_four, runs
from tests.forks import ROOT, commands
from tests.processes import environment

AT_ONCE = 100  # changes of bytes in a process


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON; [] where there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _add(path: Path, line: dict[str, Any]) -> None:
    with path.open('a') as file:
        file.write(json.dumps(line) + '\n')


def kill(folder: Path, count: int, seed: int, start: Any) -> list[dict[str, Any]]:
    """Attempts until signals have ended `count` commands."""
    path = folder / 'kills.jsonl'
    lines, made = _lines(path), kills.Kills(folder, start)
    while kills.signals_of(lines) < count:
        lines.append(made.attempt(len(lines), seed))
        _add(path, lines[-1])
        print(f'{kills.signals_of(lines)} of {count} killed', json.dumps(lines[-1]), flush=True)
    return lines


def cases(path: Path, count: int, seed: int, attempt: Any) -> list[dict[str, Any]]:
    """Cases until there are `count`; those of earlier calls are in the file."""
    lines = _lines(path)
    while len(lines) < count:
        lines.append(attempt(len(lines), seed))
        _add(path, lines[-1])
        if lines[-1]['faults']:
            print(len(lines), json.dumps(lines[-1]), flush=True)
    return lines[:count]


def flip(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Changes `count` bytes, in processes of their own: a damaged file may end them."""
    path = folder / 'flips.jsonl'
    lines = _lines(path)
    while len(lines) < count:
        arguments = [folder / 'work/base', folder / 'flipped', len(lines), AT_ONCE, seed]
        process = subprocess.Popen(
            [sys.executable, '-m', 'tests.campaigns.flips', *map(str, arguments)],
            cwd=ROOT, env=environment(cache=folder / 'cache'), text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        last = None
        for printed in process.stdout:
            line = json.loads(printed)
            if line['fate'] == flips.DIED:
                last = line
                continue
            lines.append(line)
            _add(path, line)
            last = None
            if line['fate'] in (flips.SILENT, flips.TRACEBACK):
                print(json.dumps(line), flush=True)
        if process.wait() and last is None:
            raise RuntimeError('the changes of bytes cannot be made; see above')
        if last is not None:
            lines.append(last)
            _add(path, last)
            print(json.dumps(last), flush=True)
    return lines[:count]


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    for name, default in (
        ('kills', 200),
        ('flips', 2000),
        ('faults', 1000),
        ('of_four', 4),
        ('seed', 0),
    ):
        parser.add_argument(f'--{name}', type=int, default=default)
    options = parser.parse_args()
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # Commands on one core do the same each time, and tokenizing starts no more processes.
    os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    with commands(str(faults.build(folder)) if options.faults else '') as start:

        def run(arguments: list[str]) -> None:
            process = start(arguments, cache=folder / 'cache')
            said, _ = process.communicate()
            assert process.returncode == 0, said

        runs.make(folder / 'work/base', run)
        flipped = flip(folder, options.flips, options.seed)
        seed = options.seed
        injected = cases(
            folder / 'faults.jsonl', options.faults, seed, faults.Faults(folder, start).case
        )
        killed = kill(folder, options.kills, seed, start)
        together = cases(
            folder / 'of_four.jsonl', options.of_four, seed, of_four.OfFour(folder, start).attempt
        )
    tables = [kills.table(killed), flips.table(flipped), faults.table(injected)]
    shown = [kills.show(killed), of_four.show(together), faults.show(injected)]
    text = '\n\n'.join([*tables, of_four.table(together), *shown])
    (folder / 'table.md').write_text(text + '\n')
    print(text)


if __name__ == '__main__':
    main()
