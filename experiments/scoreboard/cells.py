"""The cells of the scoreboard: what is run for a row, a column and a seed.

A finished cell is a file, DIR/COLUMN/ROW/SEED/cell.json, with its commands; it is never run again. A
training that was interrupted goes on from its last checkpoint.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments import compare, floors
from experiments.scoreboard import rows

CONFIG = 'configs/scoreboard.py'
FILE = 'cell.json'
# By size of the backbone: what is tested, beyond what is trained. MQAR: length and pairs.
PAIRS = {
    'tiny': ((16, 2), (32, 4), (64, 8), (128, 15)),
    '': ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128)),
}
NEAR = {'tiny': (16, 64, 256, 1024, 4096), '': (32, 256, 1024, 2048, 16_384)}
FAR = {size: (65_536, 1_048_576) for size in NEAR}


class Column(NamedTuple):
    """A column of the scoreboard.

    Attributes:
      name: of `--columns=NAME`.
      title: in the tables.
      task: of `configs/scoreboard.py:task=`.
      tested: size of the backbone to a flag with what is tested; {} = the score of the training run.
      trained: the column whose training it evaluates; '' = its own.
    """

    name: str
    title: str
    task: str
    tested: Mapping[str, str] = MappingProxyType({})
    trained: str = ''


def _flags(field: str, values: dict[str, tuple]) -> dict[str, str]:
    """Size of the backbone to the flag that sets `config.data.task.FIELD`."""
    return {size: f'--config.data.task.{field}={value}' for size, value in values.items()}


# One document per lane, and no second reading with the memory reset.
FEW = ('--noreset', '--config.data.task.eval_documents=16', '--config.evaluate.num_lanes=16')
COLUMNS = {
    column.name: column
    for column in (
        Column('speed', 'Time', 'mqar'),
        Column('mqar', 'MQAR', 'mqar', _flags('sizes', PAIRS)),
        Column('passkey', 'Passkey', 'passkey', _flags('distances', NEAR)),
        Column('needles', 'Needles', 'needles', _flags('distances', NEAR)),
        Column('copy', 'Copy', 'copy', _flags('distances', NEAR)),
        Column('stdlib', "Python's standard library", 'stdlib'),
        Column('novels', 'Novels', 'text'),
        Column('passkey_far', 'Passkey, far', 'passkey', _flags('distances', FAR), 'passkey'),
        Column('needles_far', 'Needles, far', 'needles', _flags('distances', FAR), 'needles'),
    )
}


def excused(column: Column, row: rows.Row, novels: str) -> str:
    """Why a cell is not run at all; '' if it is."""
    if column.name == 'novels' and not novels:
        return 'not run: no --novels=FOLDER'
    if column.trained and row.reach:
        return f'not run: its memory ends long before; it stores {row.reach:,} tokens'
    return ''


def path(output: Path, column: str, row: str, seed: int) -> Path:
    """The file of a cell."""
    return output / column / row / str(seed) / FILE


def finished(output: Path, column: str, row: str, seed: int) -> dict[str, Any] | None:
    """A finished cell, or None."""
    file = path(output, column, row, seed)
    return json.loads(file.read_text()) if file.exists() else None


def run(
    output: Path, column: Column, row: rows.Row, seed: int, size: str, flags: list[str], novels: str
) -> dict[str, Any]:
    """Runs a cell and saves it; a finished one is only read.

    Args:
      output: folder of the scoreboard.
      column, row, seed: of the cell.
      size: 'tiny' or ''.
      flags: further flags of every run.
      novels: folder of texts, for the column of that name.

    Returns:
      The contents of its file: `scores`, `parameters`, `positions`, `state_bytes`, `flags`, `seconds`,
      `commands`.

    Raises:
      SystemExit: a command failed; the message names its log.
    """
    known = finished(output, column.name, row.name, seed)
    if known is not None:
        return known
    began = time.monotonic()
    file = path(output, column.name, row.name, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    if column.name == 'novels':
        flags = [*flags, f'--config.data.path={novels}']
    measure = _speed if column.name == 'speed' else _score
    cell = measure(output, column, row, seed, size, flags)
    cell |= {
        'parameters': row.parameters,
        'positions': row.positions,
        'flags': row.flags,
        'seconds': time.monotonic() - began,
    }
    partial = file.with_suffix('.partial')
    partial.write_text(json.dumps(cell, indent=1) + '\n')
    partial.rename(file)
    return cell


def _score(
    output: Path, column: Column, row: rows.Row, seed: int, size: str, flags: list[str]
) -> dict[str, Any]:
    """Trains, or takes the training of another column, and scores it."""
    folder = path(output, column.trained or column.name, row.name, seed).parent
    variants = rows.variants(row.name, size, column.task)
    both = [*row.flags, *flags]
    numbers = compare.run(CONFIG, variants, both, seed, folder)
    given = compare.run_arguments(CONFIG, variants, both, seed, folder)
    result = {
        'scores': _text_scores(numbers),
        'state_bytes': numbers['state_bytes'],
        'ms_per_step': numbers['ms_per_step'],
        'commands': [_shown(['-m', compare.TRAIN, *given], output)],
    }
    if column.tested:
        file = path(output, column.name, row.name, seed).parent / 'by_size.json'
        module = 'experiments.scoreboard.by_size'
        command = ['-m', module, *given, f'--output={file}', column.tested[size]]
        command += FEW if column.trained else ()
        _call(command, file.with_suffix('.log'))
        result['scores'] = {entry['size']: entry for entry in json.loads(file.read_text())}
        result['commands'].append(_shown(command, output))
    return result


def measure_floors(output: Path, column: Column, size: str, flags: list[str], novels: str) -> None:
    """Scores rules without a learned memory on what a column scores, once for all rows and seeds.

    Writes DIR/COLUMN/floors/floors.json and command.txt.

    Raises:
      SystemExit: the command failed.
    """
    if column.name == 'speed' or column.trained or (column.name == 'novels' and not novels):
        return
    folder = output / column.name / 'floors'
    flags = [*flags, *([column.tested[size]] if column.tested else [])]
    flags += [f'--config.data.path={novels}'] if column.name == 'novels' else []
    variants = rows.variants(rows.BASELINE, size, column.task)
    floors.measure(CONFIG, variants, flags, folder)
    given = compare.run_arguments(CONFIG, variants, flags, 0, folder)
    command = _shown(['-m', compare.TRAIN, '--mode=floors', *given], output)
    (folder / 'command.txt').write_text(command + '\n')


def _text_scores(numbers: dict[str, Any]) -> dict[str, Any]:
    """Bits per byte with the memory kept and reset, in the form of `by_size`."""
    kept, reset = numbers['test'], numbers['reset'] or {}
    scores = {'kept': kept['bits_per_byte'], 'reset': reset.get('bits_per_byte')}
    return {'bits/byte': scores | {'protocol': kept['protocol']}}


def _speed(
    output: Path, column: Column, row: rows.Row, seed: int, size: str, flags: list[str]
) -> dict[str, Any]:
    """Times a row and the baseline in turns."""
    file = path(output, column.name, row.name, seed).parent / 'speed.json'
    configs = [
        f'{CONFIG}:{rows.variants(name, size, column.task)}' for name in (row.name, rows.BASELINE)
    ]
    command = [
        '-m', 'experiments.scoreboard.speed', f'--config={configs[0]}', f'--baseline={configs[1]}',
        f'--output={file}', *row.flags, *flags,
    ]  # fmt: skip
    _call(command, file.with_suffix('.log'))
    scores = json.loads(file.read_text())
    return {
        'scores': scores,
        'state_bytes': scores.pop('state_bytes'),
        'commands': [_shown(command, output)],
    }


def _call(arguments: list[str], log: Path) -> None:
    """Runs Python with `arguments`; its output goes to `log`.

    Raises:
      SystemExit: it failed.
    """
    with open(log, 'w') as out:
        command = [sys.executable, *arguments]
        if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode:
            raise SystemExit(f'failed: {shlex.join(command)}\nsee {log}')


def _shown(arguments: list[str], output: Path) -> str:
    """A command to be typed, with DIR for the folder of the scoreboard."""
    return shlex.join(['python', *arguments]).replace(str(output), 'DIR')
