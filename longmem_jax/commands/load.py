"""A trained model for one's own code: `model, params, tokenizer = longmem_jax.load(workdir)`."""

import operator
import os
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import jax

from longmem_jax.config import checks
from longmem_jax.config.saved import saved_config
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import require_type
from longmem_jax.experiment import Experiment
from longmem_jax.models.language_model import LanguageModel

ONE_DEVICE = dict(data=1, fsdp=1, tensor=1, memory=1)


class Trained(NamedTuple):
    """A model of a run.

    Attributes:
      model: as for evaluation; `commands.evaluate`, `generation.reader.Reader` and
        `evaluation.token_losses` show how it is read.
      params: its parameters.
      tokenizer: of the run.
    """

    model: LanguageModel
    params: Any
    tokenizer: Tokenizer


def load(workdir: str | bytes | os.PathLike[str], at: SupportsIndex | None = None) -> Trained:
    """The model of a run, on the first device, with plain kernels.

    `at` is the step of a checkpoint; None = the newest.

    Raises:
      UsageError: there is no run, or no checkpoint of it.
    """
    require_type('workdir', workdir, str | bytes | os.PathLike, 'the folder of a run')
    require_type('at', at, SupportsIndex | None, 'the step of a checkpoint')
    workdir = Path(os.fsdecode(workdir)).expanduser()
    config = saved_config(workdir)
    config.mesh = ONE_DEVICE
    config.model.kernels = 'plain'
    checks.require_runnable(config, 1)
    mesh = sharding.make_mesh(ONE_DEVICE, jax.devices()[:1])
    experiment = Experiment(config, workdir, mesh)
    params, _ = experiment.restore_parameters(None if at is None else operator.index(at))
    return Trained(experiment.evaluation_model, params, experiment.tokenizer)
