"""Milliseconds per token of a row and of the baseline, measured in turns, as JSON.

python -m experiments.scoreboard.speed --config=configs/scoreboard.py:VARIANTS \
    --baseline=configs/scoreboard.py:VARIANTS --output=FILE.json [--config.FIELD=VALUE ...]

Whatever else the machine does slows both alike, so `ratio`, the median over rounds of row / baseline, is
steadier than the times. Training: the whole step. Generation: one token in one lane, with new parameters
and an empty memory.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from longmem_jax.commands import entry
from longmem_jax.commands.bench import generate_call, random_batch, state_bytes
from longmem_jax.config import checks
from longmem_jax.data.lanes import Cursor
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step, to_devices

if __name__ == '__main__':
    _BASELINE = config_flags.DEFINE_config_file('baseline', None, 'The config to compare with.')
    _OUTPUT = flags.DEFINE_string('output', 'speed.json', 'JSON file for the results.')

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
    holder = [jax.jit(experiment.make_state, out_shardings=experiment.state_shardings)()]
    batch = random_batch(experiment.config, train, train.segments_per_step)
    zeros = np.zeros((train.num_lanes,), np.int32)
    inputs = to_devices(experiment, batch, Cursor(document=zeros, offset=zeros))

    def call() -> Any:
        holder[0], metrics = compiled(holder[0], *inputs)
        return metrics

    return call


def speed(row: Any, baseline: Any) -> dict[str, Any]:
    """Times of two configurations, and the bytes of the row's state per lane.

    Raises:
      UsageError: faults of a configuration.
    """
    experiments = {}
    for name, config in (('row', row), ('baseline', baseline)):
        checks.require_runnable(config, jax.device_count())
        experiments[name] = Experiment(config, None, sharding.make_mesh(config.mesh.to_dict()))
    calls = {name: train_call(experiment) for name, experiment in experiments.items()}
    train = row.train
    tokens = train.num_lanes * train.segment_length * train.segments_per_step
    result = {'train': in_turns(calls, tokens, TRAIN_CALLS)}
    params = {name: jax.jit(e.make_state)().params for name, e in experiments.items()}
    calls = {name: generate_call(e, params[name]) for name, e in experiments.items()}
    result['generate'] = in_turns(calls, 1, TOKENS)
    model = experiments['row'].evaluation_model
    state = model.apply({'params': params['row']}, 1, method='initial_state')
    return result | {'state_bytes': state_bytes(state)}


def _main(config: Any) -> None:
    if _BASELINE.value is None:
        raise UsageError('--baseline= is missing: the config to compare with.')
    result = speed(config, _BASELINE.value)
    Path(_OUTPUT.value).write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    entry.command(_main, workdir=False)
