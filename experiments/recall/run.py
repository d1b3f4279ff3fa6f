"""Recall by distance of several memories and seeds, as a Markdown table and a figure.

python -m experiments.recall.run --output=DIR --seeds=3 MEMORY [MEMORY ...] [-- --config.FIELD=VALUE ...]

Trains `configs/recall.py:tiny,kind=passkey,memory=MEMORY` with every seed, of the parameters and of the
data, in one process, so that a memory is compiled once, and tests it at every one of `--distances`. The
table has exact match in %, mean (minimum - maximum) over seeds, with the memory kept and with it reset
before every segment. DIR/MEMORY/SEED has `recall.json`; seeds that have one are not repeated. No
parameters are saved.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import recall
from longmem_jax.commands.recall_by_distance import by_distance, draw
from longmem_jax.config import checks, overrides
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.reporting.progress import Progress
from longmem_jax.training import step as train_step

LOGGED = 10  # times per training


def seeded(experiment: Experiment, seed: int, folder: Path) -> Experiment:
    """The same experiment with other data and parameters."""
    config = experiment.config.copy_and_resolve_references()
    config.data.seed = config.train.seed = seed
    return dataclasses.replace(experiment, config=config, workdir=folder)


def train(experiment: Experiment, compiled: Any, initial: Any) -> Iterator[dict[str, float]]:
    """Takes all steps of the config; returns the state, and yields mean metrics on the way.

    Args:
      experiment: with the seed of the run.
      compiled: its training step.
      initial: `seed -> TrainState`.
    """
    settings = experiment.config.train
    source = lanes.batches(
        experiment.corpus('train'),
        lanes=range(settings.num_lanes),
        num_lanes=settings.num_lanes,
        segment_length=settings.segment_length,
        segments_per_batch=settings.segments_per_step,
        seed=experiment.config.data.seed,
        shuffle=True,
        num_epochs=None,
        cursor=None,
    )
    state, waiting = initial(settings.seed), []
    every = max(settings.num_steps // LOGGED, 1)
    for step in range(1, settings.num_steps + 1):
        state, metrics = compiled(state, *to_devices(experiment, *next(source)))
        waiting.append({name: metrics[name] for name in ('loss', 'accuracy')})
        if step % every == 0:
            means = jax.tree.map(lambda *values: float(np.mean(values)), *jax.device_get(waiting))
            waiting = []
            yield {'step': step, **means, **_numbers(metrics)}
    return state


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    """The metrics of the memory that are single numbers."""
    return {
        name.removeprefix('memory/'): round(float(value), 3)
        for name, value in metrics.items()
        if name.startswith('memory/') and not np.ndim(value)
    }


def results(
    memory: str, options: argparse.Namespace, changes: list[tuple[str, str]]
) -> list[list[dict[str, float]]]:
    """Rows of `by_distance` for every seed; trains what is not there."""
    folder = options.output / memory.replace('/', '_')
    config = recall.get_config(f'tiny,kind=passkey,memory={memory}')
    overrides.apply(config, changes)
    checks.require_runnable(config, 1)
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1))
    shared = Experiment(config, folder, mesh)
    evaluator = Evaluator(shared.evaluation_model, mesh, config)
    compiled, found = None, []
    for seed in range(options.seeds):
        run = seeded(shared, seed, folder / str(seed))
        path = run.workdir / 'recall.json'
        if path.exists():
            found.append(json.loads(path.read_text()))
            continue
        run.workdir.mkdir(parents=True, exist_ok=True)
        if compiled is None:
            compiled = lower_step(shared).compile()
            initial = jax.jit(
                lambda seed: train_step.make_initial_state(
                    shared.model, shared.optimizer, config.train.num_lanes, seed
                )(),
                out_shardings=shared.state_shardings,
            )
        started, lines = time.monotonic(), []
        steps = train(run, compiled, initial)
        while True:
            try:
                lines.append(next(steps))
            except StopIteration as stopped:
                state = stopped.value
                break
            print(f'{memory}, seed {seed}: {lines[-1]}', flush=True)
        print(f'{memory}, seed {seed}: trained in {time.monotonic() - started:.0f} s', flush=True)
        (run.workdir / 'training.json').write_text(json.dumps(lines, indent=1) + '\n')
        run.config.data.task.update(distances=options.distances, eval_documents=options.documents)
        progress = Progress(config.train.num_steps, log_every=config.train.log_every)
        found.append(by_distance(run, evaluator, state.params, 'test', progress))
        progress.close()
    return found


def _span(values: list[float]) -> str:
    """Mean (minimum - maximum) in %."""
    mean, least, greatest = (100 * f(values) for f in (statistics.mean, min, max))
    return f'{mean:.0f} ({least:.0f} - {greatest:.0f})' if len(values) > 1 else f'{mean:.0f}'


def table(runs: dict[str, list[list[dict[str, float]]]]) -> str:
    """A Markdown table; `runs`: memory to the rows of its seeds."""
    distances = [row['distance'] for row in next(iter(runs.values()))[0]]
    heads = ['memory', *(f'{distance:,}' for distance in distances)]
    lines = [f'| {" | ".join(heads)} |', f'|{"---|" * len(heads)}']
    for memory, seeds in runs.items():
        for name, label in (('exact_match', f'`{memory}`'), ('exact_match_reset', '... reset')):
            cells = [_span([rows[i][name] for rows in seeds]) for i in range(len(distances))]
            lines.append(f'| {" | ".join([label, *cells])} |')
    return '\n'.join(lines)


def mean_rows(seeds: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The mean of the rows of several seeds."""
    return [
        {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
        for rows in zip(*seeds, strict=True)
    ]


def main() -> None:
    """Runs the command."""
    arguments, changes = overrides.split_arguments(
        [argument for argument in sys.argv[1:] if argument != '--']
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('memories', nargs='+')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument(
        '--distances',
        type=lambda text: tuple(int(item) for item in text.split(',')),
        default=(16, 64, 128, 256, 512, 1024),
    )
    parser.add_argument('--documents', type=int, default=128, help='at every distance')
    options = parser.parse_args(arguments)
    runs = {memory: results(memory, options, changes) for memory in options.memories}
    print(table(runs))
    draw({memory: mean_rows(rows) for memory, rows in runs.items()}, options.output / 'recall.png')


if __name__ == '__main__':
    main()
