"""Warm start from the parameters of another run, or of a host (`config.train.start_from`)."""

from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, saved_config
from longmem_jax.pretrained import hosts
from longmem_jax.pretrained.model_fields import differences

# Fields in which a model may differ from the host that it begins with: what a memory needs.
OF_MEMORY = frozenset(('attention', 'position', 'num_positions', 'token_shift', 'full', 'sliding'))


def parameters_of(experiment: Experiment) -> Any:
    """The parameters of the run, or of the host, that `experiment` starts from.

    Raises:
      UsageError: no such run or host, one with another vocabulary, or a host that computes something
        else than `config.model`.
    """
    workdir = experiment.config.train.start_from
    if hosts.is_name(workdir):
        return _of_host(experiment, workdir)
    path = Path(workdir).expanduser()
    if not (path / 'config.json').exists():
        raise UsageError(
            f'config.train.start_from = {workdir}: there is no config.json; give the workdir of a run, '
            'the folder of a Hugging Face model, or its name.'
        )
    other = Experiment(saved_config(path), path, experiment.mesh)
    if other.tokenizer.fingerprint() != experiment.tokenizer.fingerprint():
        raise UsageError(
            f'config.train.start_from = {workdir}: that run has another vocabulary; set '
            'config.data.tokenizer to its tokenizer (a learned one is in its workdir).'
        )
    return other.restore_parameters()[0]


def _of_host(experiment: Experiment, source: str) -> Any:
    """The parameters of a Hugging Face model, after checking that the config is that model."""
    host, model = hosts.find(source), experiment.config.model
    differing = differences(host.plain, model, skip=OF_MEMORY | set(host.plain.attention))
    differing = [line for line in differing if line.split(' = ')[0] not in {*model.attention}]
    if differing:
        raise UsageError(
            f'config.train.start_from = {source}: config.model is another model:\n  '
            + '\n  '.join(differing)
        )
    return hosts.load(host, hosts.make(host.model, 1), experiment.mesh)
