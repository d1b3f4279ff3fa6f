"""Training of SPALM, the whole model or the gate alone: a task of the runner."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from longmem_jax.data.lanes import Cursor
from longmem_jax.devices import hardware, sharding
from longmem_jax.devices.generators import compiler_options, step_key
from longmem_jax.experiment import Experiment
from longmem_jax.files import write_json
from longmem_jax.generation.reader import fresh_state
from longmem_jax.retrieval import gated
from longmem_jax.retrieval.gated import Gate, Scores
from longmem_jax.retrieval.spalm_keys import Keys
from longmem_jax.retrieval.spalm_lists import Lists
from longmem_jax.retrieval.spalm_text import Inputs, Text, stacked
from longmem_jax.segment import Aux, read_segments
from longmem_jax.training.job import Metrics, Plan, Step
from longmem_jax.training.optimizer import make_optimizer, parameter_path
from longmem_jax.training.step import all_finite, average_in, keep_finite
from longmem_jax.untrusted import tensor_file


class Trained(flax.struct.PyTreeNode):
    """What training changes: parameters of the model, None where it is frozen, and the gate."""

    params: Any
    spalm: Gate


class SpalmState(flax.struct.PyTreeNode):
    """The whole state of a run; a checkpoint holds this.

    Attributes:
      step: int32 scalar, steps taken.
      trained: what training changes.
      optimizer: optax state.
      memory: memories after the last segment; every leaf [lanes, ...].
      cursor: position of every lane in the text.
      key: the run's random key; folded with the step, never changed.
      skipped: int32 scalar, consecutive steps skipped because they were not finite.
    """

    step: jax.Array
    trained: Trained
    optimizer: Any
    memory: Any
    cursor: Cursor
    key: jax.Array
    skipped: jax.Array


@dataclasses.dataclass(frozen=True)
class About:
    """What a trained SPALM must be used with, and what it is.

    Attributes:
      keys: identity of the model of the keys.
      model: `config.model`.
      k: neighbours per token.
      frozen, learned_scale, start: as in `config.retrieval.spalm`.
    """

    keys: dict[str, Any]
    model: dict[str, Any]
    k: int
    frozen: bool
    learned_scale: bool
    start: str


def describe(experiment: Experiment, keys: Keys) -> About:
    """The settings from the config and from the model of the keys."""
    settings = experiment.config.retrieval.spalm
    return About(
        keys=keys.identity,
        model=json.loads(experiment.config.model.to_json()),
        k=settings.k,
        frozen=settings.frozen,
        learned_scale=settings.learned_scale,
        start=settings.start,
    )


class SpalmTask:
    """See `training.job.Job`. Documents are read endlessly, in a new order for every epoch.

    Attributes:
      plan: the schedule of the run.
      identity: what a checkpoint must match: models, datastore, lists, and how the text is read.
    """

    def __init__(
        self,
        experiment: Experiment,
        params: Any,
        keys: Keys,
        lists: Lists,
        split: str,
        folder: Path,
    ):
        """Compiles nothing yet.

        `keys` is the model of the keys, `lists` the neighbours of the text, `folder` for the
        result.
        """
        config = experiment.config
        settings, train = config.retrieval.spalm, config.train
        self._experiment, self._settings, self._folder = experiment, settings, folder
        self._params, self._about = params, describe(experiment, keys)
        self._text = Text(
            experiment.corpus(split),
            lists,
            num_lanes=train.num_lanes,
            length=train.segment_length,
            seed=config.data.seed,
        )
        num_steps = settings.num_steps or train.num_steps
        if settings.frozen:
            self._optimizer = optax.adam(settings.learning_rate)
        else:
            self._optimizer = make_optimizer(
                config.optimizer,
                num_steps,
                jax.eval_shape(self._first_trained, params, jnp.ones(())),
            )
        self.identity = {
            'model': dataclasses.asdict(self._about),
            'datastore': keys.store.digest,
            'lists': lists.folder.name,
            'split': split,
            'config.train.num_lanes': train.num_lanes,
            'config.train.segment_length': train.segment_length,
        }
        self.plan = Plan(
            num_steps=num_steps,
            log_every=train.log_every,
            evaluate_every=0,
            max_bad_steps=train.max_bad_steps,
            remedy='lower config.retrieval.spalm.learning_rate'
            if settings.frozen
            else 'lower config.optimizer.learning_rate, add warm-up or clipping',
        )

    @property
    def abstract_state(self) -> SpalmState:
        """Shapes, dtypes and shardings of the state."""
        abstract = jax.eval_shape(self._make_state, self._params, jnp.ones(()))
        everywhere = sharding.replicated(self._experiment.mesh)
        shardings = jax.tree.map(lambda _: everywhere, abstract)
        shardings = shardings.replace(
            memory=sharding.memory_shardings(self._experiment.mesh, abstract.memory)
        )
        return sharding.abstract(abstract, shardings)

    def _first_trained(self, params: Any, scale: jax.Array) -> Trained:
        """The parameters at the first step, and a gate of one half for every token."""
        gate = Gate(
            weights=jnp.zeros((self._experiment.config.model.d_model,), jnp.float32),
            log_scale=jnp.log(scale) if self._settings.learned_scale else None,
        )
        # A step donates its state, and other passes may still need the original parameters.
        params = None if self._settings.frozen else jax.tree.map(jnp.copy, params)
        return Trained(params, gate)

    def _make_state(self, params: Any, scale: jax.Array) -> SpalmState:
        """The state of step 0, where the scale begins with `scale`."""
        experiment = self._experiment
        lanes = experiment.config.train.num_lanes
        trained = self._first_trained(params, scale)
        zeros = jnp.zeros((lanes,), jnp.int32)
        return SpalmState(
            step=jnp.zeros((), jnp.int32),
            trained=trained,
            optimizer=self._optimizer.init(trained),
            memory=fresh_state(experiment.model, params, lanes),
            cursor=Cursor(zeros, zeros),
            key=jax.random.key(experiment.config.train.seed),
            skipped=jnp.zeros((), jnp.int32),
        )

    def first_state(self) -> SpalmState:
        """A gate of one half; the scale makes output vectors as long as hidden vectors are now."""
        scale = jnp.ones(())
        if self._settings.learned_scale:
            lanes = self._experiment.config.train.num_lanes
            zeros = jnp.zeros((lanes,), jnp.int32)
            inputs, _, _ = next(self._text.segments(Cursor(zeros, zeros)))
            model = self._experiment.model
            memory = fresh_state(model, self._params, lanes)
            lengths = jax.jit(gated.mean_lengths, static_argnums=0)
            hidden, output = lengths(model, self._params, memory, inputs)
            scale = hidden / output
        placed = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        return jax.jit(self._make_state, out_shardings=placed)(self._params, scale)

    def begin(self, step: int) -> None:
        """Does nothing; see `finish`."""

    def compile(self) -> Step:
        """The step; XLA compiles it on the first call."""
        options = compiler_options(self._experiment.config.train.prng, hardware.platform())
        update = jax.jit(self._update, donate_argnums=0, compiler_options=options)
        params = self._params if self._settings.frozen else None

        def call(state: SpalmState, inputs: Inputs, cursor: Cursor) -> tuple[SpalmState, Metrics]:
            return update(state, params, inputs, cursor)

        return Step(call)

    def _loss(
        self, trained: Trained, params: Any, state: SpalmState, inputs: Inputs
    ) -> tuple[jax.Array, Any]:
        """The objective, and memories, metrics and statistics; see `training.step.read_batch`."""
        model, train = self._experiment.model, self._experiment.config.train
        params = params if trained.params is None else trained.params

        def read(memory: Any, inputs: Inputs, key: jax.Array) -> tuple[Any, tuple[Scores, Aux]]:
            draws = None if self._settings.frozen else key
            return gated.read(model, params, trained.spalm, memory, inputs, draws)

        key = step_key(jax.random.fold_in(state.key, state.step), train.prng)
        memory, (scores, aux) = read_segments(read, state.memory, inputs, key, remat=train.remat)
        count = jnp.maximum(inputs.counted.sum(), 1)

        def mean(values: jax.Array) -> jax.Array:
            return (values * inputs.counted).sum() / count

        loss = mean(scores.nll)
        objective = loss + train.z_loss * mean(jnp.square(scores.log_z))
        for name, values in aux.losses.items():
            objective = objective + train.loss_weights[name] * values.mean()
        metrics = {
            'loss': loss,
            'loss_alone': mean(scores.alone),
            'gate': mean(scores.open),
            'neighbours': mean((inputs.neighbours >= 0).sum(axis=-1)),
        }
        if trained.spalm.log_scale is not None:
            metrics['scale'] = jnp.exp(trained.spalm.log_scale)
        return objective, (memory, metrics, aux.statistics)

    def _update(
        self, state: SpalmState, params: Any, inputs: Inputs, cursor: Cursor
    ) -> tuple[SpalmState, Metrics]:
        """One step; `params` of a frozen model."""
        value_and_grad = jax.value_and_grad(self._loss, has_aux=True)
        (objective, aux), gradient = value_and_grad(state.trained, params, state, inputs)
        memory, metrics, statistics = aux
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(objective) & jnp.isfinite(norm)
        updates, optimizer = self._optimizer.update(gradient, state.optimizer, state.trained)
        trained = optax.apply_updates(state.trained, updates)
        if trained.params is not None:
            trained = trained.replace(params=average_in(trained.params, statistics))
        finite &= all_finite(trained, optimizer, memory)
        trained, optimizer, memory = keep_finite(
            finite,
            (trained, optimizer, jax.lax.stop_gradient(memory)),
            (state.trained, state.optimizer, state.memory),
        )
        skipped = jnp.where(finite, 0, state.skipped + 1).astype(jnp.int32)
        state = state.replace(
            step=state.step + 1,
            trained=trained,
            optimizer=optimizer,
            memory=memory,
            cursor=cursor,
            skipped=skipped,
        )
        return state, metrics | {'grad_norm': norm, 'skipped': skipped}

    def batches(self, state: SpalmState) -> Iterator[tuple[Inputs, Cursor]]:
        """Endless batches of the text, from the cursor of the state."""
        count, waiting = self._experiment.config.train.segments_per_step, []
        mesh = self._experiment.mesh
        for inputs, _, cursor in self._text.segments(state.cursor):
            waiting.append(inputs)
            if len(waiting) == count:
                placed = jax.device_put(stacked(waiting), sharding.lanes_sharding(mesh, 1))
                yield placed, jax.device_put(cursor, sharding.replicated(mesh))
                waiting = []

    def in_short(self, metrics: dict[str, float]) -> str:
        """Loss with and without neighbours, and the mean gate."""
        return (
            f'loss {metrics["loss"]:.4f} nats/token, without neighbours '
            f'{metrics["loss_alone"]:.4f}, gate {metrics["gate"]:.3f}'
        )

    def evaluate(self, state: SpalmState, step: int) -> None:
        """Does nothing; `--mode=evaluate` scores SPALM."""

    def finish(self, state: SpalmState, step: int) -> None:
        """Writes the gate, and the parameters if they were trained."""
        gate = state.trained.spalm
        arrays = {'gate': gate.weights}
        if gate.log_scale is not None:
            arrays['log_scale'] = gate.log_scale
        if state.trained.params is not None:
            for path, leaf in jax.tree.leaves_with_path(state.trained.params):
                arrays['params/' + parameter_path(path)] = leaf
        tensor_file.write(self._folder / 'parameters.safetensors', arrays, {})
        write_json(self._folder / 'about.json', dataclasses.asdict(self._about))
