"""Logs of a run: TensorBoard events, `metrics.jsonl`, the learning curve."""

import errno
import json
import math
from pathlib import Path
from typing import Any

import jax
import matplotlib.figure
import numpy as np
from tensorboardX import SummaryWriter

from longmem_jax.files import whole_file
from longmem_jax.reporting import figures

METRICS = 'metrics.jsonl'
EVENTS = 'tensorboard'


def _plain(value: float) -> float | str:
    """A number that JSON can hold; 'nan' and 'inf' become text."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; an incomplete last line is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


class Writer:
    """Writes scalars, texts and images of a run; only process 0 writes."""

    def __init__(self, workdir: Path):
        """Opens workdir/metrics.jsonl and workdir/tensorboard for appending."""
        self._active = jax.process_index() == 0
        self._path = workdir / METRICS
        self._folder = workdir / EVENTS
        self._writer: SummaryWriter | None = None
        self._file, self._resumed = None, 0

    def __enter__(self) -> 'Writer':
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def _events(self) -> SummaryWriter:
        """The event writer, opened once the step it resumes from is known."""
        if self._writer is None:
            purge = self._resumed + 1 if self._resumed else None
            self._writer = SummaryWriter(str(self._folder), purge_step=purge)
        # Without its thread, which an error ends, it would take ten more events and then wait forever.
        if not self._writer.file_writer.event_writer._worker.is_alive():
            raise OSError(errno.EIO, 'events cannot be written', str(self._folder))
        return self._writer

    def truncate_after(self, step: int) -> None:
        """Deletes what a killed run wrote after `step`, and an incomplete last line."""
        if not self._active:
            return
        self._resumed = step
        if not self._path.exists():
            return
        lines = [line for line in read_metrics(self._path) if line['step'] <= step]
        with whole_file(self._path) as partial:
            partial.write_text(''.join(json.dumps(line) + '\n' for line in lines))

    def scalars(self, step: int, group: str, values: dict[str, Any]) -> None:
        """Writes numbers under `group` ('train', 'validation', 'speed', ...)."""
        if not self._active:
            return
        if self._file is None:
            self._file = self._path.open('a')
        line = {'step': step, 'group': group}
        line |= {name: _plain(value) for name, value in values.items()}
        self._file.write(json.dumps(line) + '\n')
        self._file.flush()
        for name, value in values.items():
            self._events.add_scalar(f'{group}/{name}', float(value), step)

    def text(self, name: str, text: str, step: int) -> None:
        """Writes a text: the config, a sample."""
        if self._active:
            self._events.add_text(name, text, step)

    def figure(self, name: str, figure: matplotlib.figure.Figure, step: int) -> None:
        """Writes a figure as an image."""
        if self._active:
            figure.canvas.draw()
            pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
            self._events.add_image(name, pixels, step, dataformats='HWC')

    def close(self) -> None:
        """Flushes and closes."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._writer is not None:
            self._writer.close()


def learning_curve(metrics: Path, png: Path) -> matplotlib.figure.Figure:
    """Draws bits per byte, or the accuracy of a task, of training, validation and test.

    Args:
      metrics: a `metrics.jsonl`.
      png: file to write.

    Returns:
      The figure.
    """
    figure = figures.figure(7, 4.2)
    axes = figure.subplots()
    lines = read_metrics(metrics)
    # A task has no bytes, and its bits per byte are 0.
    task = not any(line.get('bits_per_byte') for line in lines)
    quantity = 'accuracy' if task else 'bits_per_byte'
    styles = {
        'train': dict(label='training', linewidth=1.0, alpha=0.8),
        'validation': dict(label='validation', marker='o', markersize=4),
        'test': dict(label='test', marker='*', markersize=11, linestyle='none'),
        'test_reset': dict(label='test, memory reset', marker='x', markersize=8, linestyle='none'),
    }
    shown = []
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
    figure.savefig(png)
    return figure
