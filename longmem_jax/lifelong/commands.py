"""Learns a stream of tasks, and tests what was learned: configs with `config.lifelong.method`."""

from typing import Any

import jax
from jax.sharding import Mesh

from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.lifelong import settings
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.learner import LearnerState
from longmem_jax.lifelong.task import LifelongTask, Tests, finish
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.training import runner
from longmem_jax.training.checkpoint import newest


def _built(experiment: Experiment, progress: Progress) -> Built:
    settings.require(experiment.config)
    sharding.require_one_process('lifelong learning')
    return Built(experiment.config, experiment.workdir, experiment.mesh, progress.say)


def train(experiment: Experiment, *, profile: bool = False) -> dict[str, Any] | None:
    """Learns the stream, from the newest checkpoint of the workdir if any.

    Raises:
      UsageError: problems of the configuration or of the data, or the workdir belongs to another run.
    """
    workdir, log_every = experiment.workdir, experiment.config.train.log_every
    built = _built(experiment, Progress(0, log_every=log_every))
    writer = Writer(workdir, experiment.hooks)
    progress = Progress(0, log_every=log_every)
    task = LifelongTask(built, workdir, writer, progress)
    progress.total = task.plan.num_steps
    ended = runner.run(
        task,
        saver=experiment.other_checkpointer(built.identity(), progress.say, writes=True),
        writer=writer,
        progress=progress,
        profile=workdir / 'profile' if profile else None,
    )
    return ended.result


def evaluate(experiment: Experiment, split: str = 'test') -> dict[str, Any]:
    """`--mode=evaluate`: asks all test rows, of a learner as its newest checkpoint has it.

    Raises:
      UsageError: another split than test, no checkpoint, or one of another run.
    """
    if split != 'test':
        raise UsageError(
            f'--split={split}: lifelong learners are tested on the test sets; use test.'
        )
    progress = Progress(0, log_every=0)
    built, state, step = learned(experiment, progress)
    return finish(built, Tests(built), state, step, experiment.workdir, progress)


def learned(experiment: Experiment, progress: Progress) -> tuple[Built, LearnerState, int]:
    """What a run has built, and the learner and the step of its newest checkpoint.

    Raises:
      UsageError: no checkpoint, or one of another run.
    """
    built = _built(experiment, progress)
    saver = experiment.other_checkpointer(built.identity(), progress.say)
    return built, *newest(saver, built.abstract_state)


def lower(config: Any, mesh: Mesh) -> jax.stages.Lowered:
    """The training step of a config for the devices of a mesh, which need not be attached."""
    return Built(config, None, mesh).lower_step()
