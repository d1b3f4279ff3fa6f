"""A trained model for one's own code: `model, params, tokenizer = longmem_jax.load(workdir)`."""

import operator
import os
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import jax

from longmem_jax.config import checks
from longmem_jax.config.saved import saved_config
from longmem_jax.config.sections import in_use, sections
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, require_type
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

    The losses of a text, one per token, with the memory carried through all of it::

        from longmem_jax.evaluation.token_losses import token_losses
        from longmem_jax.generation.reader import fresh_state

        model, params, tokenizer = longmem_jax.load('RUN')
        tokens = tokenizer.encode(b'import os')
        state = fresh_state(model, params, batch_size=1)
        for nats in token_losses(model, params, state, tokens[:1], tokens[1:]):
            ...  # float32 [n], of the next n tokens

    `at` is the step of a checkpoint; None = that which `evaluate` reads: the newest, or the best where
    `config.checkpoint.best` is set.

    Raises:
      UsageError: there is no run, or no checkpoint of it; or a subject trains it in a way of its own,
        such as an agent.
    """
    require_type('workdir', workdir, str | bytes | os.PathLike, 'the folder of a run')
    require_type('at', at, SupportsIndex | None, 'the step of a checkpoint')
    workdir = Path(os.fsdecode(workdir)).expanduser()
    config = saved_config(workdir)
    config.mesh = ONE_DEVICE
    config.model.kernels = 'plain'
    checks.require_runnable(config, 1)
    own = [name for name, each in sections().items() if each.lower and in_use(config, name)]
    if own:
        raise UsageError(
            f'{workdir}: a run of config.{own[0]}, whose checkpoints are read by its own modes alone; '
            'use longmem_jax.evaluate or longmem_jax.run_mode.'
        )
    mesh = sharding.make_mesh(ONE_DEVICE, jax.devices()[:1])
    experiment = Experiment(config, workdir, mesh)
    params, _ = experiment.restore_parameters(None if at is None else operator.index(at))
    return Trained(experiment.evaluation_model, params, experiment.tokenizer)
