"""Warm start from the parameters of another run (`config.train.start_from`)."""

from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, saved_config


def parameters_of(experiment: Experiment) -> Any:
    """The parameters of the newest checkpoint of the run that `experiment` starts from.

    Raises:
      UsageError: no such run, or a run with another vocabulary.
    """
    workdir = experiment.config.train.start_from
    path = Path(workdir).expanduser()
    if not (path / 'config.json').exists():
        raise UsageError(
            f'config.train.start_from = {workdir}: there is no config.json; give the workdir of a run.'
        )
    other = Experiment(saved_config(path), path, experiment.mesh)
    if other.tokenizer.fingerprint() != experiment.tokenizer.fingerprint():
        raise UsageError(
            f'config.train.start_from = {workdir}: that run has another vocabulary; set '
            'config.data.tokenizer to its tokenizer (a learned one is in its workdir).'
        )
    return other.restore_parameters()[0]
