"""Trains several seeds of a configuration in one process, which compiles once.

python -m experiments.trainings --config=configs/NAME.py[:variant] --workdir=DIR --seeds=3

Seed n, of the parameters and of the data, is trained in DIR/n as `longmem_jax.main` would; every
command reads it there. Seeds that have results are not repeated; one that was cut off resumes.
`experiments.compare --together` trains with it.
"""

import dataclasses
from collections.abc import Sequence

from experiments.options import define_seeds
from longmem_jax.commands import entry
from longmem_jax.commands.train import Programs, train
from longmem_jax.config.sections import in_use
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment

if __name__ == '__main__':
    _SEEDS = define_seeds()


def seeded(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with other data and parameters, in a folder of its own."""
    config = experiment.config.copy_and_resolve_references()
    config.data.seed = config.train.seed = seed
    folder = experiment.workdir / str(seed)
    folder.mkdir(exist_ok=True)
    return dataclasses.replace(experiment, config=config, workdir=folder)


def train_seeds(experiment: Experiment, seeds: Sequence[int]) -> None:
    """Trains all seeds that have no results yet, until it is asked to stop.

    Raises:
      UsageError: an agent or a lifelong learner, whose seeds have programs of their own.
    """
    config = experiment.config
    if in_use(config, 'reinforcement') or in_use(config, 'lifelong'):
        raise UsageError(
            'experiments.trainings, compare --together: not for agents and lifelong learners; leave '
            '--together out, or train each seed with longmem_jax.main.'
        )
    programs = Programs(experiment)
    for seed in seeds:
        run = seeded(experiment, seed)
        if (run.workdir / 'results.json').exists():
            continue
        if not train(run, programs=programs).finished:
            return  # it has said how to resume


def _main(experiment: Experiment) -> None:
    train_seeds(experiment, _SEEDS.value)


if __name__ == '__main__':
    entry.command(_main)
