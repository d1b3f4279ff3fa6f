"""Milliseconds per token of a row and of the baseline, measured in turns.

Whatever else the machine does slows both alike, so `ratio`, the median over rounds of row / baseline, is
steadier than the times. Training: the whole step. Generation: one token in one lane, with new parameters
and an empty memory.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.short_trainings import on_one_device
from experiments.speed.bench import bytes_per_lane, generate_call, random_batch
from longmem_jax.config import checks
from longmem_jax.data.lanes import Cursor
from longmem_jax.devices import initial
from longmem_jax.experiment import Experiment, lower_step, to_devices

ROUNDS, TRAIN_CALLS, TOKENS = 12, 2, 64


def in_turns(calls: dict[str, Callable[[], Any]], tokens: int, repeats: int) -> dict[str, Any]:
    """Times `calls['row']` and `calls['baseline']` in turns, after two untimed rounds.

    Args:
      calls: return arrays to wait for.
      tokens: of a call.
      repeats: calls per round.

    Returns:
      `row` and `baseline`: milliseconds per token (median), and `ratio`, `ratio_min`, `ratio_max`.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(repeats):
                jax.block_until_ready(call())
            times[name].append(1e3 * (time.perf_counter() - began) / (tokens * repeats))
    times = {name: values[2:] for name, values in times.items()}
    ratios = [row / base for row, base in zip(times['row'], times['baseline'], strict=True)]
    medians = {name: statistics.median(values) for name, values in times.items()}
    ends = {'ratio_min': min(ratios), 'ratio_max': max(ratios)}
    return medians | {'ratio': statistics.median(ratios)} | ends


def train_call(experiment: Experiment) -> Callable[[], Any]:
    """One training step on random tokens per call."""
    train = experiment.config.train
    compiled = lower_step(experiment).compile()
    holder = [initial.arrays(experiment.make_state, experiment.state_shardings)]
    batch = random_batch(experiment.config, train, train.segments_per_step)
    zeros = np.zeros((train.num_lanes,), np.int32)
    inputs = to_devices(experiment, batch, Cursor(document=zeros, offset=zeros))

    def call() -> Any:
        holder[0], metrics = compiled(holder[0], *inputs)
        return metrics

    return call


Calls = dict[str, Callable[[], Any]]


def calls_of(config: Any) -> tuple[Calls, int]:
    """Calls that train a step and generate a token, and the bytes of the state per lane.

    Raises:
      UsageError: problems of the configuration.
    """
    checks.require_runnable(config, 1)
    experiment = on_one_device(config)
    train = train_call(experiment)
    params = initial.arrays(experiment.make_state).params
    generate = generate_call(experiment, params)
    size = bytes_per_lane(experiment.evaluation_model, params)
    return {'train': train, 'generate': generate}, size


def speed(config: Any, baseline: Calls) -> tuple[dict[str, Any], int]:
    """Times of a row beside those of the baseline's calls, and the bytes of its state per lane."""
    calls, size = calls_of(config)
    train = config.train
    tokens = train.num_lanes * train.segment_length * train.segments_per_step
    found = {}
    for what, (count, repeats) in {'train': (tokens, TRAIN_CALLS), 'generate': (1, TOKENS)}.items():
        pair = {'row': calls[what], 'baseline': baseline[what]}
        found[what] = in_turns(pair, count, repeats)
    return found, size
