"""What became slower since an earlier version: a fixed small set of steps, both versions in turns.

python -m experiments.speed.history [--before=TAG|COMMIT|FOLDER] [--case=CASE] [--rounds=16]

Each version runs in a process of its own, and they take turns step by step. Compared is the CPU time of
all threads, which is steadier than the wall on a machine that does other things as well. `--before` is
the newest tag before this commit, if it is not given. What the earlier version cannot run is said and
left out.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import provenance
from experiments.markdown import table
from experiments.options import make_parser
from experiments.speed.cases import CASES, Case
from experiments.speed.compare import ROOT, Side, summary, take_turns
from experiments.speed.worker import OURS

LIMIT = 1.05  # of the time before
# Training steps, one of each kind of memory, and a prompt that is read and continued.
SET = {
    'transformer_xl': CASES['transformer_xl']['1024'],
    'expire_span': CASES['transformer_sequential']['expire'],
    'memorizing': CASES['memorizing']['8192'],
    'infini_delta': CASES['infini']['delta'],
    'product_key': CASES['product_keys']['256'],
    **{
        name: Case('', config=f'memory={name}', fill=2)
        for name in ('linear', 'gated_delta_net', 'mamba2', 'rwkv7')
    },
    'prompt': Case('', fill=2, prompt=512, drawn=64),
}


def fields_of(case: Case) -> dict[str, Any]:
    """What differs from a case without arguments: an earlier version may not know all fields."""
    return {
        field.name: value
        for field in dataclasses.fields(case)
        if field.name not in ('peer', 'fill')
        and (value := getattr(case, field.name)) not in (field.default, {})
    }


@contextlib.contextmanager
def tree_of(version: str, checkout: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """A folder with the files of a version, for as long as it is needed, and the version in words.

    Args:
      version: a folder, a tag or a commit; '' = the newest tag before this commit.
      checkout: where git is asked.

    Raises:
      ValueError: there is no such version, or nothing in it can be timed; in words.
    """
    if version and Path(version).is_dir():
        folder = _checked(Path(version).resolve(), version)
        commit = provenance.git('rev-parse', '--short=12', 'HEAD', folder=folder)
        yield folder, f'{folder.name} ({commit or "no checkout"})'
        return
    newest = provenance.git('describe', '--tags', '--abbrev=0', 'HEAD^', folder=checkout)
    if not version and not newest:
        raise ValueError('no commit before has a tag; give a commit, or a folder with its files')
    name = version or newest or ''
    commit = provenance.git('rev-parse', '--verify', f'{name}^{{commit}}', folder=checkout)
    if commit is None:
        raise ValueError(f'{name!r} is no folder, and no tag or commit of this checkout')
    done = subprocess.run(['git', '-C', str(checkout), 'archive', commit], capture_output=True)
    if done.returncode:
        raise ValueError(done.stderr.decode('utf-8', 'replace').strip())
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            # An argument since Python 3.11.4.
            archive.extraction_filter = getattr(tarfile, 'data_filter', None)
            archive.extractall(folder)
        yield _checked(Path(folder).resolve(), name), f'{name} ({commit[:12]})'


def _checked(folder: Path, name: str) -> Path:
    """The folder, if our side of a comparison is in it."""
    for needed in ('longmem_jax', 'experiments/speed/ours.py'):
        if not (folder / needed).exists():
            raise ValueError(f'{name} has no {needed}: that version cannot be timed in this way')
    return folder


def measure(name: str, before: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times a case of the set in both versions; the result as it is written to the JSON file."""
    case, load = SET[name], os.getloadavg()[0]
    common = [f'--side={OURS}', f'--fields={json.dumps(fields_of(case))}', f'--fill={case.fill}']
    common += [f'--cores={options.cores}'] + ['--toy'] * options.toy
    sides: list[Side] = []
    try:
        for version, root in (('before', before), ('now', ROOT)):
            sides.append(Side(f'{name}, {version},', sys.executable, common, root=root))
        take_turns(sides, options.rounds, options.pause)
    finally:
        for side in sides:
            side.close()
    result: dict[str, Any] = {'name': name, 'load': [load, os.getloadavg()[0]]}
    for key, side, root in zip(('before', 'now'), sides, (before, ROOT), strict=True):
        if side.root != str(root):
            raise SystemExit(
                f'{side.name} ran the library of {side.root}, not that of {root}: is another copy '
                'before it in the import path?'
            )
        result[key] = summary(side.steps) | {'software': side.software, 'steps': side.steps}
    return result | {'ratio': ratio(*(result[key]['steps'] for key in ('before', 'now')))}


def ratio(before: Sequence[dict[str, float]], now: Sequence[dict[str, float]]) -> dict[str, float]:
    """CPU time now over that before, round by round: the quartiles, `low`, `median` and `high`."""
    rounds = [new['cpu'] / old['cpu'] for old, new in zip(before, now, strict=True)]
    if len(rounds) == 1:
        rounds *= 2
    low, median, high = statistics.quantiles(rounds, n=4, method='inclusive')
    return {'low': low, 'median': median, 'high': high}


def is_slower(result: dict[str, Any]) -> bool:
    """Whether a case takes more than `LIMIT` of the time before, beyond the noise of its rounds."""
    return result['ratio']['median'] > LIMIT and result['ratio']['low'] > 1


def report(results: Sequence[dict[str, Any]], left_out: Sequence[str] = ()) -> str:
    """A table, and the sentences that matter."""
    missing = f' Left out: {", ".join(left_out)}.' if left_out else ''
    if not results:
        return f'Nothing was timed.{missing}'
    rows = [
        [
            result['name'],
            *(f'{result[key]["cpu"]["median"]:.1f}' for key in ('before', 'now')),
            '{median:.2f} ({low:.2f} - {high:.2f})'.format(**result['ratio']),
        ]
        for result in results
    ]
    slower = [result['name'] for result in results if is_slower(result)]
    last = f'Slower by more than {LIMIT - 1:.0%}: {", ".join(slower) or "nothing"}.{missing}'
    heads = ['step', 'before, CPU ms', 'now, CPU ms', 'now / before (quartiles of rounds)']
    return table(heads, rows) + f'\n\n{last}'


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the command; returns the results."""
    parser = make_parser(__doc__)
    parser.add_argument('--before', default='', help='a tag, a commit or a folder')
    parser.add_argument('--case', action='append', choices=SET, help='default: all in turn')
    parser.add_argument('--rounds', type=int, default=16)
    parser.add_argument('--pause', type=float, default=0.05, help='seconds between two steps')
    parser.add_argument('--cores', type=int, default=1, help='that a side may use; 0 = all')
    parser.add_argument('--toy', action='store_true', help='a tiny model, to see that it runs')
    parser.add_argument('--output', type=Path, help='a JSON file')
    options = parser.parse_args(arguments)
    for name, least in (('rounds', 1), ('pause', 0), ('cores', 0)):
        if not getattr(options, name) >= least:
            parser.error(f'--{name}={getattr(options, name)}: give at least {least}')
    if options.output and options.output.is_dir():
        parser.error(f'--output={options.output}: is a folder; name a file')
    results: list[dict[str, Any]] = []
    left_out: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            before, version = stack.enter_context(tree_of(options.before))
        except ValueError as error:
            parser.error(f'--before={options.before}: {error}')
        print(f'before: {version}', flush=True)
        for name in options.case or SET:
            try:
                result = measure(name, before, options)
            except SystemExit as error:
                left_out.append(name)
                print(f'{name} is left out: {error}', flush=True)
                continue
            results.append(result | {'version': version})
            print(report(results[-1:]).splitlines()[2], flush=True)
            if options.output:  # after every case, so that none is lost
                results = provenance.save(options.output, results, [0])
    print(f'\n{report(results, left_out)}')
    return results


if __name__ == '__main__':
    main()
