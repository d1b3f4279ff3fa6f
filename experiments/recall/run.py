"""Recall by distance of several memories and seeds, as a Markdown table and a figure.

python -m experiments.recall.run --output=DIR --seeds=3 MEMORY [MEMORY ...] [-- --config.FIELD=VALUE ...]

Trains `configs/recall.py:tiny,kind=passkey,memory=MEMORY` with every seed, of the parameters and of the
data, in one process, so that a memory is compiled once, and tests it at every one of `--distances`. A
training ends when nearly all answers of the last `RECENT` steps were right, and at the latest after
`config.train.num_steps`. DIR/MEMORY/SEED has `recall.json` and `training.json`; seeds that have them are
not repeated, so the table of everything is one more, short run. No parameters are saved.
"""

import argparse
import collections
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import recall
from experiments.recall import report
from longmem_jax.commands.recall_by_distance import by_distance
from longmem_jax.config import checks, overrides
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.reporting.progress import Progress
from longmem_jax.training import step as train_step

RECENT = 100  # steps whose answers decide whether a training may end
LOOKED = 25  # steps from one look at them to the next
DISTANCES = (16, 64, 128, 256, 512, 1024)


def seeded(experiment: Experiment, seed: int, folder: Path) -> Experiment:
    """The same experiment with other data and parameters."""
    config = experiment.config.copy_and_resolve_references()
    config.data.seed = config.train.seed = seed
    return dataclasses.replace(experiment, config=config, workdir=folder)


def train(
    experiment: Experiment, compiled: Any, state: Any, enough: float
) -> tuple[Any, list[dict[str, float]]]:
    """Trains until it is decided, or for all steps of the config.

    Args:
      experiment: with the seed of the run.
      compiled: its training step.
      state: the first `TrainState`.
      enough: the share of right answers in the last `RECENT` steps that ends the training.

    Returns:
      The state, and mean metrics of every `LOOKED` steps.
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
    waiting, lines, recent = [], [], collections.deque(maxlen=RECENT // LOOKED)
    for step in range(1, settings.num_steps + 1):
        state, metrics = compiled(state, *to_devices(experiment, *next(source)))
        waiting.append({name: metrics[name] for name in ('loss', 'accuracy')})
        if step % LOOKED and step < settings.num_steps:
            continue
        means = jax.tree.map(lambda *values: float(np.mean(values)), *jax.device_get(waiting))
        waiting = []
        lines.append({'step': step, **means, **_numbers(metrics)})
        recent.append(means['accuracy'])
        if step % RECENT == 0:
            print(lines[-1], flush=True)
        if len(recent) == recent.maxlen and np.mean(recent) >= enough:
            break
    return state, lines


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    """The metrics of the memory that are single numbers."""
    return {
        name.removeprefix('memory/'): round(float(value), 3)
        for name, value in metrics.items()
        if name.startswith('memory/') and not np.ndim(value)
    }


def configuration(memory: str, changes: list[tuple[str, str]]) -> Any:
    """The config of all runs of a memory."""
    config = recall.get_config(f'tiny,kind=passkey,memory={memory}')
    overrides.apply(config, changes)
    checks.require_runnable(config, 1)
    return config


def results(
    memory: str, config: Any, options: argparse.Namespace, changes: list[tuple[str, str]]
) -> list[report.Run]:
    """The runs of all seeds; trains those that are not there.

    Raises:
      UsageError: the output has runs of other settings.
    """
    folder = options.output / memory
    settings = {
        'changes': [list(change) for change in changes],
        'distances': list(options.distances),
        'documents': options.documents,
        'enough': options.enough,
    }
    train_seed, found = None, []
    for seed in range(options.seeds):
        workdir = folder / str(seed)
        if (workdir / 'training.json').exists():
            run = report.read(workdir)
            if run.settings != settings:
                raise UsageError(
                    f'{workdir} has a run with {run.settings}, asked for were {settings}: choose '
                    'another --output, or delete it.'
                )
            found.append(run)
            continue
        train_seed = train_seed or _trainer(memory, config, folder, options)
        training = train_seed(seed, workdir)
        (workdir / 'training.json').write_text(json.dumps(settings | training, indent=1) + '\n')
        found.append(report.read(workdir))
    return found


def _trainer(memory: str, config: Any, folder: Path, options: argparse.Namespace) -> Any:
    """`(seed, workdir) -> what training.json has`: trains and tests a seed; compiles once."""
    one = dict(data=1, fsdp=1, tensor=1, memory=1)
    mesh = sharding.make_mesh(one, jax.devices()[:1])
    shared = Experiment(config, folder, mesh)
    evaluator = Evaluator(shared.evaluation_model, mesh, config)
    compiled = lower_step(shared).compile()
    initial = jax.jit(
        lambda seed: train_step.make_initial_state(
            shared.model, shared.optimizer, config.train.num_lanes, seed
        )(),
        out_shardings=shared.state_shardings,
    )

    def train_seed(seed: int, workdir: Path) -> dict[str, Any]:
        run = seeded(shared, seed, workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        print(f'{memory}, seed {seed}', flush=True)
        started = time.monotonic()
        state, lines = train(run, compiled, initial(seed), options.enough)
        seconds = time.monotonic() - started
        print(f'{memory}, seed {seed}: {lines[-1]["step"]} steps in {seconds:.0f} s', flush=True)
        run.config.data.task.update(distances=options.distances, eval_documents=options.documents)
        progress = Progress(config.train.num_steps, log_every=config.train.log_every)
        by_distance(run, evaluator, state.params, 'test', progress)
        progress.close()
        return {'seconds': seconds, 'decided': bool(_decided(lines, options)), 'lines': lines}

    return train_seed


def _decided(lines: list[dict[str, float]], options: argparse.Namespace) -> bool:
    """Whether the training ended because its answers were right."""
    last = [line['accuracy'] for line in lines[-RECENT // LOOKED :]]
    return np.mean(last) >= options.enough


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
        default=DISTANCES,
    )
    parser.add_argument('--documents', type=int, default=128, help='at every distance')
    parser.add_argument(
        '--enough', type=float, default=0.995, help='share of right answers that ends a training'
    )
    options = parser.parse_args(arguments)
    configs = {memory: configuration(memory, changes) for memory in options.memories}
    runs = {memory: results(memory, config, options, changes) for memory, config in configs.items()}
    print(report.table(runs, configs))
    print('\n'.join(report.floors(next(iter(configs.values())), options)))
    report.draw(runs, configs, options.output / 'recall.png')


if __name__ == '__main__':
    main()
