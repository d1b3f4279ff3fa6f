"""Services that get the numbers of a run as well: Weights & Biases and MLflow, if they are installed.

`--tracker=wandb`, or as a hook: `longmem_jax.train(..., hooks=[trackers.wandb(project='long')])`. Names
are those of the events: 'train/loss', 'validation/bits_per_byte'.
"""

import importlib
from collections.abc import Callable
from typing import Any

from longmem_jax.errors import UsageError, nearest

# Called with step, group and numbers whenever a run writes some; 'checkpoint' has none.
Hook = Callable[[int, str, dict[str, Any]], Any]


def wandb(**settings: Any) -> Hook:
    """A hook that logs to Weights & Biases; `settings` are those of `wandb.init`, such as `project`.

    Raises:
      UsageError: it is not installed.
    """
    service = _installed('wandb')
    if service.run is None:
        service.init(**settings)

    def hook(step: int, group: str, values: dict[str, Any]) -> None:
        service.log(_named(group, values) | {'step': step})

    return hook


def mlflow(**settings: Any) -> Hook:
    """A hook that logs to MLflow; `settings` are those of `mlflow.start_run`, such as `run_name`.

    Raises:
      UsageError: it is not installed.
    """
    service = _installed('mlflow')
    if service.active_run() is None:
        service.start_run(**settings)

    def hook(step: int, group: str, values: dict[str, Any]) -> None:
        service.log_metrics(_named(group, values), step=step)

    return hook


TRACKERS = {'wandb': wandb, 'mlflow': mlflow}


def named(names: str) -> tuple[Hook, ...]:
    """The hooks of `--tracker=NAME[,NAME]`, with their own default settings; '' = none.

    Raises:
      UsageError: there is no tracker of a name, or it is not installed.
    """
    found = []
    for name in filter(None, names.split(',')):
        if name not in TRACKERS:
            raise UsageError(
                f'--tracker={name}: {nearest(name, TRACKERS)}allowed are {", ".join(TRACKERS)}.'
            )
        found.append(TRACKERS[name]())
    return tuple(found)


def _installed(name: str) -> Any:
    """The package of a service."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f'{name}: not installed; pip install {name}.') from error


def _named(group: str, values: dict[str, Any]) -> dict[str, float]:
    return {f'{group}/{name}': float(value) for name, value in values.items()}
