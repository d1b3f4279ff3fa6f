"""Training: builds or resumes a run, steps through the data, evaluates, and ends with a table."""

import dataclasses
import signal
import time

import jax
import numpy as np

from longmem_jax.commands.start_from import parameters_of
from longmem_jax.commands.translate import translate_split
from longmem_jax.data import lanes
from longmem_jax.data.corpus import Corpus
from longmem_jax.devices import allocator, sharding
from longmem_jax.devices.hardware import peak_flops
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.evaluation.result import Result
from longmem_jax.experiment import Experiment, lower_step, step_flops, to_devices
from longmem_jax.generation.reader import fresh_state, sample_text
from longmem_jax.models.kinds import KINDS
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import in_short, show, write_results
from longmem_jax.reporting.writers import Writer, learning_curve
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.graft import graft

PROFILED = (3, 8)  # steps of this run, counted from its first, that `--profile` traces


class Stopped:
    """Whether the run was asked to stop: SIGTERM or the first Ctrl-C.

    Several processes must stop at the same step: there JAX's preemption service listens instead,
    and `Checkpointer.reached_preemption` tells when all have heard of it.
    """

    def __init__(self):
        """Takes over both signals; `restore` gives them back."""
        self.name = ''
        numbers = (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ()
        self._before = {number: signal.signal(number, self._note) for number in numbers}

    def _note(self, number, frame):
        self.name = signal.Signals(number).name
        self.restore()

    def restore(self):
        """Puts the former handlers back, so that a second signal ends the process at once."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class Summary:
    """How a call of `train` ended.

    Attributes:
      step: steps taken in all.
      finished: all steps of the config were taken (False: stopped by a signal).
      results: 'test' and 'test, memory emptied' to their results; empty where not finished.
      sample: a generated text.
    """

    step: int
    finished: bool
    results: dict[str, Result]
    sample: str


def _start(experiment, saver, progress):
    """The train state of the newest checkpoint, or of step 0."""
    found = saver.restore(experiment.abstract_state)
    if found is None:
        state = jax.jit(experiment.make_state, out_shardings=experiment.state_shardings)()
        source = experiment.config.train.start_from
        if source:
            growing = KINDS[experiment.config.model.kind].growing
            other = parameters_of(experiment)
            params = graft(state.params, other, source, progress.say, growing)
            state = state.replace(params=params)
        return state, 0
    progress.say(f'Resuming at step {found[1]:,} from {experiment.workdir / "checkpoints"}.')
    return found


@dataclasses.dataclass(frozen=True)
class _Run:
    """What one call of `train` works with."""

    experiment: Experiment
    corpora: dict[str, Corpus]
    evaluator: Evaluator
    saver: Checkpointer
    writer: Writer
    progress: Progress
    stopped: Stopped


class _Meter:
    """Tokens per second and utilisation between two calls."""

    def __init__(self, flops):
        self.flops, self.time, self.step, self.tokens = flops, None, 0, 0.0

    def read(self, step, tokens_seen):
        now, rates = time.monotonic(), {}
        if self.time is not None and step > self.step:
            seconds = max(now - self.time, 1e-9)
            steps = (step - self.step) / seconds
            rates = {'steps_per_s': steps, 'tokens_per_s': (tokens_seen - self.tokens) / seconds}
            if self.flops:
                rates['flops_per_s'] = self.flops * steps
                peak = peak_flops(jax.devices()[0])
                if peak:
                    rates['utilisation'] = rates['flops_per_s'] / peak
        self.time, self.step, self.tokens = now, step, tokens_seen
        return rates


def _refuse_bad_steps(metrics, limit):
    if metrics['skipped'] >= limit:
        raise UsageError(
            f'{int(metrics["skipped"])} steps in a row were not finite (config.train.max_bad_steps '
            f'= {limit}); lower config.optimizer.learning_rate, add warm-up or clipping, or use '
            "config.model.dtype='float32'. Nothing of these steps was kept."
        )


def train(experiment: Experiment, *, profile: bool = False) -> Summary:
    """Trains until `config.train.num_steps`, from the newest checkpoint of the workdir if any.

    Args:
      experiment: what to train.
      profile: write a `jax.profiler` trace of a few steps to workdir/profile.

    Returns:
      How it ended.

    Raises:
      UsageError: the workdir belongs to another model, or too many steps were not finite.
    """
    config, workdir = experiment.config, experiment.workdir
    progress = Progress(config.train.num_steps, log_every=config.train.log_every)
    corpora = {split: experiment.corpus(split) for split in ('train', 'validation', 'test')}
    saver = experiment.checkpointer(progress.say)
    stopped = Stopped()
    try:
        with Writer(workdir) as writer:
            state, step = _start(experiment, saver, progress)
            writer.truncate_after(step)
            if step == 0:
                writer.text('config', f'```\n{config}\n```', 0)
            if jax.process_index() == 0:
                (workdir / 'config.json').write_text(config.to_json(indent=1) + '\n')
            evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, config)
            run = _Run(experiment, corpora, evaluator, saver, writer, progress, stopped)
            if step < config.train.num_steps:
                state, step = _loop(run, state, step, profile)
            else:
                progress.say(f'Finished already: {step:,} of {step:,} steps. Evaluating.')
            saver.wait()
            if step < config.train.num_steps:
                progress.say(
                    f'{stopped.name or "Preempted"}: saved at step {step:,}; run the same command to '
                    'go on.'
                )
                return Summary(step, False, {}, '')
            return _finish(run, state, step)
    finally:
        stopped.restore()
        progress.close()
        saver.close()


def _loop(run: _Run, state, step, profile):
    """Steps until the end or a signal. Metrics are fetched one step late, so devices never wait."""
    experiment, writer, progress = run.experiment, run.writer, run.progress
    config = experiment.config
    progress.say('Compiling the training step ...')
    began = time.monotonic()
    compiled = lower_step(experiment).compile()
    allocator.give_back()
    flops = step_flops(compiled, config.train.segments_per_step)
    writer.scalars(step, 'compile', {'seconds': time.monotonic() - began, 'flops': flops})
    cursor = jax.tree.map(_own_part, state.cursor) if step else None
    source = lanes.batches(
        run.corpora['train'],
        lanes=sharding.own_lanes(experiment.mesh, config.train.num_lanes),
        num_lanes=config.train.num_lanes,
        segment_length=config.train.segment_length,
        segments_per_batch=config.train.segments_per_step,
        seed=config.data.seed,
        shuffle=True,
        num_epochs=None,
        cursor=cursor,
    )
    meter, first, previous = _Meter(flops), step, None

    def note(number, metrics):
        metrics = {name: float(value) for name, value in metrics.items()}
        _refuse_bad_steps(metrics, config.train.max_bad_steps)
        rates = {}
        if number % config.train.log_every == 0 or number == config.train.num_steps:
            rates = meter.read(number, metrics['tokens_seen'])
            writer.scalars(number, 'train', metrics)
            if rates:
                writer.scalars(number, 'speed', rates)
        progress.update(number, {**metrics, **rates})

    for batch, cursor in source:
        if profile and step - first == PROFILED[0]:
            jax.profiler.start_trace(str(experiment.workdir / 'profile'))
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
            state, metrics = compiled(state, *to_devices(experiment, batch, cursor))
        if previous is not None:
            note(*previous)
        step += 1
        previous = (step, metrics)
        if profile and step - first == PROFILED[1]:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
            progress.say(
                f'Profile of steps {first + PROFILED[0]}-{step}: {experiment.workdir}/profile'
            )
        last = step >= config.train.num_steps
        ending = bool(run.stopped.name) or run.saver.reached_preemption(step)
        evaluating = last or step % config.train.evaluate_every == 0
        if evaluating or ending or step % config.checkpoint.every == 0:
            # What a checkpoint holds must be on record before it: the run may be killed behind it.
            note(*previous)
            previous = None
        if evaluating and not ending:
            result, _ = run.evaluator.evaluate(
                state.params,
                run.corpora['validation'],
                'validation',
                max_segments=config.evaluate.max_segments,
            )
            allocator.give_back()
            writer.scalars(step, 'validation', result.scalars())
            progress.say(f'step {step:,}: validation {in_short(result)} ({result.protocol})')
        run.saver.maybe_save(step, state, force=last or ending)
        if last or ending:
            break
    return state, step


def _own_part(leaf):
    """The lanes of this process, numpy [lanes]."""
    parts = {shard.index[0].start or 0: shard.data for shard in leaf.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])


def _finish(run: _Run, state, step):
    """Test with and without memory, a sample, the learning curve, and the closing table."""
    experiment, writer, progress = run.experiment, run.writer, run.progress
    config, workdir = experiment.config, experiment.workdir
    corpus, results = run.corpora['test'], {}
    allocator.give_back()
    paired = config.model.kind == 'seq2seq'
    kinds = (('test', False), ('test, memory emptied', True))
    for name, emptied in kinds[:1] if paired else kinds:
        progress.say(f'Scoring {name} ...')
        results[name], _ = run.evaluator.evaluate(
            state.params,
            corpus,
            'test',
            emptied=emptied,
            max_segments=config.evaluate.max_test_segments,
        )
        tag = 'test_emptied' if emptied else 'test'
        writer.scalars(step, tag, results[name].scalars())
    sample, more = '', {}
    if jax.process_count() == 1 and paired:
        more = translate_split(experiment, state.params, 'test', progress)
        writer.scalars(step, 'test', {'bleu': more['bleu']})
    elif jax.process_count() == 1 and config.generate.sample_length:
        sample = sample_text(
            experiment.evaluation_model, state.params, corpus.tokenizer, config.generate
        )
        writer.text('sample', sample, step)
    paths = {
        'checkpoint': workdir / 'checkpoints' / str(step),
        'TensorBoard events': workdir / 'tensorboard',
        'metrics': workdir / 'metrics.jsonl',
        'learning curve': workdir / 'learning_curve.png',
    }
    if jax.process_index() == 0:
        figure = learning_curve(workdir / 'metrics.jsonl', paths['learning curve'])
        writer.figure('learning_curve', figure, step)
        one_lane = jax.eval_shape(
            lambda params: fresh_state(experiment.evaluation_model, params, 1), state.params
        )
        write_results(workdir / 'results.json', step, state.params, one_lane, results | more)
    progress.close()
    show(progress, results, sample, paths)
    return Summary(step, True, results, sample)
