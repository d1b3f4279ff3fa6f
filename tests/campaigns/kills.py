"""Kills commands at random moments, runs them again until they end, and compares what came out."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns import runs
from tests.forks import ROOT
from tests.processes import environment

CLOCK = os.sysconf('SC_CLK_TCK')
HANGS = 900.0  # seconds after which a command is said to hang
REAL = 0.2  # share of attempts that start Python, too; the others are forks that have imported


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A command and the folder that it works in.

    Attributes:
      copied: what the folder begins with, of the runs of `runs.make`; 'NAME/config.json' = nothing but
        the configuration.
      arguments: of the command; {folder} is the folder, {base} that of the runs.
    """

    copied: tuple[str, ...]
    arguments: tuple[str, ...]


STORE = '--config.retrieval.datastore={folder}/store'
SCENARIOS = {
    'train': Scenario(('lm/config.json',), ('--workdir={folder}/lm',)),
    'lifelong': Scenario(('lifelong/config.json',), ('--workdir={folder}/lifelong',)),
    'agent': Scenario(('agent/config.json',), ('--workdir={folder}/agent',)),
    'build_datastore': Scenario(('lm',), ('--workdir={folder}/lm', '--mode=build_datastore', STORE)),
    'train_spalm': Scenario(('lm', 'store'), ('--workdir={folder}/lm', '--mode=train_spalm', STORE)),
    'evaluate': Scenario(
        ('lm', 'store'),
        ('--workdir={folder}/lm', '--mode=evaluate', STORE, '--config.retrieval.kind=knn_lm'),
    ),
    'generate': Scenario(
        ('lm',),
        ('--workdir={folder}/lm', '--mode=generate', '--prompt=@{base}/prompt.txt', '--length=20',
         '--seed=1', '--save_state={folder}/book'),
    ),
    'score': Scenario(
        ('lm',),
        ('--workdir={folder}/lm', '--mode=score', '--prompt=@{base}/prompt.txt',
         '--output={folder}/scores.jsonl'),
    ),
    'floors': Scenario(('lm',), ('--workdir={folder}/lm', '--mode=floors')),
    'play': Scenario(('agent',), ('--workdir={folder}/agent', '--mode=play', '--seed=3')),
}  # fmt: skip
# Of what they write, nothing is there when they begin.
FRESH = {
    'train_spalm': ('lm/spalm', 'lm/spalm_neighbours'), 'floors': ('lm/floors.json',),
    'play': ('agent/play',),
}  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; a busy machine makes moments of the clock say little."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


class Kills:
    """Attempts with one scenario after the other."""

    def __init__(self, folder: Path, start: Callable[..., Any]):
        """Works in a folder with the runs in `base`; `start` is that of `tests.forks`."""
        self._base, self._cache, self._start = folder / 'base', folder / 'cache', start
        self._tried, self._whole = folder / 'try', {}

    def names(self) -> list[str]:
        """The scenarios whose mode there is."""
        source = (ROOT / 'longmem_jax/main.py').read_text()
        return [name for name in SCENARIOS if name != 'score' or "'score'" in source]

    def _prepare(self, name: str) -> list[str]:
        """Makes the folder as it is before the command; returns the arguments."""
        shutil.rmtree(self._tried, ignore_errors=True)
        for part in SCENARIOS[name].copied:
            source, target = self._base / part, self._tried / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        for part in FRESH.get(name, ()):
            path = self._tried / part
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        places = dict(folder=self._tried, base=self._base)
        return [argument.format(**places) for argument in SCENARIOS[name].arguments]

    def _launch(self, arguments: list[str], output: Path, real: bool) -> Any:
        if not real:
            return self._start(arguments, cache=self._cache, output=output)
        with output.open('w') as file:
            return subprocess.Popen(
                [sys.executable, '-m', 'longmem_jax.main', *arguments],
                cwd=ROOT, env=environment(cache=self._cache), stdout=file, stderr=file,
            )  # fmt: skip

    def _run(
        self, arguments: list[str], moment: float, number: int, real: bool
    ) -> tuple[int, float, str]:
        """Exit code, CPU seconds, and what was printed; the signal comes after `moment` CPU seconds."""
        output = self._tried.with_name('output')
        process = self._launch(arguments, output, real)
        sent, used, began = False, 0.0, time.monotonic()
        while True:
            state = Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()[0]
            used = cpu_seconds(process.pid)
            if state == 'Z':
                break
            if not sent and used >= moment:
                process.send_signal(number)
                sent = True
            if time.monotonic() - began > HANGS:
                process.kill()
                process.wait()
                raise TimeoutError(f'{arguments}: no end after {HANGS:.0f} seconds')
            time.sleep(0.005)
        return process.wait(), used, output.read_text()

    def whole(self, name: str) -> tuple[dict[str, Any], set[str], dict[bool, float]]:
        """What comes out without a signal, what of it is never the same, and CPU seconds, by `real`.

        Never the same are times and speeds: they differ between two runs that nobody disturbs.
        """
        if name not in self._whole:
            found, seconds = [], {}
            for real in (False, True):
                code, seconds[real], said = self._run(self._prepare(name), 1e9, 0, real)
                assert code == 0, said
                found.append(runs.outcome(self._tried))
            stable = {k: v for k, v in found[0].items() if k in found[1] and found[1][k] == v}
            assert {*found[0]} == {*found[1]}, 'other files'
            losses = [k for k in found[0] if k.endswith('/loss') or 'checkpoints' in k]
            assert all(k in stable for k in losses), 'two runs without a signal differ'
            self._whole[name] = stable, {*found[0]} - {*stable}, seconds
        return self._whole[name]

    def attempt(self, number: int, seed: int) -> dict[str, Any]:
        """Attempt `number`: one to three signals, then the command ends; what differs."""
        draw = random.Random(f'{seed} {number}')
        names = self.names()
        name, real = names[number % len(names)], draw.random() < REAL
        wanted, unstable, seconds = self.whole(name)
        arguments, signals, faults = self._prepare(name), [], []
        for _ in range(draw.choice((1, 1, 2, 3))):
            kind = draw.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
            moment = draw.uniform(0, seconds[real])
            code, used, said = self._run(arguments, moment, kind, real)
            signals.append([kind.name, round(moment / seconds[real], 3), code])
            # A process that Python has not reached yet dies as any program does.
            allowed = {0, -kind, 128 + kind}
            if code not in allowed:
                faults.append(f'exit code {code} after {kind.name}')
            if 'Traceback' in said:
                faults.append('traceback after the signal: ' + said[-1500:])
            if code == 0:
                break
        code, _, said = self._run(arguments, 1e9, 0, real)
        if code or 'Traceback' in said:
            faults.append(f'exit code {code} when run again: ' + said[-1500:])
            return dict(mode=name, signals=signals, faults=faults, differs=[])
        found = {k: v for k, v in runs.outcome(self._tried).items() if k not in unstable}
        differs = [k for k in sorted({*found, *wanted}) if found.get(k) != wanted.get(k)]
        shown = [f'{k}: {found.get(k)} for {wanted.get(k)}' for k in differs[:5]]
        return dict(mode=name, signals=signals, faults=faults, differs=shown)


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: what came of the signals, by mode."""
    rows = [
        '| mode | signals (SIGKILL, SIGTERM, SIGINT) | ended before it | other results | other faults |',
        '|---|---|---|---|---|',
    ]
    modes = {line['mode']: None for line in lines}
    for mode in (*modes, 'all'):
        own = [line for line in lines if mode in (line['mode'], 'all')]
        sent = [each for line in own for each in line['signals']]
        kinds = [sum(kind == name for kind, _, code in sent if code) for name in
                 ('SIGKILL', 'SIGTERM', 'SIGINT')]  # fmt: skip
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
