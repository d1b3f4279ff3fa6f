"""The model by whose vectors SPALM searches: another trained one, or the one that SPALM starts from."""

import dataclasses
from pathlib import Path
from typing import Any

from longmem_jax.config.saved import saved_config
from longmem_jax.data import content
from longmem_jax.devices import processes
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.index import Index, open_datastore


@dataclasses.dataclass(frozen=True)
class Keys:
    """The model of the keys, and its datastore.

    Attributes:
      experiment: how it reads; its data and retrieval settings are those of the SPALM run.
      params, step: its parameters, which never change, and the step they were saved at.
      store, index: the datastore and its index.
    """

    experiment: Experiment
    params: Any
    step: int
    store: Datastore
    index: Index

    @property
    def identity(self) -> dict[str, Any]:
        """What a datastore and its model have in common."""
        return identity(self.experiment, self.params)


def open_keys(experiment: Experiment) -> Keys:
    """Opens the run that `config.retrieval.spalm.keys_from` names, or this one, and its datastore.

    Raises:
      UsageError: there is no such run, it has another vocabulary, or the datastore was not built by it
        or is not that of another process.
    """
    settings = experiment.config.retrieval
    of_keys = experiment
    if settings.spalm.keys_from:
        folder = Path(settings.spalm.keys_from).expanduser()
        if not (folder / 'config.json').exists():
            raise UsageError(
                f'config.retrieval.spalm.keys_from = {settings.spalm.keys_from}: there is no '
                'config.json; give the workdir of a trained run.'
            )
        config = saved_config(folder)
        config.data, config.retrieval = experiment.config.data, settings
        of_keys = Experiment(config, folder, experiment.mesh)
        if of_keys.tokenizer.fingerprint() != experiment.tokenizer.fingerprint():
            raise UsageError(
                f'config.retrieval.spalm.keys_from = {settings.spalm.keys_from}: that run has another '
                'vocabulary; set config.data.tokenizer to its tokenizer (a learned one is in its '
                'workdir).'
            )
    params, step = of_keys.restore_parameters()
    index, store = open_datastore(experiment, identity(of_keys, params), settings.spalm.k)
    processes.require_same({'datastore': store.digest, 'step': step}, 'keys', content.SAME_FILES)
    return Keys(of_keys, params, step, store, index)
