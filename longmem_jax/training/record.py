"""Metrics of a run while it trains: fetched one step late, with rates and non-finite steps."""

import math
import time
from collections.abc import Callable

import jax
import numpy as np

from longmem_jax.devices.hardware import peak_flops
from longmem_jax.errors import UsageError
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.training.job import Job, Metrics, Step
from longmem_jax.training.keeping import way_back
from longmem_jax.training.metrics import METRICS


class _Meter:
    """Steps and totals per second, and utilisation, between two calls."""

    def __init__(self, compiled: Step):
        self._compiled, self._time, self._step = compiled, 0.0, -1
        self._how = '_at_most' if compiled.at_most else ''
        self._totals: dict[str, float] = {}

    def skip(self, seconds: float) -> None:
        """Leaves out time since the last call."""
        self._time += seconds

    def read(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Rates since the last call; empty on the first."""
        now, rates = time.monotonic(), {}
        totals = {
            name.removesuffix('_seen'): value
            for name, value in metrics.items()
            if name.endswith('_seen')
        }
        if 0 <= self._step < step:
            seconds = max(now - self._time, 1e-9)
            steps = (step - self._step) / seconds
            rates = {'steps_per_s': steps}
            for name, total in totals.items():
                rates[f'{name}_per_s'] = (total - self._totals[name]) / seconds
            if self._compiled.flops:
                flops = self._compiled.flops * steps
                rates[f'flops{self._how}_per_s'] = flops
                peak = peak_flops(jax.devices()[0])
                if peak:
                    rates[f'utilisation{self._how}'] = flops / peak
        self._time, self._step, self._totals = now, step, totals
        return rates


def by_head(metrics: Metrics) -> dict[str, float]:
    """Metrics as numbers: a vector 'memory/gate/block_3' becomes 'memory/gate/block_3/head_0', ...

    A total 'NAME_seen' of two parts, see `step.count`, is added up here: float32 could not hold it.
    """
    numbers = {}
    for name, value in metrics.items():
        if np.ndim(value) and name.endswith('_seen'):
            millions, remainder = map(float, value)
            numbers[name] = millions * 1e6 + remainder
        elif np.ndim(value):
            numbers |= {f'{name}/head_{i}': float(part) for i, part in enumerate(value)}
        else:
            numbers[name] = float(value)
    return numbers


# Of a single batch they jump; the console shows their mean since its last line.
AVERAGED = (*METRICS, 'loss_alone', 'gate')


class _Means:
    """Means of some metrics over steps; a step in which one is not finite does not count for it."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, metrics: dict[str, float]) -> dict[str, float]:
        """Adds a step; returns its metrics with the means so far in place of those in `AVERAGED`."""
        means = dict(metrics)
        for name in AVERAGED:
            value = metrics.get(name, math.nan)
            if math.isfinite(value):
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1
            if name in metrics and name in self._sums:
                means[name] = self._sums[name][0] / self._sums[name][1]
        return means

    def clear(self) -> None:
        """Begins with the next step."""
        self._sums.clear()


class Record:
    """Writes metrics one step late, so that devices never wait for the host.

    What is written are the numbers of single steps, the same wherever a run was resumed; what is shown
    are means over the steps since the last line.

    Attributes:
      bad: how many of the last steps, up to the last one written, were not finite.
    """

    def __init__(
        self,
        job: Job,
        writer: Writer,
        progress: Progress,
        compiled: Step,
        saved: Callable[[], list[int]] = list,
    ):
        """`saved` gives the steps with a checkpoint, for the message after too many bad steps."""
        self._saved, self.bad = saved, 0
        self._job, self._writer, self._progress = job, writer, progress
        self._meter, self._speed, self._means = _Meter(compiled), '', _Means()
        self._waiting: tuple[int, Metrics] | None = None
        self._warnings = dict(job.plan.warnings)

    def add(self, step: int, metrics: Metrics) -> None:
        """Keeps the metrics of a step on the devices and writes those of the previous step."""
        self.write()
        self._waiting = step, metrics

    def paused(self, seconds: float) -> None:
        """Leaves time out of the rates in which no step was taken: evaluations, checkpoints."""
        self._meter.skip(seconds)

    def write(self) -> None:
        """Writes the metrics kept by `add`; raises `UsageError` after too many bad steps."""
        if self._waiting is None:
            return
        step, metrics = self._waiting
        self._waiting, plan = None, self._job.plan
        metrics = by_head(jax.device_get(metrics))
        bad = self.bad = int(metrics.get('skipped', 0))
        if bad >= plan.max_bad_steps:
            never = (
                'No step since the first was finite, as when a layer gives NaN from the beginning: '
            )
            never += 'longmem_jax.testing.conformance looks for that in a memory of your own. '
            raise UsageError(
                f'{bad} steps in a row were not finite (config.train.max_bad_steps = '
                f'{plan.max_bad_steps}); {plan.remedy}. Nothing of these steps was kept. '
                f'{never * (bad == step)}{way_back(self._saved(), step, bad)}.'
            )
        self._warn(step, metrics)
        self._writer.each_step(step, metrics)
        shown = self._means.add(metrics)
        if (plan.log_every and step % plan.log_every == 0) or step == plan.num_steps:
            self._writer.scalars(step, 'train', metrics)
            rates = self._meter.read(step, metrics)
            if rates:
                self._writer.scalars(step, 'speed', rates)
            self._speed = _speed(rates) or self._speed
            self._means.clear()
        text = f'{self._job.in_short(shown)}{self._speed}'
        self._progress.update(step, f'{text}, {bad} bad steps' if bad else text)

    def _warn(self, step: int, metrics: dict[str, float]) -> None:
        """Says once in a run what it means that a metric is above 0."""
        for name in [name for name in self._warnings if metrics.get(name, 0.0) > 0]:
            text = self._warnings.pop(name)
            self._progress.say(
                f'Warning: step {step:,}: {name} = {metrics[name]:.3g}, {text}. This warning is '
                f'printed once; watch {name} in the metrics.'
            )


def _speed(rates: dict[str, float]) -> str:
    """The rates as text: ', 12,345 tokens/s, 41% of peak'; '' if there are none."""
    per_second = {name.removesuffix('_per_s'): rate for name, rate in rates.items()}
    hidden = ('flops', 'utilisation')
    shown = [name for name in per_second if name != 'steps' and not name.startswith(hidden)]
    text = ''.join(f', {per_second[name]:,.0f} {name}/s' for name in shown)
    for name, words in (('utilisation', ''), ('utilisation_at_most', 'at most ')):
        if name in rates:
            text += f', {words}{rates[name]:.0%} of peak'
    return text
