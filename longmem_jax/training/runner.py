"""One training loop for every job: any step, over any batches, with any state.

The loop handles what must never go wrong: signals, checkpoints and bit-for-bit resumption, writing
metrics before the checkpoint of their step, the profile, and closing everything in order. What is
trained is a `Job`.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from longmem_jax import stopping
from longmem_jax.devices import allocator, processes
from longmem_jax.errors import UsageError
from longmem_jax.files import own_folder
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.training.best import Best
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.job import Job, Metrics, State
from longmem_jax.training.record import Record

ONE = (('devices', 'device'), ('processes', 'process'))
PROFILED = (3, 8)  # steps that `profile` traces, counted from the first of this run


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
      step: total steps taken.
      finished: whether all steps were taken (False: stopped by a signal).
      result: what `Job.finish` returned; None if not finished.
    """

    step: int
    finished: bool
    result: Any


class _Profile:
    """A `jax.profiler` trace of some steps, if a folder for it was given."""

    def __init__(self, folder: Path | None, first: int, say: Callable[[str], None]):
        self._folder, self._say = folder, say
        self._begin, self._end = (first + offset for offset in PROFILED)
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace if this is its first step."""
        if self._folder is not None and step == self._begin:
            for folder in (
                self._folder,
                self._folder / 'plugins',
                self._folder / 'plugins/profile',
            ):
                own_folder(folder)
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, metrics: Metrics) -> None:
        """Stops the trace if this was its last step."""
        if self._tracing and step == self._end:
            jax.block_until_ready(metrics)
            self.close(step)

    def close(self, step: int) -> None:
        """Stops the trace if it is running, and reports where it is."""
        if self._folder is not None and step <= self._begin:
            self._say(f'No profile: it begins after step {self._begin}, and the run ended before.')
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self._say(f'Profile of steps {self._begin}-{step}: {self._folder}')


@dataclasses.dataclass(frozen=True)
class _Context:
    """Everything that one call of `run` works with."""

    job: Job
    saver: Checkpointer
    writer: Writer
    progress: Progress
    profile: Path | None
    best: Best


def run(
    job: Job,
    *,
    saver: Checkpointer,
    writer: Writer,
    progress: Progress,
    profile: Path | None = None,
    start: tuple[State, int] | None = None,
) -> Ended:
    """Resumes a job from its newest checkpoint, takes the remaining steps, and finishes it.

    A signal is obeyed after a step, or where an evaluation asks for it (`stopping.poll`).

    Args:
      saver, writer, progress: opened for this run; always closed here.
      start: a state and its step to resume from in place of the newest checkpoint.

    Returns:
      How it ended.

    Raises:
      UsageError: the checkpoints belong to another run, too many steps were not finite, or the folder
        of the run vanished or cannot be written.
    """
    with stopping.deferred():
        try:
            state, step = start or _restore(job, saver, progress)
            best = Best(job.plan, saver, writer, step)
            return _run(_Context(job, saver, writer, progress, profile, best), state, step)
        except OSError as error:
            saver.explain(error)
            raise
        finally:
            _close(saver, writer, progress)


def _run(context: _Context, state: State, step: int) -> Ended:
    """See `run`."""
    job, saver, progress = context.job, context.saver, context.progress
    num_steps = job.plan.num_steps
    if not saver.every:
        progress.say(
            'Note: config.checkpoint.every = 0: saved at the end and when a signal stops the run; '
            'everything is lost if it is killed.'
        )
    finished = step >= num_steps or context.best.is_stale()
    if said := context.writer.resume(
        step, again=finished, every=job.plan.log_every, keep=saver.went_back
    ):
        progress.say(said)
    here = _devices(state)
    if told := _moved(context.writer.last('compile'), here):
        progress.say(told)
    job.begin(step)
    if finished:
        why = f' and {_no_better(job)}' if step < num_steps else ''
        progress.say(f'Finished already: {step:,} of {num_steps:,} steps{why}.')
        signum = _evaluate_missed(context, state, step)
    else:
        try:
            state, step, signum = _take_steps(context, state, step)
        except stopping.Stopped as stopped:  # where batches are made: the state is the saved one
            signum = stopped.code - 128
    saver.wait()
    _tell_saved(context)
    if not signum:
        allocator.give_back()
        try:
            return Ended(step, True, job.finish(state, step))
        except stopping.Stopped as stopped:
            signum = stopped.code - 128
    stopping.end(signum)
    what = f'saved at step {step:,}' if step else 'stopped before the first step'
    again = 'make the same call' if signum == stopping.HOOK else 'run the same command'
    progress.say(f'{stopping.name(signum)}: {what}; {again} to resume.')
    return Ended(step, False, None)


def _tell_saved(context: _Context) -> None:
    for step in context.saver.newly_whole():
        context.writer.saved(step)


def _no_better(job: Job) -> str:
    return f'no better {job.plan.best} in {job.plan.patience} evaluations'


def _close(saver: Checkpointer, writer: Writer, progress: Progress) -> None:
    """Closes all of them, also where one fails."""
    with contextlib.ExitStack() as others:
        for close in (saver.close, progress.close):
            others.callback(close)
        try:
            writer.close()
        except OSError as error:
            saver.explain(error)
            raise


def _restore(job: Job, saver: Checkpointer, progress: Progress) -> tuple[State, int]:
    """The state of the newest checkpoint, or of step 0."""
    restored = saver.restore(job.abstract_state)
    if restored is None:
        return job.first_state(), 0
    progress.say(f'Resuming at step {restored[1]:,} from {saver.directory}.')
    return restored


def _devices(state: State) -> dict[str, int]:
    """Devices and processes that hold a state."""
    devices = max(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state))
    return {'devices': devices, 'processes': jax.process_count()}


def _moved(before: dict[str, Any], here: dict[str, int]) -> str:
    """What another number of devices means for a run that is resumed; '' for the same number."""
    if not before.keys() >= here.keys() or all(before[name] == here[name] for name in here):
        return ''
    was, now = (
        ' in '.join(
            f'{each[name]:.0f} {name if each[name] > 1 else single}' for name, single in ONE
        )
        for each in (before, here)
    )
    return (
        f'Saved on {was}, resumed on {now}: state, data, memories and random numbers are the same '
        'bit for bit; sums are added in another order, so later losses agree to rounding only.'
    )


def _evaluate(context: _Context, state: State, step: int) -> int:
    """Evaluates; the number of the signal that stopped it, 0 if none did."""
    try:
        context.job.evaluate(state, step)
        context.best.add(step)
    except stopping.Stopped as stopped:
        return stopped.code - 128
    finally:
        allocator.give_back()
    return 0


def _evaluate_missed(context: _Context, state: State, step: int) -> int:
    """Evaluates if the run was stopped between a checkpoint and the evaluation of its step."""
    plan = context.job.plan
    due = step >= plan.num_steps or (plan.evaluate_every and step % plan.evaluate_every == 0)
    # The file is that of process 0, and all processes evaluate together.
    missed = step and due and not context.writer.has(step, plan.evaluated)
    return _evaluate(context, state, step) if processes.from_first(bool(missed)) else 0


def _next(
    context: _Context, batches: Iterator[Any], state: State, step: int, record: Record
) -> tuple[Any, ...] | None:
    """The arguments of the next step, None at the end. If the data are broken, the state is saved.

    Of several processes perhaps one alone cannot read, and all must save together.
    """
    try:
        return next(batches, None)
    except UsageError:
        if step and processes.alone():
            record.write()
            context.writer.flush()
            context.saver.maybe_save(step, state, force=True, bad=record.bad)
            context.saver.wait()
            _tell_saved(context)
            context.progress.say(f'Saved at step {step:,}: the next one cannot be read.')
        raise


def _take_steps(context: _Context, state: State, first: int) -> tuple[State, int, int]:
    """Trains until the plan is done, the batches end, or a signal: state, step, number of the signal."""
    job, saver, plan = context.job, context.saver, context.job.plan
    if signum := stopping.asked(now=True):
        return state, first, signum
    started = time.monotonic()
    with context.progress.busy('Compiling the training step'):
        compiled = job.compile()
    allocator.give_back()
    seconds = time.monotonic() - started
    told = {'seconds': seconds, 'flops': compiled.flops} | _devices(state)
    context.writer.scalars(first, 'compile', told)
    if signum := stopping.asked(now=True) or _evaluate_missed(context, state, first):
        return state, first, signum
    if context.best.is_stale():
        return state, first, 0
    record = Record(job, context.writer, context.progress, compiled, saver.steps)
    profile = _Profile(context.profile, first, context.progress.say)
    step, evaluated = first, first
    batches = itertools.islice(job.batches(state), plan.num_steps - first)
    while (inputs := _next(context, batches, state, step, record)) is not None:
        profile.before(step)
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
            state, metrics = compiled.call(state, *inputs)
        step += 1
        record.add(step, metrics)
        profile.after(step, metrics)
        if signum := stopping.asked():
            break
        evaluating = bool(plan.evaluate_every) and step % plan.evaluate_every == 0
        evaluating |= plan.evaluate_when(state)
        if evaluating or saver.due(step):
            # Metrics must be written before the checkpoint of their step: a kill may come after it.
            record.write()
            context.writer.flush()
        paused = time.monotonic()
        # Before the evaluation, which may take long or be stopped.
        saver.maybe_save(step, state, bad=record.bad)
        _tell_saved(context)
        if evaluating:
            evaluated = step
            # A hook that ends the training for its numbers gets the state that has them.
            if signum := _evaluate(context, state, step) or stopping.asked(now=True):
                break
            if context.best.is_stale():
                context.progress.say(f'Ended at step {step:,}: {_no_better(job)}.')
                break
        record.paused(time.monotonic() - paused)
    record.write()
    context.writer.flush()
    profile.close(step)
    saver.maybe_save(step, state, force=step > first, bad=record.bad)
    if not signum and step > 0:
        missed = evaluated < step or not context.writer.has(step, plan.evaluated)
        if processes.from_first(missed):
            signum = _evaluate(context, state, step)
    return state, step, signum
