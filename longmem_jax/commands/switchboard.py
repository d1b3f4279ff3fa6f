"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

It trains, continues, scores and uses a model with a memory; after training the folder of the run is
enough, --workdir=DIR. `longmem` is the same command. --mode=list shows configs, memories and fields.
"""

import gc
import math
from typing import Any

from absl import flags

from longmem_jax import stopping
from longmem_jax.commands import entry, modes
from longmem_jax.errors import UsageError
from longmem_jax.registry import load, require_installed
from longmem_jax.subject import Flag

_CONFIG = entry.define_config()
_WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of the run: checkpoints, events, results.')
_TOPOLOGY = flags.DEFINE_string(
    'topology', '', 'compile: a TPU slice such as v5e:4x4, or GPUs such as h100:8.'
)
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'Join the other processes (TPU pods, clusters).'
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', '', 'host:port of process 0, if JAX cannot find it.'
)
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', -1, 'Number of processes of the run.')
_PROCESS_ID = flags.DEFINE_integer('process_id', -1, 'Number of this process.')


def _define(flag: Flag) -> None:
    """Defines the absl flag of an option."""
    limits: dict[str, Any] = {'lower_bound': flag.least, 'upper_bound': flag.most}
    if flag.type is bool:
        flags.DEFINE_bool(flag.name, flag.default, flag.help)
    elif flag.type is int:
        flags.DEFINE_integer(flag.name, flag.default, flag.help, **limits)
    elif flag.type is float:
        flags.DEFINE_float(flag.name, flag.default, flag.help, **limits)
        flags.register_validator(
            flag.name, lambda value: value is None or math.isfinite(value), 'must be a number'
        )
    else:
        flags.DEFINE_string(flag.name, flag.default, flag.help)


def _define_modes() -> None:
    """Defines `--mode` and the options of all modes."""
    require_installed()
    names = list(dict.fromkeys(mode.name for mode in modes.modes()))
    flags.DEFINE_enum('mode', 'train', [*names, 'compile', 'list'], 'What to do.')
    for flag in modes.all_flags().values():
        try:
            _define(flag)
        except flags.DuplicateFlagError as error:
            raise UsageError(
                f'--{flag.name}: a subject of another package brings an option that every command has; '
                'update or uninstall the package'
            ) from error


def _given() -> dict[str, Any]:
    """The options of modes that the command line gives, by name."""
    values = {name: (flags.FLAGS[name].value, flag) for name, flag in modes.all_flags().items()}
    return {name: value for name, (value, flag) in values.items() if value != flag.default}


def _run() -> None:
    config, name = _CONFIG.value, flags.FLAGS.mode
    if name == 'list':
        from longmem_jax.commands import listing

        listing.show(config)
        return
    if config is None:
        where = f'{_WORKDIR.value}: no config.json of a run is there. ' if _WORKDIR.value else ''
        raise UsageError(
            f'{where}{entry.MISSING}. --help lists all flags, --mode=list all configs.'
        )
    if name == 'compile':
        gc.enable()
        from longmem_jax.commands import compile

        stopping.listen(command=True)
        compile.compile_for(config, _TOPOLOGY.value)
        return
    _run_mode(config, name)


def _run_mode(config: Any, name: str) -> None:
    """Calls the function of a mode with what the command line gives."""
    gc.enable()
    import jax

    from longmem_jax.commands.start_from import of_host
    from longmem_jax.config import checks
    from longmem_jax.data.warnings import warnings_of
    from longmem_jax.devices import processes, sharding
    from longmem_jax.experiment import Experiment
    from longmem_jax.reporting import trackers
    from longmem_jax.workdir import workdir_of

    stopping.listen(command=True)  # what takes long to import is there
    numbered = max(_NUM_PROCESSES.value, _PROCESS_ID.value) >= 0
    if _DISTRIBUTED.value or _COORDINATOR.value or numbered:
        processes.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    checks.require_runnable(config, jax.device_count())
    given = _given()
    mode = modes.choose(name, config, given)
    facts = {'config': config.to_dict(), '--mode': name, '--workdir': _WORKDIR.value}
    processes.require_same(facts | processes.installed())
    trained = mode.trained and not of_host(config)
    writes = modes.writes(mode, config, given)
    with workdir_of(_WORKDIR.value, trained=trained, writes=writes) as workdir:
        processes.require_shared(workdir)
        if mode.documents and jax.process_index() == 0:  # training says it where it says all
            for text in warnings_of(config.data):
                print(f'Warning: {text}.')
        hooks = trackers.named(given.pop('tracker', ''), workdir, config.to_dict())
        mesh = sharding.make_mesh(config.mesh.to_dict())
        load(mode.function)(Experiment(config, workdir, mesh, hooks), **given)


def main() -> None:
    """Calls what the command line names, and ends the process."""
    entry.run(_run, define=_define_modes)
