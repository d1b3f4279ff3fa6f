"""Trains a configuration with several seeds in one process, which compiles once; saves no parameters.

The programs of `experiments` that need many short trainings use it. `longmem_jax.main` is the way to
train a model that is kept.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax.commands.load import ONE_DEVICE
from longmem_jax.config import checks
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.training import step as train_step
from longmem_jax.training.warm_start import warm_start

LOOKED = 25  # steps from one look at them to the next


def on_one_device(config: Any, workdir: Path | None = None) -> Experiment:
    """The experiment of a configuration on the first device."""
    return Experiment(config, workdir, sharding.make_mesh(ONE_DEVICE, jax.devices()[:1]))


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training that has ended.

    Attributes:
      experiment: with the seed of the run, for its data.
      params: parameters.
      steps: taken.
      decided: it ended early, since its answers were right.
      lines: mean metrics of every `LOOKED` steps.
    """

    experiment: Experiment
    params: Any
    steps: int
    decided: bool
    lines: list[dict[str, float]]


class Trainer:
    """Trains one configuration with any seed on one device.

    Attributes:
      shared: the experiment of all seeds.
    """

    def __init__(self, config: Any):
        """Compiles nothing before it is needed.

        Raises:
          UsageError: problems of the configuration.
        """
        checks.require_runnable(config, 1)
        self.shared = on_one_device(config)
        self._evaluators: dict[int, Evaluator] = {}  # by lanes

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """Of the evaluation model."""
        return Evaluator(self.shared.evaluation_model, self.shared.mesh, self.shared.config)

    def evaluator_of(self, lanes: int) -> Evaluator:
        """The same with another number of lanes, compiled once for each."""
        if lanes not in self._evaluators:
            config = self.shared.config.copy_and_resolve_references()
            config.evaluate.num_lanes = lanes
            model, mesh = self.shared.evaluation_model, self.shared.mesh
            self._evaluators[lanes] = Evaluator(model, mesh, config)
        return self._evaluators[lanes]

    @functools.cached_property
    def _step(self) -> Any:
        return lower_step(self.shared).compile()

    @functools.cached_property
    def _initial(self) -> Any:
        shared = self.shared

        def initial(seed: jax.Array) -> train_step.TrainState:
            num_lanes = shared.config.train.num_lanes
            return train_step.make_initial_state(shared.model, shared.optimizer, num_lanes, seed)()

        return jax.jit(initial, out_shardings=shared.state_shardings)

    def seeded(self, seed: int) -> Experiment:
        """The experiment with the parameters and the data of a seed."""
        config = self.shared.config.copy_and_resolve_references()
        config.data.seed = config.train.seed = seed
        return dataclasses.replace(self.shared, config=config)

    def train(
        self,
        seed: int,
        enough: float | None,
        recent: int,
        begin: Any = None,
        watch: Callable[[int, Any], None] = lambda step, params: None,
    ) -> Trained:
        """Trains until it is decided, or for all steps of the config.

        Args:
          seed: of the parameters and of the data.
          enough: share of right answers that ends the training; None = never.
          recent: steps whose answers must be right for that.
          begin: trained parameters to begin with, where the names are the same; None = none.
          watch: called with step and parameters before the first step and every `LOOKED` steps.
        """
        experiment = self.seeded(seed)
        settings = experiment.config.train
        source = lanes.batches(
            experiment.corpus('train'),
            lanes=range(settings.num_lanes),
            num_lanes=settings.num_lanes,
            segment_length=settings.segment_length,
            segments_per_batch=settings.segments_per_step,
            seed=seed,
            shuffle=True,
            num_epochs=None,
            cursor=None,
        )
        state, waiting, lines = self._initial(seed), [], []
        if begin is not None:
            state = state.replace(params=warm_start(state.params, begin, 'begin', print))
        watch(0, state.params)
        shares = collections.deque(maxlen=recent // LOOKED)
        for step in range(1, settings.num_steps + 1):
            state, metrics = self._step(state, *to_devices(experiment, *next(source)))
            waiting.append({name: metrics[name] for name in ('loss', 'accuracy')})
            if step % LOOKED and step < settings.num_steps:
                continue
            means = jax.tree.map(lambda *values: float(np.mean(values)), *jax.device_get(waiting))
            waiting = []
            lines.append({'step': step, **means, **_numbers(metrics)})
            watch(step, state.params)
            if step % 100 == 0:
                print(lines[-1], flush=True)
            shares.append(means['accuracy'])
            if enough is not None and len(shares) == shares.maxlen and np.mean(shares) >= enough:
                return Trained(experiment, state.params, step, True, lines)
        return Trained(experiment, state.params, settings.num_steps, False, lines)


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    """The metrics of the memory that are single numbers."""
    return {
        name.removeprefix('memory/'): round(float(value), 3)
        for name, value in metrics.items()
        if name.startswith('memory/') and not np.ndim(value)
    }
