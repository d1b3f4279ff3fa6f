"""Training of SPALM's gate, and of the model with it where it is not frozen: a task of the runner."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from safetensors.flax import save_file

from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment
from longmem_jax.files import whole_file
from longmem_jax.retrieval.datastore import Datastore, identity, read_manifest
from longmem_jax.retrieval.gated import Inputs, inputs_of, losses, retrieved
from longmem_jax.retrieval.index import Index
from longmem_jax.retrieval.reading import SEGMENTS, Position, Reader
from longmem_jax.training.optimizer import parameter_path
from longmem_jax.training.step import keep_finite
from longmem_jax.training.task import Metrics, Plan, Step


@flax.struct.dataclass
class SpalmState:
    """The whole state of a run; a checkpoint holds this.

    Attributes:
      step: int32 scalar, steps taken, one per segment of all lanes.
      trained: 'gate' float32 [d_model], and 'params' where the model is not frozen.
      optimizer: optax state.
      memory: memories of the trained model after the last segment; every leaf [lanes, ...].
      skipped: int32 scalar, consecutive steps skipped because they were not finite.
      position: of the pass that looks up neighbours, before the current part.
      number: int32 scalar, segments of the current part already trained on.
    """

    step: jax.Array
    trained: dict[str, Any]
    optimizer: Any
    memory: Any
    skipped: jax.Array
    position: Position | None
    number: jax.Array


class SpalmTask:
    """See `training.task.Task`.

    Attributes:
      plan: the schedule of the run.
      identity: what a checkpoint must match: model, datastore, and how the text is read.
    """

    def __init__(
        self,
        experiment: Experiment,
        params: Any,
        store: Datastore,
        index: Index,
        split: str,
        folder: Path,
    ):
        """Compiles nothing yet.

        Args:
          experiment: a trained experiment.
          params: its parameters.
          store, index: the datastore and its index.
          split: the text to train on.
          folder: for the result.
        """
        config, settings = experiment.config, experiment.config.retrieval.spalm
        self._experiment, self._settings, self._folder = experiment, settings, folder
        self._params, self._store, self._index = params, store, index
        self._reader = Reader(experiment, params, split)
        self._optimizer = optax.adam(settings.learning_rate)
        self._about = identity(experiment, params) | {
            'k': settings.k,
            'frozen': settings.frozen,
        }
        self.identity = {
            'model': self._about,
            'datastore': _fingerprint(store.folder),
            'split': split,
            'config.evaluate.num_lanes': config.evaluate.num_lanes,
            'config.evaluate.segment_length': config.evaluate.segment_length,
        }
        self.plan = Plan(
            num_steps=settings.num_steps,
            log_every=config.train.log_every,
            evaluate_every=0,
            max_bad_steps=config.train.max_bad_steps,
            remedy='lower config.retrieval.spalm.learning_rate',
        )

    @property
    def abstract_state(self) -> SpalmState:
        """Shapes, dtypes and shardings of the state."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self.first_state(),
        )

    def first_state(self) -> SpalmState:
        """A gate of one half for every token, at the beginning of the text."""
        mesh = self._experiment.mesh
        trained = {'gate': jnp.zeros((self._experiment.config.model.d_model,), jnp.float32)}
        if not self._settings.frozen:
            # A step donates its state, and the reader still needs the original parameters.
            trained['params'] = jax.tree.map(jnp.copy, self._params)
        state = SpalmState(
            step=jnp.zeros((), jnp.int32),
            trained=trained,
            optimizer=self._optimizer.init(trained),
            memory=jax.tree.map(jnp.zeros_like, self._reader.memory),
            skipped=jnp.zeros((), jnp.int32),
            position=self._reader.position(),
            number=jnp.zeros((), jnp.int32),
        )
        everywhere = sharding.replicated(mesh)
        return jax.tree.map(
            lambda leaf: (
                leaf
                if len(leaf.sharding.device_set) == mesh.size
                else jax.device_put(leaf, everywhere)
            ),
            state,
        )

    def begin(self, step: int) -> None:
        """Does nothing; see `finish`."""

    def compile(self) -> Step:
        """The step; XLA compiles it on the first call."""
        update = jax.jit(self._update, donate_argnums=0)

        def call(
            state: SpalmState, inputs: Inputs, position: Position, number: jax.Array
        ) -> tuple[SpalmState, Metrics]:
            # The position is the same for all segments of a part, so it is not copied for each.
            state, metrics = update(state.replace(position=None), self._params, inputs)
            return state.replace(position=position, number=number), metrics

        return Step(call)

    def _update(self, state: SpalmState, params: Any, inputs: Inputs) -> tuple[SpalmState, Metrics]:
        """Adam's step on one segment of every lane, in nats per token."""
        model = self._experiment.evaluation_model
        count = jnp.maximum(inputs.counted.sum(), 1)

        def loss(trained):
            model_params = trained.get('params', params)
            gated, alone, memory = losses(
                model, model_params, trained['gate'], state.memory, inputs
            )
            return gated / count, (alone / count, memory)

        (value, (alone, memory)), gradient = jax.value_and_grad(loss, has_aux=True)(state.trained)
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        updates, optimizer = self._optimizer.update(gradient, state.optimizer, state.trained)
        trained, optimizer, memory = keep_finite(
            finite,
            (optax.apply_updates(state.trained, updates), optimizer, memory),
            (state.trained, state.optimizer, state.memory),
        )
        skipped = jnp.where(finite, 0, state.skipped + 1).astype(jnp.int32)
        state = state.replace(
            step=state.step + 1,
            trained=trained,
            optimizer=optimizer,
            memory=memory,
            skipped=skipped,
        )
        return state, {'loss': value, 'loss_alone': alone, 'grad_norm': norm, 'skipped': skipped}

    def batches(self, state: SpalmState) -> Iterator[tuple[Inputs, Position, jax.Array]]:
        """The segments of the text, once, with neighbours from other documents."""
        self._reader.go_to(state.position)
        return self._segments(state.position, int(state.number))

    def _segments(
        self, position: Position, done: int
    ) -> Iterator[tuple[Inputs, Position, jax.Array]]:
        for part in self._reader.parts():
            neighbours = retrieved(part, self._store, self._index, self._settings.k, True)
            for segment in range(done, SEGMENTS):
                yield (
                    inputs_of(part, neighbours, segment),
                    position,
                    jnp.asarray(segment + 1, jnp.int32),
                )
            position, done = self._reader.position(), 0

    def in_short(self, metrics: dict[str, float]) -> str:
        """Loss with and without the gate."""
        return f'loss {metrics["loss"]:.4f} nats/token, model alone {metrics["loss_alone"]:.4f}'

    def evaluate(self, state: SpalmState, step: int) -> None:
        """Does nothing; `--mode=evaluate` scores the gate."""

    def finish(self, state: SpalmState, step: int) -> None:
        """Writes the gate, and the parameters if they were trained."""
        flat, _ = jax.tree_util.tree_flatten_with_path(state.trained)
        with whole_file(self._folder / 'parameters.safetensors') as partial:
            save_file({parameter_path(path): jnp.asarray(leaf) for path, leaf in flat}, partial)
        (self._folder / 'about.json').write_text(json.dumps(self._about, indent=1) + '\n')


def _fingerprint(folder: Path) -> str:
    """A fingerprint of the files of a datastore, from the checksums in its manifest."""
    shards = json.dumps(read_manifest(folder)['shards'], sort_keys=True)
    return hashlib.sha256(shards.encode()).hexdigest()[:16]
