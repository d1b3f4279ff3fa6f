"""Trains and tests agents: configs with `config.reinforcement.environment`."""

from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.reinforcement.build import Built
from longmem_jax.reinforcement.learning import AgentState
from longmem_jax.reinforcement.task import AgentTask, finish, make_tester, require_one_process
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.training import runner
from longmem_jax.training.checkpoint import Checkpointer


def checkpointer(experiment: Experiment, built: Built, progress: Progress) -> Checkpointer:
    """The checkpoints of the workdir."""
    return Checkpointer(
        experiment.workdir / 'checkpoints',
        every=experiment.config.checkpoint.every,
        keep=experiment.config.checkpoint.keep,
        identity=built.identity(),
        report=progress.say,
    )


def make(experiment: Experiment) -> Built:
    """The agent and its environment; raises `UsageError` with all faults."""
    require_one_process()
    built = Built(experiment.config, experiment.mesh)
    _ = built.environment
    return built


def train(experiment: Experiment, *, profile: bool = False) -> dict[str, Any] | None:
    """Trains up to `config.train.num_steps`, from the newest checkpoint of the workdir if any.

    Returns:
      What is in `WORKDIR/results.json`; None if it was stopped by a signal.

    Raises:
      UsageError: faults of the configuration, or the workdir belongs to another run.
    """
    built, workdir = make(experiment), experiment.workdir
    train = experiment.config.train
    writer = Writer(workdir)
    progress = Progress(train.num_steps, log_every=train.log_every)
    ended = runner.run(
        AgentTask(built, workdir, writer, progress),
        saver=checkpointer(experiment, built, progress),
        writer=writer,
        progress=progress,
        profile=workdir / 'profile' if profile else None,
    )
    return ended.result


def restored(experiment: Experiment, built: Built, progress: Progress) -> tuple[AgentState, int]:
    """The newest state of a run and its step.

    Raises:
      UsageError: no checkpoint, or one of another run.
    """
    saver = checkpointer(experiment, built, progress)
    found = saver.restore(built.abstract_state)
    saver.close()
    if found is None:
        raise UsageError(f'--workdir={experiment.workdir}: no checkpoint there; train first.')
    return found


def evaluate(experiment: Experiment, split: str) -> dict[str, Any]:
    """`--mode=evaluate`: acts in new episodes with the newest checkpoint.

    Raises:
      UsageError: another split than test, no checkpoint, or one of another run.
    """
    if split != 'test':
        raise UsageError(f'--split={split}: agents are tested in new episodes; use test.')
    built, progress = make(experiment), Progress(0, log_every=0)
    state, step = restored(experiment, built, progress)
    return finish(built, make_tester(built), state, step, experiment.workdir, progress)
