"""Logs of a run: TensorBoard events, `metrics.jsonl`, the learning curve."""

import dataclasses
import json
import math
import os
import re
import typing
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax import stopping
from longmem_jax.errors import UsageError
from longmem_jax.files import copy, open_own, write
from longmem_jax.reporting import figures
from longmem_jax.reporting.events import Events
from longmem_jax.reporting.trackers import Hook, Stop

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = 'metrics.jsonl'
# Field of a line: the checksum of the line before, so that none is taken out unseen.
AFTER = 'after'
FIRST = f'{0:08x}'  # of the first line
SEALED = re.compile(rb'(\{.*), "crc32": "([0-9a-f]{8})"\}')  # a line with its checksum
EVENTS = 'tensorboard'


def _plain(value: float) -> float | str:
    """A number that JSON can hold; 'nan' and 'inf' become text."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


@dataclasses.dataclass(frozen=True)
class _Lines:
    """The lines of a `metrics.jsonl`.

    Attributes:
      rows: the values of each whole line, the checksum in it of the line before, and its bytes.
      damaged: numbers of damaged lines, from 1; a last line that was cut short is not counted.
      missing: numbers of lines before which others were taken out.
    """

    rows: list[tuple[dict[str, Any], str, bytes]]
    damaged: list[int]
    missing: list[int]


def _line(row: dict[str, Any], before: str) -> bytes:
    """A row with the checksums of the line before and of its text, without a line end.

    Other programs read them as two more fields.
    """
    text = json.dumps(row | {AFTER: before})
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}'.encode()


def _checksum(line: bytes) -> str:
    """Of a whole line, for the next one."""
    return f'{zlib.crc32(line):08x}'


def _chained(rows: list[tuple[dict[str, Any], str, bytes]]) -> list[bytes]:
    """The lines of rows, each of which names the one before."""
    lines, before = [], FIRST
    for row, after, line in rows:
        lines.append(line if after == before else _line(row, before))
        before = _checksum(lines[-1])
    return lines


def _row(line: bytes) -> tuple[dict[str, Any], str] | None:
    """The values of a line, and the checksum in it of the line before; None if it is damaged."""
    sealed = SEALED.fullmatch(line)
    if sealed is None or zlib.crc32(sealed[1] + b'}') != int(sealed[2], 16):
        return None
    try:
        row = json.loads(sealed[1] + b'}')
        return row, row.pop(AFTER)
    except (ValueError, RecursionError, KeyError):
        return None


def _read(path: Path) -> _Lines:
    """The lines of a file, which may be damaged or not there."""
    found = _Lines([], [], [])
    lines = path.read_bytes().split(b'\n') if path.exists() else [b'']
    before: str | None = FIRST  # None: not known, after a damaged line
    for number, line in enumerate(lines, 1):
        if read := _row(line):
            row, after = read
            if before not in (None, after):
                found.missing.append(number)
            found.rows.append((row, after, line))
            before = _checksum(line)
        elif number < len(lines):
            found.damaged.append(number)
            before = None
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The values of the lines of a `metrics.jsonl`; damaged lines are left out."""
    return [row for row, _, _ in _read(path).rows]


def _some(numbers: list[int]) -> str:
    """The first of some numbers, as text."""
    return f'{", ".join(map(str, numbers[:10]))}{", ..." if len(numbers) > 10 else ""}'


def _ends_early(steps: list[int], step: int, every: int) -> list[int]:
    """The last of the steps that have lines, [step], if more are missing after it than between any
    two. `every`: steps from one line to the next in this run; 0 = not known.
    """
    known = sorted({0, *steps})
    gaps = [after - before for before, after in zip(known, known[1:], strict=False)]
    usual = max([every, *gaps])
    return [known[-1]] if every and step - known[-1] > usual else []


class Writer:
    """Writes scalars, texts and images of a run; only process 0 writes."""

    def __init__(self, workdir: Path, hooks: Sequence[Hook] = ()):
        """Opens workdir/metrics.jsonl and workdir/tensorboard for appending.

        `hooks` are called with what is written, after it is, and with the numbers of every step.

        Raises:
          UsageError: one of them is there and is something else.
        """
        self._active = jax.process_index() == 0
        self._hooks = tuple(hooks)
        self._path = workdir / METRICS
        self._folder = workdir / EVENTS
        self._writer: Events | None = None
        self._file: Any = None
        self._purge: int | None = None
        self._before = FIRST  # checksum of the last line
        self._known: set[tuple[int, str]] = set()
        self._last: dict[str, dict[str, Any]] = {}
        if self._path.exists() and not self._path.is_file():
            raise UsageError(f'{self._path}: is not a file; move it away and run the same command.')
        if self._folder.is_symlink() or (self._folder.exists() and not self._folder.is_dir()):
            raise UsageError(
                f'{self._folder}: is not a folder; move it away and run the same command.'
            )

    def __enter__(self) -> 'Writer':
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def _events(self) -> Events:
        """The event writer, opened once the step it resumes from is known."""
        if self._writer is None:
            self._writer = Events(self._folder, self._purge)
        return self._writer

    def resume(self, step: int, *, again: bool = False, every: int = 0, keep: bool = False) -> str:
        """Deletes what a killed run wrote after `step`, and lines that are damaged.

        The events of the step are written again, since TensorBoard forgets whole steps only.

        Args:
          step: the run has its state after this step.
          again: the test of this step comes again, so its rows (`test...`) are deleted, too.
          every: steps from one line to the next; 0 = not known.
          keep: keep a copy of the file as it was, as where lines are damaged.

        Returns:
          What damage was found or is missing, and where the file is as it was; '' if nothing.
        """
        if not self._active:
            return ''
        if self._folder.is_dir() and any(self._folder.iterdir()):
            self._purge = step
        found = _read(self._path)
        kept = [
            (row, after, line)
            for row, after, line in found.rows
            if row['step'] < step
            or (row['step'] == step and not (again and row['group'].startswith('test')))
        ]
        self._known = {(row['step'], row['group']) for row, *_ in kept}
        self._last = {row['group']: row for row, *_ in kept}
        problems = []
        if found.damaged:
            problems.append(f'left out {len(found.damaged)} damaged lines ({_some(found.damaged)})')
        if found.missing:
            problems.append(f'lines are missing before line {_some(found.missing)}')
        if keep and len(kept) < len(found.rows):
            problems.append(f'left out what came after step {step:,}')
        said = (
            f'{"; ".join(problems)}; the file as it was is {self._keep().name}' if problems else ''
        )
        if last := _ends_early([row['step'] for row, *_ in kept], step, every):
            ends = f'ends at step {last[0]:,}, and the run is at step {step:,}: lines are missing'
            said = f'{said}; it {ends}' if said else ends
        if self._path.exists():
            write(self._path, b''.join(line + b'\n' for line in _chained(kept)))
        for row, *_ in kept:
            if row['step'] == step and self._purge is not None:
                self._add(step, row['group'], row)
        return f'{self._path}: {said}.' if said else ''

    def _keep(self) -> Path:
        """Copies the file to a name that is free."""
        old, copies = self._path.with_name(f'{METRICS}.old'), 0
        while old.exists():
            copies += 1
            old = self._path.with_name(f'{METRICS}.old-{copies}')
        copy(self._path, old)
        return old

    def last(self, group: str) -> dict[str, Any]:
        """The newest numbers of a group; {} if there are none. Only process 0 knows."""
        return self._last.get(group, {})

    def rows(self, group: str) -> dict[int, dict[str, Any]]:
        """All numbers of a group that are in the file, by step; only process 0 knows."""
        found = read_metrics(self._path) if self._active else []
        return {row['step']: row for row in found if row['group'] == group}

    def has(self, step: int, group: str) -> bool:
        """Whether there are numbers of a group at a step; only process 0 knows."""
        return (step, group) in self._known

    def scalars(self, step: int, group: str, values: dict[str, Any]) -> None:
        """Writes numbers under `group` ('train', 'validation', 'speed', ...)."""
        if not self._active:
            return
        if self._file is None:
            found = _read(self._path).rows  # as the run before has left it
            self._before = _checksum(found[-1][-1]) if found else FIRST
            self._file = open_own(self._path, 'ab')
        line = {'step': step, 'group': group}
        line |= {name: _plain(value) for name, value in values.items()}
        sealed = _line(line, self._before)
        self._before = _checksum(sealed)
        self._file.write(sealed + b'\n')
        self._file.flush()
        self._known.add((step, group))
        self._last[group] = line
        self._add(step, group, values)
        self._call(step, group, {name: float(value) for name, value in values.items()})

    def each_step(self, step: int, values: dict[str, Any]) -> None:
        """Calls the hooks with the numbers of a step, which are written only now and then."""
        if self._active and self._hooks:
            self._call(step, 'step', {name: float(value) for name, value in values.items()})

    def saved(self, step: int) -> None:
        """Notes that the checkpoint of a step is whole on the disk."""
        if self._active:
            self._call(step, 'checkpoint', {})

    def _call(self, step: int, group: str, values: dict[str, float]) -> None:
        for hook in self._hooks:
            try:
                hook(step, group, values)
            except Stop:
                stopping.ask()

    def _add(self, step: int, group: str, values: dict[str, Any]) -> None:
        """Adds numbers to the events."""
        for name, value in values.items():
            if name not in ('step', 'group'):
                self._events.scalar(f'{group}/{name}', float(value), step)
        self._events.show()

    def flush(self) -> None:
        """Waits until the metrics are on the disk, which a power cut does not take away."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        if self._writer is not None:
            self._writer.flush()

    def text(self, name: str, text: str, step: int) -> None:
        """Writes a text: the config, a sample."""
        if self._active:
            self._events.text(name, text, step)

    def figure(self, name: str, figure: 'Figure', step: int) -> None:
        """Writes a figure as an image."""
        if self._active:
            figure.canvas.draw()
            canvas: Any = figure.canvas  # of Agg, see `reporting.figures`
            pixels = np.asarray(canvas.buffer_rgba())[..., :3]
            self._events.image(name, pixels, step)

    def close(self) -> None:
        """Flushes and closes."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._writer is not None:
            self._writer.close()
        for hook in reversed(self._hooks):
            try:
                getattr(hook, 'close', lambda: None)()
            except Exception as error:  # the result, or the error of the run, is what counts
                warnings.warn(
                    f'The hook {hook!r} could not be closed: {error!r}',
                    RuntimeWarning,
                    stacklevel=2,
                )


def learning_curve(metrics: Path, png: Path) -> 'Figure':
    """Draws bits per byte, or the accuracy of a task, of training, validation and test from a
    `metrics.jsonl`. Returns the figure.
    """
    figure = figures.figure(7, 4.2)
    axes = figure.subplots()
    lines = read_metrics(metrics)
    # A task has no bytes, and its bits per byte are 0.
    task = not any(line.get('bits_per_byte') for line in lines)
    quantity = 'accuracy' if task else 'bits_per_byte'
    styles: dict[str, dict[str, Any]] = {
        'train': dict(label='training', linewidth=1.0, alpha=0.8),
        'validation': dict(label='validation', marker='o', markersize=4),
        'test': dict(label='test', marker='*', markersize=11, linestyle='none'),
        'test_reset': dict(label='test, memory reset', marker='x', markersize=8, linestyle='none'),
    }
    shown: list[float] = []
    for group, style in styles.items():
        points = {
            line['step']: line[quantity]
            for line in lines
            if line['group'] == group and quantity in line
        }
        points = {step: value for step, value in points.items() if not isinstance(value, str)}
        if points:
            axes.plot(list(points), list(points.values()), **style)
            shown += points.values()
    if shown and not task:
        # The first steps of training are far above the others and would flatten the curve.
        axes.set_ylim(min(shown) * 0.95, min(max(shown), np.quantile(shown, 0.9) * 1.25 + 0.1))
    axes.set_xlabel('step')
    axes.set_ylabel('accuracy' if task else 'bits per byte')
    if shown:
        axes.legend()
    axes.grid(alpha=0.3)
    figures.save(figure, png)
    return figure
