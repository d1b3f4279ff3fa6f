"""Kills commands at random moments, runs them again until they end, and compares what came out."""

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns import modes
from tests.forks import ROOT
from tests.processes import environment

REAL = 0.1  # share of attempts that start Python, too; the others are forks that have imported
KINDS = ('SIGKILL', 'SIGTERM', 'SIGINT')
# The folder is copied while the command writes; the copy takes its place when the command is killed.
COPY = 'copy'


class Kills:
    """Attempts with one mode after the other."""

    def __init__(self, folder: Path, start: Callable[..., Any]):
        """Works in a folder with the runs in `work/base`; `start` is that of `tests.forks`."""
        self._base, self._tried = folder / 'work/base', folder / 'work/try'
        self._cache, self._output, self._start = folder / 'cache', folder / 'output', start
        self._whole, self._importing = {}, 0.0

    def _launch(self, name: str, arguments: list[str], real: bool) -> Any:
        module = modes.MODES[name].module
        if not real:
            return self._start(arguments, module=module, cache=self._cache, output=self._output)
        with self._output.open('w') as file:
            return subprocess.Popen(
                [sys.executable, '-m', module, *arguments],
                cwd=ROOT, env=environment(cache=self._cache), stdout=file, stderr=file,
            )  # fmt: skip

    def _run(
        self, name: str, arguments: list[str], real: bool, moment: float = 1e9, kind: str = ''
    ) -> tuple[int, float, str]:
        """Exit code, CPU seconds, and what was printed; the signal comes after `moment` CPU seconds."""
        process, sent = self._launch(name, arguments, real), []

        def send(used: float) -> None:
            if used < moment or sent:
                return
            sent.append(used)
            if kind == COPY:
                _copy(self._tried, self._tried.with_name('copy'))
            process.send_signal(signal.SIGKILL if kind == COPY else signal.Signals[kind])

        code, used = modes.wait(process, send)
        if sent and kind == COPY:
            shutil.rmtree(self._tried)
            self._tried.with_name('copy').rename(self._tried)
        return code, used, self._output.read_text()

    def whole(self, name: str) -> modes.Whole:
        """What comes out without a signal."""
        if name not in self._whole:
            self._whole[name] = modes.undisturbed(
                name, self._base, self._tried, lambda given: self._run(name, given, False)
            )
        return self._whole[name]

    def importing(self) -> float:
        """CPU seconds that Python takes before a command begins."""
        if not self._importing:
            _, used, _ = self._run('train', ['--mode=list'], True)
            self._importing = used
        return self._importing

    def attempt(self, number: int, seed: int) -> dict[str, Any]:
        """Attempt `number`: one to three signals, then the command ends; what differs."""
        draw = random.Random(f'{seed} {number}')
        name, real = list(modes.MODES)[number % len(modes.MODES)], draw.random() < REAL
        whole = self.whole(name)
        seconds = whole.seconds + (self.importing() if real else 0)
        arguments = modes.prepare(name, self._base, self._tried)
        signals, faults = [], []
        for _ in range(draw.choice((1, 1, 2, 3))):
            kind = draw.choice((*KINDS, COPY))
            moment = draw.uniform(0, seconds)
            code, _, said = self._run(name, arguments, real, moment, kind)
            signals.append([kind, round(moment / seconds, 3), code])
            number_of = signal.SIGKILL if kind == COPY else signal.Signals[kind]
            # A process that Python has not reached yet dies as any program does.
            if code not in {0, -number_of, 128 + number_of}:
                faults.append(f'exit code {code} after {kind}')
            if 'Traceback' in said:
                faults.append('traceback after the signal: ' + said[-1500:])
            if code == 0:
                break
        if code or not modes.MODES[name].once:
            code, _, said = self._run(name, arguments, real)
        if code or 'Traceback' in said:
            faults.append(f'exit code {code} when run again: ' + said[-1500:])
            return dict(mode=name, signals=signals, faults=faults, differs=[])
        return dict(
            mode=name, signals=signals, faults=faults, differs=whole.differs(self._tried)[:5]
        )


def _copy(folder: Path, to: Path) -> None:
    """Copies a folder in which files come and go."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        shutil.copytree(folder, to)
    except shutil.Error:  # what went meanwhile; the rest is copied
        pass


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: what came of the signals, by mode."""
    rows = [
        f'| mode | signals ({", ".join((*KINDS, COPY))}) | ended before it | other results '
        '| other faults |',
        '|---|---|---|---|---|',
    ]
    for mode in (*dict.fromkeys(line['mode'] for line in lines), 'all'):
        own = [line for line in lines if mode in (line['mode'], 'all')]
        sent = [each for line in own for each in line['signals']]
        kinds = [
            sum(kind == name and code != 0 for kind, _, code in sent) for name in (*KINDS, COPY)
        ]
        early = sum(code == 0 for _, _, code in sent)
        differs, faults = (sum(bool(line[key]) for line in own) for key in ('differs', 'faults'))
        counts = ' + '.join(map(str, kinds))
        rows.append(f'| {mode} | {sum(kinds)} ({counts}) | {early} | {differs} | {faults} |')
    return '\n'.join(rows)


def signals_of(lines: list[dict[str, Any]]) -> int:
    """How many commands a signal has ended."""
    return sum(bool(code) for line in lines for _, _, code in line['signals'])


def show(lines: list[dict[str, Any]]) -> str:
    """All faults, as JSON lines."""
    return '\n'.join(json.dumps(line) for line in lines if line['differs'] or line['faults'])
