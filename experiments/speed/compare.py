"""Our speed next to the authors' own code, in one run, as a Markdown table.

python -m experiments.speed.compare --peer=product_keys --checkout=XLM --python=PYTHON

Both sides do the same work, one process each, and take turns step by step, so that whatever else the
machine does slows both. `--checkout` is a clone of the peer's repository, and for `--peer=transformers`
the folder of a pretrained decoder, which both sides read; without it our side runs alone. `--python`
runs the peer's side, if PyTorch is in another environment than ours.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import provenance
from experiments.markdown import table
from experiments.options import make_parser
from experiments.speed.cases import CASES
from experiments.speed.worker import OURS

ROOT = Path(__file__).parents[2].resolve()
WORKER = ROOT / 'experiments' / 'speed' / 'worker.py'
# What a command on CPUs sets for itself (`devices/allocator.py`), for processes that are not commands.
KEPT = dict(MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str((1 << 31) - 1),
            MALLOC_ARENA_MAX='1')  # fmt: skip
# Settings of glibc: its own; or pages of large arrays are kept for the next step, as our commands do.
PAGES = {'own': {}, 'kept': KEPT}


class Side:
    """A process that makes a step whenever it is asked to.

    Attributes:
      name: for messages.
      steps: what it measured, in order: `wall` and `cpu` in milliseconds, and `loss`.
      software: what it runs.
      root: the folder from which our side has its library, '' for a peer.
    """

    def __init__(
        self,
        name: str,
        python: str,
        arguments: Sequence[str],
        pages: str = 'kept',
        root: Path = ROOT,
    ):
        """Starts the worker of this checkout with these arguments and `PAGES`.

        Not by `python -m`, since a command sets the allocator itself. `root` has the library and the
        cases that the worker imports, those of another version too.
        """
        self.name, self.steps, self.software, self.root = name, [], '', ''
        path = os.pathsep.join(filter(None, [str(root), os.environ.get('PYTHONPATH', '')]))
        run = f'import runpy; runpy.run_path({str(WORKER)!r}, run_name="__main__")'
        self._process = subprocess.Popen(
            [python, '-c', run, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,  # the first place in which `python -c` looks
            env=os.environ | PAGES[pages] | dict(PYTHONPATH=path),
        )

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f'{self.name} ended with exit code {code}; its error is above.')
        return json.loads(line)

    def wait(self) -> None:
        """Waits until the memories are filled."""
        answer = self._answer()
        self.software, self.root = answer['software'], answer['root']

    def step(self) -> None:
        """One timed step."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its answer says
            self._process.stdin.write('step\n')
            self._process.stdin.flush()
        self.steps.append(self._answer())

    def close(self) -> None:
        """Ends the process, which has made all its steps or has failed."""
        self._process.kill()
        self._process.communicate()


def take_turns(sides: Sequence[Side], rounds: int, pause: float) -> None:
    """One step of every side per round, `pause` seconds apart: threads spin for a while."""
    for side in sides:
        side.wait()
    for _ in range(rounds):
        for side in sides:
            side.step()
            time.sleep(pause)


def summary(steps: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median and least milliseconds, by the wall and of all threads."""
    return {
        clock: {
            'median': statistics.median(step[clock] for step in steps),
            'least': min(step[clock] for step in steps),
        }
        for clock in ('wall', 'cpu')
    }


def most_memory(side: dict[str, Any] | None) -> str:
    """Most MiB that a side had resident, '' if there is none."""
    steps = (side or {}).get('steps', ())
    return f'{max(step["most"] for step in steps):.0f}' if steps else ''


def ratios(peer: dict[str, dict[str, float]], ours: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Peer over ours, as `summary`: above 1, ours is faster."""
    return {
        clock: {name: peer[clock][name] / ours[clock][name] for name in ours[clock]}
        for clock in ours
    }


def as_table(results: Sequence[dict[str, Any]]) -> str:
    """Results as Markdown; a row without a peer leaves its cells empty."""

    def shown(part: dict[str, float], digits: int) -> str:
        return f'{part["median"]:.{digits}f} ({part["least"]:.{digits}f})'

    rows = []
    for result in results:
        peer, ours, ratio = (result.get(name) for name in ('peer', 'ours', 'ratio'))
        rows.append([
            result['name'], result['label'],
            *(shown(peer[clock], 1) if peer else '' for clock in ('wall', 'cpu')),
            *(shown(ours[clock], 1) for clock in ('wall', 'cpu')),
            *(shown(ratio[clock], 2) if ratio else '' for clock in ('wall', 'cpu')),
            most_memory(peer), most_memory(ours),
        ])  # fmt: skip
    heads = ['peer', 'case', 'peer, ms', 'peer, CPU ms', 'ours, ms', 'ours, CPU ms',
             'peer / ours', 'CPU', 'peer, MiB', 'ours, MiB']  # fmt: skip
    return table(heads, rows)


def compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Runs one case; the result as it is written to the JSON file."""
    case = CASES[options.peer][name]
    fill = case.fill if options.fill is None else options.fill
    common = [f'--peer={options.peer}', f'--case={name}', f'--fill={fill}']
    common += [f'--cores={options.cores}'] + ['--toy'] * options.toy
    began, load = time.time(), os.getloadavg()[0]
    checkout = Path(options.checkout).resolve()
    read = [f'--checkout={checkout}'] * bool(case.prompt and options.checkout)
    sides = [Side('our side', sys.executable, [*common, *read, f'--side={OURS}'])]
    if options.checkout:
        module = options.module or f'experiments.speed.peers.{options.peer}'
        theirs = [*common, f'--side={module}', f'--checkout={checkout}']
        python = os.path.abspath(shutil.which(options.python) or options.python)
        peer = Side(f'the peer {options.peer}', python, theirs, options.pages)
        sides.insert(0, peer)
    try:
        take_turns(sides, options.rounds, options.pause)
    finally:
        for side in sides:
            side.close()
    result = {'name': f'{options.peer} {name}', 'label': case.label, 'began': began}
    result |= {'load': [load, os.getloadavg()[0]], 'fill': fill, 'pages': options.pages}
    for key, side in zip(('ours', 'peer'), reversed(sides), strict=False):
        result[key] = summary(side.steps) | {'software': side.software, 'steps': side.steps}
    if options.checkout:
        result['ratio'] = ratios(
            *({clock: result[key][clock] for clock in ('wall', 'cpu')} for key in ('peer', 'ours'))
        )
        result['commit'] = provenance.git('rev-parse', 'HEAD', folder=options.checkout) or ''
    return result


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the command; returns the results."""
    parser = make_parser(__doc__)
    parser.add_argument('--peer', required=True, choices=sorted(CASES))
    parser.add_argument('--case', action='append', help='one of the peer; default: all in turn')
    parser.add_argument('--checkout', default='', help="a clone of the peer's repository")
    parser.add_argument('--python', default=sys.executable, help="runs the peer's side")
    parser.add_argument('--pages', default='kept', choices=PAGES, help="of the peer's allocator")
    parser.add_argument('--module', default='', help="the peer's side; default: its file in peers")
    parser.add_argument('--rounds', type=int, default=16)
    parser.add_argument('--fill', type=int, help='untimed steps; default: what the case needs')
    parser.add_argument('--pause', type=float, default=0.05, help='seconds between two steps')
    parser.add_argument('--cores', type=int, default=0, help='that a side may use; 0 = all')
    parser.add_argument('--toy', action='store_true', help='a tiny model, to see that it runs')
    parser.add_argument('--output', type=Path, help='a JSON file')
    options = parser.parse_args(arguments)
    for name in options.case or ():
        if name not in CASES[options.peer]:
            parser.error(
                f'--case={name}: --peer={options.peer} has {", ".join(CASES[options.peer])}'
            )
    results = [compare(options, name) for name in options.case or CASES[options.peer]]
    if options.output:
        results = provenance.save(options.output, results, [0])
    print(as_table(results))
    return results


if __name__ == '__main__':
    main()
