"""Warm start from the parameters of another run, or of a host (`config.train.start_from`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from longmem_jax.config.model_checks import model_faults
from longmem_jax.data import content
from longmem_jax.devices import processes
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, saved_config
from longmem_jax.hosts import hosts
from longmem_jax.hosts.model_fields import differences
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.kinds import KINDS
from longmem_jax.training import checksums
from longmem_jax.training.graft import graft

# Fields in which a model may differ from the host that it begins with: what a memory needs.
OF_MEMORY = frozenset(
    (
        'attention', 'feed_forward', 'beside', 'around', 'position', 'num_positions',
        'positions_restart', 'token_shift',
    )
)  # fmt: skip


def first_parameters(experiment: Experiment, initial: Any, say: Callable[[str], None]) -> Any:
    """The `initial` parameters, replaced by those that `config.train.start_from` has, if it is set.

    Errors as in `parameters_of`; what is new and what is not used is said.
    """
    source = experiment.config.train.start_from
    if not source:
        return initial
    model = experiment.config.model
    growing = KINDS[model.kind].growing
    growing += tuple(end for name in used(model) for end in LAYERS[name].growing)
    return graft(initial, parameters_of(experiment, say), source, say, growing)


def newest_parameters(experiment: Experiment, say: Callable[[str], None]) -> tuple[Any, int]:
    """Parameters and step of the newest checkpoint; of step 0 for a host that was not trained yet.

    Raises:
      UsageError: as `Experiment.restore_parameters` and `parameters_of`.
    """
    if not of_host(experiment.config) or experiment.checkpoint_steps():
        return experiment.restore_parameters()
    make = jax.jit(
        lambda: experiment.make_state().params, out_shardings=experiment.state_shardings.params
    )
    return first_parameters(experiment, make(), say), 0


def of_host(config: Any) -> bool:
    """Whether there are parameters without a checkpoint: those of a host that was not trained yet."""
    return hosts.is_name(config.train.start_from)


def parameters_of(experiment: Experiment, say: Callable[[str], None]) -> Any:
    """The parameters of the run, or of the host, that `experiment` starts from.

    What was read of a host is said.

    Raises:
      UsageError: no such run or host, one with another vocabulary, or a host that computes something
        else than `config.model`.
    """
    workdir = experiment.config.train.start_from
    if hosts.is_name(workdir):
        return _of_host(experiment, workdir, say)
    path = Path(workdir).expanduser()
    if not (path / 'config.json').exists():
        raise UsageError(
            f'config.train.start_from = {workdir}: there is no config.json; give the workdir of a run, '
            'the folder of a Hugging Face model, or its name.'
        )
    config = saved_config(path)
    faults = model_faults(config.model, config.train.segment_length)
    if faults:
        raise UsageError(
            f'config.train.start_from = {workdir}: its config.json has faults:\n  '
            + '\n  '.join(faults)
        )
    other = Experiment(config, path, experiment.mesh)
    if other.tokenizer.fingerprint() != experiment.tokenizer.fingerprint():
        raise UsageError(
            f'config.train.start_from = {workdir}: that run has another vocabulary; set '
            'config.data.tokenizer to its tokenizer (a learned one is in its workdir).'
        )
    _require_same(workdir, path, f'checkpoints/*/{checksums.CHECKSUMS}')
    return other.restore_parameters()[0]


def _require_same(source: str, folder: Path, pattern: str) -> None:
    """Raises `UsageError` if the files of these names are other ones in another process."""
    if processes.alone():
        return
    files = [(str(path.relative_to(folder)), path) for path in sorted(folder.glob(pattern))]
    found = {f'files of {source}': content.digest_of(files, sampled=True)}
    processes.require_same(found, 'parameters', content.SAME_FILES)


def _of_host(experiment: Experiment, source: str, say: Callable[[str], None]) -> Any:
    """The parameters of a Hugging Face model, after checking that the config is that model."""
    host, model = hosts.find(source), experiment.config.model
    replaced = {*host.plain.attention, *host.plain.feed_forward} - {*model.feed_forward}
    added = {*used(model)} - {*host.plain.feed_forward}
    beyond = KINDS[model.kind].beyond_host
    differing = differences(host.plain, model, skip=OF_MEMORY | replaced | added | beyond)
    if differing:
        raise UsageError(
            f'config.train.start_from = {source}: config.model is another model:\n  '
            + '\n  '.join(differing)
        )
    _require_same(source, host.folder, '*.safetensors')
    # What is new is said by `graft`: the host by itself lacks nothing.
    return hosts.load(
        host,
        hosts.make(host.model, 1),
        experiment.mesh,
        report=lambda line: say(line.replace('; new: nothing', '')),
    )
