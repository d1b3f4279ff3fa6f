"""What a run shows are means, what it writes are single steps."""

import math
from types import SimpleNamespace

import pytest

from longmem_jax.devices import hardware
from longmem_jax.training import record
from longmem_jax.training.job import Plan, Step
from longmem_jax.training.record import Record


class Kept:
    """A writer and a console that keep everything."""

    def __init__(self):
        self.rows, self.shown = [], []

    def scalars(self, step, group, values):
        self.rows.append((step, group, dict(values)))

    def each_step(self, step, values):
        pass

    def update(self, step, text):
        self.shown.append((step, text))


@pytest.fixture
def made(monkeypatch):
    """A record of ten steps with a line every three, what it keeps, and a clock that a test moves."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(record, 'time', clock)
    task = SimpleNamespace(
        plan=Plan(10, 3, 0, 20, '', {}),
        in_short=lambda metrics: f'{metrics["loss"]:.2f} {metrics["tokens_seen"]:.0f}',
    )
    kept = Kept()
    return Record(task, kept, kept, Step(None, 12.0, at_most=True)), kept, clock


def test_the_loss_that_is_shown_is_the_mean_since_the_last_line(made):
    added, kept, _ = made
    for step, loss in enumerate([3.0, 5.0, 7.0, 1.0, math.nan, 2.0, 4.0], 1):
        added.add(step, {'loss': loss, 'tokens_seen': 8.0 * step})
    added.write()
    losses = [text.split()[0] for _, text in kept.shown]
    assert losses == ['3.00', '4.00', '5.00', '1.00', '1.00', '1.50', '4.00']
    assert [text.split()[1].strip(',') for _, text in kept.shown] == [
        str(8 * i) for i in range(1, 8)
    ]
    rows = [(step, values['loss']) for step, group, values in kept.rows if group == 'train']
    assert rows == [(3, 7.0), (6, 2.0)], 'single steps, so that resumed runs write the same'


def test_a_loss_that_is_never_finite_is_shown(made):
    added, kept, _ = made
    added.add(1, {'loss': math.nan, 'tokens_seen': 0.0})
    added.write()
    assert kept.shown[0][1].startswith('nan')


def test_evaluations_and_checkpoints_do_not_slow_the_rate(made):
    added, kept, clock = made
    for step in range(1, 8):
        clock.now += 2.0
        added.add(step, {'loss': 1.0, 'tokens_seen': 8.0 * step})
        if step == 4:
            added.write()
            clock.now += 1000.0
            added.paused(1000.0)
    added.write()
    ((_, _, speed),) = [row for row in kept.rows if row[1] == 'speed']
    assert speed['tokens_per_s'] == pytest.approx(8 / 2)
    assert speed['flops_at_most_per_s'] == pytest.approx(12 / 2), 'a bound is called one'


def test_the_share_of_the_peak_is_shown_where_the_peak_is_known(made, monkeypatch):
    added, kept, clock = made
    for peak, words in ((24.0, ', 4 tokens/s, at most 25% of peak'), (0.0, ', 4 tokens/s')):
        monkeypatch.setattr(record, 'peak_flops', lambda device, peak=peak: peak)
        for step in range(len(kept.shown) + 1, len(kept.shown) + 7):
            clock.now += 2.0
            added.add(step, {'loss': 1.0, 'tokens_seen': 8.0 * step})
        clock.now += 2.0
        added.write()
        assert kept.shown[-1][1].endswith(words)
    unlike = [SimpleNamespace(device_kind=kind) for kind in ('cpu', 'NVIDIA H20', 'TPU v4 lite')]
    assert [hardware.peak_flops(device) for device in unlike] == [0.0] * 3
    assert hardware.peak_flops(SimpleNamespace(device_kind='TPU v4')) == 275e12
