"""Everything a mode needs, built from a config: mesh, tokenizer, corpora, models, parameters."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from longmem_jax.config import checks
from longmem_jax.data import content, conventions, lanes, load
from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import hardware, processes, sharding
from longmem_jax.devices.generators import compiler_options
from longmem_jax.errors import UsageError
from longmem_jax.models.kinds import make_model
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.reporting.trackers import Hook
from longmem_jax.training import checkpoint, identity, storage
from longmem_jax.training import step as train_step
from longmem_jax.training.checkpoint import FORMAT, Checkpointer
from longmem_jax.training.identity import GoingOn, model_of, settings_of
from longmem_jax.training.optimizer import make_optimizer, make_schedule, parameter_path


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration ready to run; everything is built when it is first used.

    Attributes:
      config: the whole configuration.
      workdir: folder of the run; None = only compiled, nothing is stored.
      mesh: devices.
      hooks: called with what a training writes; see `reporting.trackers.Hook`.
      given: an optimizer of optax, with `config.optimizer.name` 'given'.
    """

    config: Any
    workdir: Path
    mesh: Mesh
    hooks: tuple[Hook, ...] = ()
    given: Any = None

    def corpus(self, split: str) -> AnyCorpus:
        """The tokenised documents of a split.

        Raises:
          UsageError: there are none, or other ones in another process; all must ask for them.
        """
        corpus = load.load(self.config.data, split, self.tokenizer)
        if not processes.alone():
            facts: dict[str, Any] = {'tokenizer': self.tokenizer.fingerprint()}
            facts |= {f'split {split}': content.compared(self.config.data, corpus, split)}
            processes.require_same(facts, 'data', content.SAME_FILES)
        return corpus

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; learnt from the training split if the config names no file.

        Raises:
          UsageError: its vocabulary is larger than the model's.
        """
        # Process 0 learns a vocabulary, the others read its file.
        tokenizer = processes.one_first(lambda: load.make_tokenizer(self.config.data, self.workdir))
        size, needed = self.config.model.vocab_size, tokenizer.vocab_size
        if needed > size:
            raise UsageError(
                f'config.model.vocab_size = {size}: the tokenizer has {needed} tokens; set '
                f'--config.model.vocab_size={needed} or more, or use another vocabulary.'
            )
        return tokenizer

    def conventions(self) -> conventions.Conventions:
        """How texts begin and end for the newest parameters; see `conventions.of_run`."""
        trained = bool(self.checkpoint_steps())
        return conventions.of_run(self.tokenizer, self.config.data, trained)

    @functools.cached_property
    def model(self) -> LanguageModel:
        """The model for training.

        Raises:
          UsageError: its kernels are not for these devices.
        """
        _require_kernels(self.config.model, self.mesh)
        return make_model(self.config.model, self.config.train.segment_length)

    @functools.cached_property
    def evaluation_model(self) -> LanguageModel:
        """The model for evaluation: the same parameters, maybe other memory lengths.

        Raises:
          UsageError: an override of `config.evaluate.model` changes parameters.
        """
        settings = self.config.evaluate
        evaluated = checks.evaluation_model(self.config)
        _require_kernels(evaluated, self.mesh)
        model = make_model(evaluated, settings.segment_length)
        if settings.model:
            changed = _changed(_shapes(self.model), _shapes(model))
            if changed:
                raise UsageError(
                    f'config.evaluate.model = {settings.model.to_dict()}: {changed}; only fields '
                    'without parameters can differ in evaluation, such as memory lengths. Set '
                    'config.model instead, and train; config.train.start_from keeps what a run '
                    'has learned.'
                )
        return model

    @functools.cached_property
    def schedule(self) -> Any:
        """Learning rate by optimizer update; None where a given optimizer has its own."""
        if self.given is not None:
            return None
        return make_schedule(self.config.optimizer, self.config.train.num_steps)

    @functools.cached_property
    def optimizer(self) -> Any:
        """The optax transformation."""
        settings, steps = self.config.optimizer, self.config.train.num_steps
        return make_optimizer(settings, steps, _shapes(self.model), self.given)

    @functools.cached_property
    def make_state(self) -> Callable[[], train_step.TrainState]:
        """A function that makes the `TrainState` of step 0."""
        train = self.config.train
        return train_step.make_initial_state(
            self.model, self.optimizer, train.num_lanes, train.seed, average=bool(train.ema_decay)
        )

    @functools.cached_property
    def abstract_state(self) -> train_step.TrainState:
        """Shapes, dtypes and shardings of the train state."""
        abstract = jax.eval_shape(self.make_state)
        shardings = train_step.state_shardings(self.mesh, self.model, abstract)
        return sharding.abstract(abstract, shardings)

    @functools.cached_property
    def state_shardings(self) -> train_step.TrainState:
        """The sharding of every leaf of the train state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    def checkpointer(
        self, report: Callable[[str], None], going_on: GoingOn | None = None
    ) -> Checkpointer:
        """The checkpoints of the workdir."""
        same = {
            'format': FORMAT,
            'config.model': model_of(self.config),
            'tokenizer': self.tokenizer.fingerprint(),
        }
        return checkpoint.of_run(self.workdir, self.config.checkpoint, same, report, going_on)

    def other_checkpointer(
        self,
        identity: dict[str, Any],
        report: Callable[[str], None],
        *,
        writes: bool = False,
        **sections: Any,
    ) -> Checkpointer:
        """The same for a learner or an agent; `identity` is what its checkpoints must match, `sections`
        as in `settings_of`.
        """
        going_on = GoingOn(settings=settings_of(self.config, **sections)) if writes else None
        return checkpoint.of_run(self.workdir, self.config.checkpoint, identity, report, going_on)

    def going_on(self, corpus: AnyCorpus | None = None) -> GoingOn:
        """What training compares with a checkpoint; `corpus` is the training split, None = none."""
        config = self.config
        return GoingOn(
            same={
                'config.train.num_lanes': config.train.num_lanes,
                'config.optimizer.name': config.optimizer.name,
            },
            data={} if corpus is None else content.describe(config.data, corpus),
            accept_other_data=config.checkpoint.accept_other_data,
            settings=settings_of(config),
        )

    def checkpoint_steps(self) -> list[int]:
        """Steps of the checkpoints in the workdir, oldest first; makes no folder where there is none."""
        return storage.whole_steps(self.workdir / 'checkpoints')

    def best_step(self) -> int:
        """The step of the best checkpoint of the workdir.

        Raises:
          UsageError: no evaluation has said which that is.
        """
        step = identity.about(self.workdir / 'checkpoints').get(identity.BEST)
        if step is None:
            raise UsageError(
                f'--workdir={self.workdir}: config.checkpoint.best = {self.config.checkpoint.best!r}, '
                'and no evaluation has said yet which checkpoint is the best; train on, or read the '
                'newest with --config.checkpoint.best= (nothing after it).'
            )
        return step

    def restore_parameters(self, at: int | None = None) -> tuple[Any, int]:
        """Parameters of the newest checkpoint of the workdir, or of that of step `at`, and its step.

        With `config.checkpoint.best` the best one counts in place of the newest, unless
        `config.checkpoint.at` names one. With `config.train.ema_decay` the parameters are the
        averages; with 0 those that were trained.

        Raises:
          UsageError: there is no checkpoint, no evaluation that says which is the best, or it is of
            another model.
        """
        if not self.checkpoint_steps():  # before a vocabulary is learned for it
            raise UsageError(f'--workdir={self.workdir}: no checkpoint there; train first.')
        if at is None and self.config.checkpoint.best and not self.config.checkpoint.at:
            at = self.best_step()
        saver = self.checkpointer(functools.partial(print, file=sys.stderr))
        saver.require_format()  # before the model is made, for which an old config lacks fields
        name = 'average' if self.config.train.ema_decay else 'params'
        # Not those of `abstract_state`, which need the optimizer.
        boxed = abstract_parameters(self.model)
        places = sharding.parameter_shardings(self.mesh, boxed)
        step_number = jax.ShapeDtypeStruct((), np.int32, sharding=sharding.replicated(self.mesh))
        abstract = {name: sharding.abstract(unbox(boxed), places), 'step': step_number}
        state, step = checkpoint.newest(saver, abstract, at)
        return state[name], step


def _shapes(model: LanguageModel) -> Any:
    """Its parameters, abstract."""
    return unbox(abstract_parameters(model))


def _require_kernels(model: Any, mesh: Mesh) -> None:
    """Raises `UsageError` if `config.model.kernels` are not for the devices of a mesh."""
    platform = mesh.devices.flat[0].platform
    if model.kernels == 'fused' and platform not in ('tpu', 'gpu'):
        raise UsageError(
            f"config.model.kernels = 'fused': is for TPUs and NVIDIA GPUs, and these devices are of the "
            f'kind {platform}; set --config.model.kernels=plain, whose numbers are the same up to '
            'rounding.'
        )


def _changed(trained: Any, evaluated: Any) -> str:
    """The first parameter that is not of the same name and shape in both; '' where all are."""
    sizes = [
        {parameter_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}
        for params in (trained, evaluated)
    ]
    for path in sorted({**sizes[0], **sizes[1]}):
        before, after = (sides.get(path, 'not there') for sides in sizes)
        if before != after:
            return f'parameter {path} is {before} in training and {after} in evaluation'
    return ''


def _abstract_batch(experiment: Experiment) -> tuple[lanes.Batch, lanes.Cursor]:
    """Shapes of a batch and a cursor, for compiling before any data is read."""
    train = experiment.config.train
    shape = (train.segments_per_step, train.num_lanes)

    def array(shape: tuple[int, ...], dtype: DTypeLike, axis: int) -> jax.ShapeDtypeStruct:
        by_lanes = sharding.lanes_sharding(experiment.mesh, axis)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=by_lanes)

    tokens = array((*shape, train.segment_length), np.int32, 1)
    position = array((train.num_lanes,), np.int32, 0)
    batch = lanes.Batch(
        tokens=tokens,
        targets=tokens,
        valid=array((*shape, train.segment_length), np.bool_, 1),
        scored=array((*shape, train.segment_length), np.uint8, 1),
        start=array((*shape, train.segment_length) if train.packed else shape, np.bool_, 1),
        num_bytes=array(shape, np.float32, 1),
    )
    return batch, lanes.Cursor(document=position, offset=position)


def lower_step(experiment: Experiment, platform: str | None = None) -> jax.stages.Lowered:
    """The training step, lowered for the shapes of the config; call `.compile()` to run it.

    `platform`: such as 'cuda', if it is not to be run here.
    """
    step = train_step.make_train_step(
        experiment.model, experiment.optimizer, experiment.schedule, experiment.config
    )
    # Memories ask for the mesh, to keep to the lanes and rows of their own device.
    with jax.set_mesh(experiment.mesh):
        jitted = jax.jit(
            step,
            out_shardings=(experiment.state_shardings, sharding.replicated(experiment.mesh)),
            donate_argnums=0,
            compiler_options=compiler_options(
                experiment.config.train.prng, platform or hardware.platform()
            ),
        )
        traced = jitted.trace(experiment.abstract_state, *_abstract_batch(experiment))
        return traced.lower(lowering_platforms=(platform,) if platform else None)


def to_devices(
    experiment: Experiment, batch: lanes.Batch, cursor: lanes.Cursor
) -> tuple[lanes.Batch, lanes.Cursor]:
    """Global arrays on devices, from the batch and the cursor of this process's lanes."""
    to_global = sharding.from_processes
    return to_global(experiment.mesh, batch, 1), to_global(experiment.mesh, cursor, 0)
