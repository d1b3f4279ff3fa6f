"""Warm start from the parameters of another run, or from elsewhere (`config.train.start_from`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from longmem_jax.config.model_checks import model_problems
from longmem_jax.config.saved import saved_config
from longmem_jax.data import content
from longmem_jax.devices import initial, processes
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.kinds import KINDS
from longmem_jax.registry import brought
from longmem_jax.training import checksums
from longmem_jax.training.warm_start import warm_start


class Start(NamedTuple):
    """First parameters from elsewhere, which a subject brings.

    Attributes:
      has: whether it knows a `config.train.start_from`.
      parameters: (experiment, `config.train.start_from`, say) to parameters, after checking that
        `config.model` is their model; what was read is said.
    """

    has: Callable[[str], bool]
    parameters: Callable[[Experiment, str, Callable[[str], None]], Any]


def _elsewhere(source: str) -> Start | None:
    """What knows a `config.train.start_from`; None for the workdir of a run, and for ''."""
    found = brought('starts') if source else iter(())
    return next((start for start in found if start.has(source)), None)


def first_parameters(experiment: Experiment, initial: Any, say: Callable[[str], None]) -> Any:
    """The `initial` parameters, replaced by those that `config.train.start_from` has, if it is set.

    Errors as in `parameters_of`; what is new and what is not used is said.
    """
    source = experiment.config.train.start_from
    if not source:
        return initial
    model = experiment.config.model
    growing = KINDS[model.kind].growing
    growing += tuple(end for name in used(model) for end in LAYERS[name].recipe.growing)
    return warm_start(initial, parameters_of(experiment, say), source, say, growing)


def newest_parameters(experiment: Experiment, say: Callable[[str], None]) -> tuple[Any, int]:
    """Parameters and step of the newest checkpoint; of step 0 for a host that was not trained yet.

    Raises:
      UsageError: as `Experiment.restore_parameters` and `parameters_of`.
    """
    if not of_host(experiment.config) or experiment.checkpoint_steps():
        return experiment.restore_parameters()
    say(f'Loading {experiment.config.train.start_from} ...')
    made = initial.arrays(lambda: experiment.make_state().params, experiment.state_shardings.params)
    return first_parameters(experiment, made, say), 0


def of_host(config: Any) -> bool:
    """Whether there are parameters without a checkpoint: those of a host that was not trained yet."""
    return _elsewhere(config.train.start_from) is not None


def parameters_of(experiment: Experiment, say: Callable[[str], None]) -> Any:
    """The parameters of the run, or of the host, that `experiment` starts from.

    What was read of a host is said.

    Raises:
      UsageError: no such run or host, one with another vocabulary, or a host that computes something
        else than `config.model`.
    """
    workdir = experiment.config.train.start_from
    if (start := _elsewhere(workdir)) is not None:
        return start.parameters(experiment, workdir, say)
    path = Path(workdir).expanduser()
    if not (path / 'config.json').exists():
        raise UsageError(
            f'config.train.start_from = {workdir}: there is no config.json; give the workdir of a run, '
            'the folder of a Hugging Face model, or its name.'
        )
    config = saved_config(path)
    problems = model_problems(config.model, config.train.segment_length)
    if problems:
        raise UsageError(
            f'config.train.start_from = {workdir}: its config.json has problems:\n  '
            + '\n  '.join(problems)
        )
    other = Experiment(config, path, experiment.mesh)
    if other.tokenizer.fingerprint() != experiment.tokenizer.fingerprint():
        raise UsageError(
            f'config.train.start_from = {workdir}: that run has another vocabulary; set '
            'config.data.tokenizer to its tokenizer (a learned one is in its workdir).'
        )
    require_same_files(workdir, path, f'checkpoints/*/{checksums.CHECKSUMS}')
    return other.restore_parameters()[0]


def require_same_files(source: str, folder: Path, pattern: str) -> None:
    """Raises `UsageError` if the files of these names are other ones in another process."""
    if processes.alone():
        return
    files = [(str(path.relative_to(folder)), path) for path in sorted(folder.glob(pattern))]
    found = {f'files of {source}': content.digest_of(files, sampled=True)}
    processes.require_same(found, 'parameters', content.SAME_FILES)
