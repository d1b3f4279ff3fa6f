"""Services that get the numbers of a run as well: Weights & Biases and MLflow, if they are installed.

`--tracker=wandb`, or as a hook: `longmem_jax.train(..., hooks=[trackers.wandb(project='long')])`. Names
are those of the events: 'train/loss', 'validation/bits_per_byte'. With the folder of the run a run that
goes on is the same one there; `--tracker=` gives it, and the configuration.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError, nearest
from longmem_jax.files import write_json
from longmem_jax.untrusted import json_file

# Called with step, group and numbers: those of every step ('step'), and whenever a run writes some;
# 'checkpoint' has none. If it has a method `close`, that is called when the run ends;
# its error is a warning.
Hook = Callable[[int, str, dict[str, Any]], Any]
KEPT = 'trackers.json'  # in the folder of a run: its ids


class Stop(Exception):
    """Raised by a hook to end the training: it is saved, and the same call continues it.

    After an evaluation it ends at that step. Numbers of a step are there when the next one has begun, so
    that one is taken too.
    """


class Tracker:
    """A hook that sends what a run writes to a service, from the first numbers on.

    Of several processes only the first has numbers, so a service sees one run.
    """

    def __init__(
        self,
        name: str,
        workdir: str | os.PathLike[str],
        *,
        begin: Callable[[str], str],
        log: Callable[[dict[str, float], int], Any],
        end: Callable[[], Any],
    ):
        """Begins nothing yet.

        Args:
          name: of the service.
          workdir: folder of the run, where its id there is kept; '' = it is not.
          begin: begins a run, or goes on with that of an id ('' = a new one), and returns its id; '' =
            a run of the caller, which is not ended here.
          log: sends numbers of a step.
          end: ends the run.
        """
        self._name, self._file = name, Path(os.fsdecode(workdir)) / KEPT if workdir else None
        self._begin, self._log, self._end = begin, log, end
        self._id: str | None = None  # before the first numbers

    def __call__(self, step: int, group: str, values: dict[str, Any]) -> None:
        """Sends the numbers of a group; see `Hook`."""
        if group == 'step' or not values:  # 'train' has those that are written
            return
        if self._id is None:
            kept = self._kept()
            if self._file is not None:  # before a run begins whose id could not be kept
                self._file.parent.mkdir(parents=True, exist_ok=True)
            self._id = self._begin(kept.get(self._name, ''))
            if self._file is not None and self._id:
                write_json(self._file, kept | {self._name: self._id})
        self._log({f'{group}/{name}': float(value) for name, value in values.items()}, step)

    def close(self) -> None:
        """Ends what it has begun."""
        if self._id:
            self._end()
        self._id = None

    def _kept(self) -> dict[str, str]:
        """Ids by service."""
        if self._file is None or not self._file.is_file():
            return {}
        kept = json_file.read(self._file)
        if not isinstance(kept, dict) or not all(isinstance(run, str) for run in kept.values()):
            raise UsageError(f'{self._file}: has no ids of runs; delete it for a new run there.')
        return kept


def wandb(workdir: str | os.PathLike[str] = '', **settings: Any) -> Tracker:
    """A hook that logs to Weights & Biases.

    Args:
      workdir: folder of the run, so that a run that goes on is the same one there.
      settings: those of `wandb.init`, such as `project` and `config`.

    Raises:
      UsageError: it is not installed.
    """
    service = _installed('wandb')

    def begin(kept: str) -> str:
        if service.run is not None:
            return ''
        run = service.init(**(dict(id=kept, resume='allow') if kept else {}) | settings)
        run.define_metric('*', step_metric='step')  # a run that goes on may repeat steps
        return run.id

    return Tracker(
        'wandb',
        workdir,
        begin=begin,
        log=lambda values, step: service.log(values | {'step': step}),
        end=service.finish,
    )


def mlflow(
    workdir: str | os.PathLike[str] = '', config: Mapping[str, Any] | None = None, **settings: Any
) -> Tracker:
    """A hook that logs to MLflow.

    Args:
      workdir: folder of the run, so that a run that goes on is the same one there.
      config: parameters of a new run, perhaps of sections.
      settings: those of `mlflow.start_run`, such as `run_name`.

    Raises:
      UsageError: it is not installed.
    """
    service = _installed('mlflow')

    def begin(kept: str) -> str:
        if service.active_run() is not None:
            return ''
        run = service.start_run(**(dict(run_id=kept) if kept else {}) | settings)
        if config and not kept:
            service.log_params(_flat(config))
        return run.info.run_id

    return Tracker(
        'mlflow',
        workdir,
        begin=begin,
        log=lambda values, step: service.log_metrics(values, step=step),
        end=service.end_run,
    )


TRACKERS = {'wandb': wandb, 'mlflow': mlflow}


def named(names: str, workdir: Path, config: Mapping[str, Any]) -> tuple[Hook, ...]:
    """The hooks of `--tracker=NAME[,NAME]` for a run, with their own default settings; '' = none.

    Raises:
      UsageError: there is no tracker of a name, or it is not installed.
    """
    found = []
    for name in filter(None, names.split(',')):
        if name not in TRACKERS:
            raise UsageError(
                f'--tracker={name}: {nearest(name, TRACKERS)}allowed are {", ".join(TRACKERS)}.'
            )
        found.append(TRACKERS[name](workdir, config=config))
    return tuple(found)


def _installed(name: str) -> Any:
    """The package of a service."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f'{name}: not installed; pip install {name}.') from error


def _flat(config: Mapping[str, Any], section: str = '') -> dict[str, Any]:
    """Fields of all sections, 'train.num_steps'."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = isinstance(value, Mapping)
        found |= _flat(value, f'{section}{name}.') if inner else {f'{section}{name}': value}
    return found
