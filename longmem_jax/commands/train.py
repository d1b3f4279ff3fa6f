"""Training of models of every kind, as a task for the runner."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from longmem_jax.commands import by_source
from longmem_jax.commands.restart_lanes import restarted
from longmem_jax.commands.start_from import first_parameters
from longmem_jax.commands.translate import translate_split
from longmem_jax.config import saved
from longmem_jax.config.reach import beyond_a_step, too_short
from longmem_jax.data import lanes, order
from longmem_jax.data.warnings import division, of_pairs, of_unknown, warnings_of
from longmem_jax.devices import initial, operations, sharding
from longmem_jax.errors import UsageError, unknown
from longmem_jax.evaluation.evaluator import Evaluator, passes
from longmem_jax.evaluation.result import Result
from longmem_jax.evaluation.tables import in_short, show, write_results
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.generation import cache
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import sample_text
from longmem_jax.memory import registry
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer, learning_curve
from longmem_jax.training import runner
from longmem_jax.training.job import Plan, Step
from longmem_jax.training.metrics import METRICS
from longmem_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Summary:
    """How a call of `train` ended.

    Attributes:
      step: total number of steps taken.
      finished: True if all steps of the config were taken, False if stopped by a signal.
      results: 'test' and 'test, memory reset' to their results; empty if not finished.
      sample: a generated text.
    """

    step: int
    finished: bool
    results: dict[str, Result]
    sample: str


class Programs:
    """What is compiled for a configuration; the same for all seeds."""

    def __init__(self, experiment: Experiment):
        """Compiles nothing yet."""
        self._experiment = experiment
        self.evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)

    @functools.cached_property
    def step(self) -> Step:
        """The training step for the shapes of the config."""
        mesh, lowered = self._experiment.mesh, lower_step(self._experiment)
        with jax.set_mesh(mesh):
            compiled = lowered.compile()
        flops = operations.count(lowered, mesh.size)
        return Step(compiled, flops, at_most=operations.has_branches(lowered))


def train(
    experiment: Experiment, *, profile: bool = False, programs: Programs | None = None
) -> Summary:
    """Trains up to `config.train.num_steps`, from the newest checkpoint of the workdir if any.

    Args:
      profile: write a `jax.profiler` trace of a few steps to workdir/profile.
      programs: of an experiment that differs in nothing but seeds and folder; None = its own.

    Returns:
      How it ended.

    Raises:
      UsageError: the workdir belongs to another model, or there were too many non-finite steps.
    """
    config, workdir = experiment.config, experiment.workdir
    progress = Progress(config.train.num_steps, log_every=config.train.log_every)
    writer = Writer(workdir, experiment.hooks)
    task = LanguageModelTask(experiment, writer, progress, programs)
    start = restarted(experiment, task.corpora['train'], progress.say)
    ended = runner.run(
        task,
        start=start,
        saver=experiment.checkpointer(progress.say, experiment.going_on(task.corpora['train'])),
        writer=writer,
        progress=progress,
        profile=workdir / 'profile' if profile else None,
    )
    return ended.result if ended.finished else Summary(ended.step, False, {}, '')


class LanguageModelTask:
    """Trains on documents split into lanes, segment after segment; see `training.job.Job`."""

    def __init__(
        self,
        experiment: Experiment,
        writer: Writer,
        progress: Progress,
        programs: Programs | None = None,
    ):
        """Opens the data; compiles nothing yet."""
        by_source.require(experiment.config)
        best = experiment.config.checkpoint.best
        if best and best not in METRICS:
            raise UsageError(unknown('config.checkpoint.best', best, METRICS))
        train = experiment.config.train
        if train.patience and not best:  # a mode that reads the run may want the newest checkpoint
            raise UsageError(
                f'config.train.patience = {train.patience}: needs config.checkpoint.best, the number of '
                'the validation that must get better.'
            )
        self._experiment, self._writer, self._progress = experiment, writer, progress
        self.corpora = {
            split: experiment.corpus(split) for split in ('train', 'validation', 'test')
        }
        self._programs = programs or Programs(experiment)
        self._evaluator = self._programs.evaluator
        self.plan = Plan(
            num_steps=train.num_steps,
            log_every=train.log_every,
            evaluate_every=train.evaluate_every,
            max_bad_steps=train.max_bad_steps,
            remedy='lower config.optimizer.learning_rate, add warm-up or clipping, or use '
            "config.model.dtype='float32'",
            warnings=registry.warnings(experiment.config.model),
            best=best,
            higher=bool(best) and METRICS[best].higher,
            patience=train.patience,
        )
        self.abstract_state = experiment.abstract_state

    def first_state(self) -> TrainState:
        """The state of step 0, with the parameters of `config.train.start_from` if it is set."""
        experiment = self._experiment
        state = initial.arrays(experiment.make_state, experiment.state_shardings)
        params = first_parameters(experiment, state.params, self._progress.say)
        return state.starting_from(params)

    def begin(self, step: int) -> None:
        """Saves the configuration next to the checkpoints; prints notes, and what cannot be learned."""
        config = self._experiment.config
        for note in (*config.notes, *(f'{note}.' for note in beyond_a_step(config))):
            self._progress.say(f'Note: {note}')
        if divided := division(config.data):
            self._progress.say(f'Note: {divided}')
        for split, corpus in self.corpora.items():
            for said in of_pairs(corpus):
                self._progress.say(f'Note: {split}: {said}.')
        if decay := config.train.ema_decay:
            self._progress.say(
                f'Note: config.train.ema_decay = {decay}: the average of the parameters is scored.'
            )
        if cache.has_cache(config.model):
            self._progress.say(cache.in_words(self._experiment.model, config.train.num_lanes))
        same = order.repeated(
            self.corpora['train'], config.train.num_lanes, config.train.segment_length
        )
        found = (*warnings_of(config.data), *of_unknown(self.corpora['train']), *same)
        for text in (*too_short(config), *found):
            self._progress.say(f'Warning: {text}.')
        if step == 0:
            self._writer.text('config', f'```\n{config}\n```', 0)
        if jax.process_index() == 0:
            path = self._experiment.workdir / 'config.json'
            kept = config.copy_and_resolve_references()
            kept.train.restart_lanes = False  # it is said once, not for good
            kept.checkpoint.accept_other_data = False  # it is said once, not for good
            kept.checkpoint.at = 0  # so is this
            saved.write(kept, path)

    def compile(self) -> Step:
        """The step for the shapes of the config."""
        return self._programs.step

    def batches(self, state: TrainState) -> Iterator[tuple[lanes.Batch, lanes.Cursor]]:
        """Endless batches of the training split, from the cursor of the state."""
        experiment, config = self._experiment, self._experiment.config
        source = lanes.batches(
            self.corpora['train'],
            lanes=sharding.own_lanes(experiment.mesh, config.train.num_lanes),
            num_lanes=config.train.num_lanes,
            segment_length=config.train.segment_length,
            segments_per_batch=config.train.segments_per_step,
            seed=config.data.seed,
            shuffle=True,
            num_epochs=None,
            cursor=jax.tree.map(_local_lanes, state.cursor),
            packed=config.train.packed,
        )
        return (to_devices(experiment, batch, cursor) for batch, cursor in source)

    def in_short(self, metrics: dict[str, float]) -> str:
        """Loss, and bits per byte of a text or the accuracy of a task (which has no bytes)."""
        quality = f'{metrics["bits_per_byte"]:.4f} bits/byte'
        if not metrics['bits_per_byte']:
            quality = f'accuracy {metrics["accuracy"]:.2%}'
        return f'loss {metrics["loss"]:.4f} nats/token, {quality}'

    def evaluate(self, state: TrainState, step: int) -> None:
        """Scores the validation split."""
        result, _ = self._evaluator.evaluate(
            state.scored,
            self.corpora['validation'],
            'validation',
            max_segments=self._experiment.config.evaluate.max_segments,
        )
        self._writer.scalars(step, 'validation', result.scalars())
        self._progress.say(f'step {step:,}: validation {in_short(result)} ({result.protocol})')

    def finish(self, state: TrainState, step: int) -> Summary:
        """Test with and without memory, the learning curve, the final table, and a sample."""
        experiment, params, scored = self._experiment, state.scored, step
        if best := experiment.config.checkpoint.best:
            params, scored = experiment.restore_parameters(experiment.best_step())
            self._progress.say(f'The best checkpoint by validation {best}: step {scored:,}.')
        results = self._test(params, step)
        paths = {
            'checkpoint': experiment.workdir / 'checkpoints' / str(scored),
            'TensorBoard events': experiment.workdir / 'tensorboard',
            'metrics': experiment.workdir / 'metrics.jsonl',
            'learning curve': experiment.workdir / 'learning_curve.png',
        }
        self._write_results(params, scored, results)
        if jax.process_index() == 0:
            figure = learning_curve(paths['metrics'], paths['learning curve'])
            self._writer.figure('learning_curve', figure, step)
        self._progress.close()
        show(self._progress, results, paths)
        # Results first: generation may fail, and testing takes long.
        sample = ''
        if by_source.has_scores(experiment.config.data.source):
            scores = by_source.score(experiment, params, 'test', self._progress)
            self._write_results(params, scored, results | scores)
        elif jax.process_count() == 1 and experiment.config.model.kind == 'seq2seq':
            translation = translate_split(experiment, params, 'test', self._progress)
            self._writer.scalars(step, 'test', {'bleu': translation['bleu']})
            self._write_results(params, scored, results | translation)
        elif jax.process_count() == 1 and experiment.config.generate.sample_length:
            sample = self._sample(params, step)
        return Summary(step, True, results, sample)

    def _write_results(self, params: Any, step: int, results: dict[str, Any]) -> None:
        """Writes results.json."""
        if jax.process_index() != 0:
            return
        model = self._experiment.evaluation_model
        one_lane = jax.eval_shape(lambda params: fresh_state(model, params, 1), params)
        write_results(self._experiment.workdir / 'results.json', step, params, one_lane, results)

    def _test(self, params: Any, step: int) -> dict[str, Result]:
        """The test split with memory and with the memory reset, where there is one."""
        config, results = self._experiment.config, {}
        for name, reset in passes(config, 'test').items():
            self._progress.say(f'Scoring {name} ...')
            results[name], _ = self._evaluator.evaluate(
                params,
                self.corpora['test'],
                'test',
                reset=reset,
                max_segments=config.evaluate.max_test_segments,
            )
            tag = 'test_reset' if reset else 'test'
            self._writer.scalars(step, tag, results[name].scalars())
        return results

    def _sample(self, params: Any, step: int) -> str:
        """A generated text, printed and logged."""
        experiment = self._experiment
        sample = sample_text(
            experiment.evaluation_model, params, experiment.tokenizer, experiment.config.generate
        )
        self._writer.text('sample', sample, step)
        self._progress.say('Sample:\n' + sample)
        return sample


def _local_lanes(leaf: jax.Array) -> np.ndarray:
    """The lanes of this process, numpy [lanes]."""
    shards = {shard.index[0].start or 0: shard.data for shard in leaf.addressable_shards}
    return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])
