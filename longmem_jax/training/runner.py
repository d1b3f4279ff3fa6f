"""One training loop for every task: any step, over any batches, with any state.

The loop handles what must never go wrong: signals and preemption, checkpoints and bit-for-bit
resumption, writing metrics before the checkpoint of their step, the profile, and closing everything in
order. What is trained is a `Task`.
"""

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from longmem_jax.devices import allocator
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.record import Progress, Record, Writer
from longmem_jax.training.task import Metrics, State, Task

PROFILED = (3, 8)  # steps that `profile` traces, counted from the first of this run


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
      step: total steps taken.
      finished: whether all steps were taken (False: stopped by a signal).
      result: what `Task.finish` returned; None if not finished.
    """

    step: int
    finished: bool
    result: Any


class Stopped:
    """Whether the run was asked to stop: SIGTERM or the first Ctrl-C.

    Several processes must stop at the same step: there JAX's preemption service catches signals
    instead, and `Checkpointer.reached_preemption` is True at the step that all agreed on.
    """

    def __init__(self):
        """Installs handlers for both signals; `restore` removes them."""
        self.name = ''
        signals = (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ()
        self._previous = {signum: signal.signal(signum, self._note) for signum in signals}

    def _note(self, signum: int, frame: Any) -> None:
        self.name = signal.Signals(signum).name
        self.restore()

    def restore(self) -> None:
        """Restores the previous handlers, so that a second signal ends the process at once."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


class _Profile:
    """A `jax.profiler` trace of some steps, if a folder for it was given."""

    def __init__(self, folder: Path | None, first: int, say: Callable[[str], None]):
        self._folder, self._say = folder, say
        self._begin, self._end = (first + offset for offset in PROFILED)
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace if this is its first step."""
        if self._folder is not None and step == self._begin:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, metrics: Metrics) -> None:
        """Stops the trace if this was its last step."""
        if self._tracing and step == self._end:
            jax.block_until_ready(metrics)
            self.close(step)

    def close(self, step: int) -> None:
        """Stops the trace if it is running, and reports where it is."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self._say(f'Profile of steps {self._begin}-{step}: {self._folder}')


@dataclasses.dataclass(frozen=True)
class _Context:
    """Everything that one call of `run` works with."""

    task: Task
    saver: Checkpointer
    writer: Writer
    progress: Progress
    stopped: Stopped
    profile: Path | None


def run(
    task: Task,
    *,
    saver: Checkpointer,
    writer: Writer,
    progress: Progress,
    profile: Path | None = None,
) -> Ended:
    """Resumes a task from its newest checkpoint, takes the remaining steps, and finishes it.

    Args:
      task: what is trained.
      saver, writer, progress: opened for this run; always closed here.
      profile: folder for a trace of a few steps; None = no trace.

    Returns:
      How it ended.

    Raises:
      UsageError: the checkpoints belong to another run, too many steps were not finite, or the folder
        of the run vanished or cannot be written.
    """
    stopped, num_steps = Stopped(), task.plan.num_steps
    try:
        state, step = _restore(task, saver, progress)
        writer.truncate_after(step)
        task.begin(step)
        finished = step >= num_steps
        if finished:
            progress.say(f'Finished already: {step:,} of {num_steps:,} steps.')
        else:
            context = _Context(task, saver, writer, progress, stopped, profile)
            state, step, finished = _take_steps(context, state, step)
        saver.wait()
        if not finished:
            reason = stopped.name or 'Preempted'
            progress.say(f'{reason}: saved at step {step:,}; run the same command to resume.')
            return Ended(step, False, None)
        allocator.give_back()
        return Ended(step, True, task.finish(state, step))
    except OSError as error:
        saver.explain(error)
        raise
    finally:
        _close(saver, writer, progress, stopped)


def _close(saver: Checkpointer, writer: Writer, progress: Progress, stopped: Stopped) -> None:
    """Closes all of them, also where one fails."""
    with contextlib.ExitStack() as others:
        for close in (saver.close, progress.close, stopped.restore):
            others.callback(close)
        try:
            writer.close()
        except OSError as error:
            saver.explain(error)
            raise


def _restore(task: Task, saver: Checkpointer, progress: Progress) -> tuple[State, int]:
    """The state of the newest checkpoint, or of step 0."""
    restored = saver.restore(task.abstract_state)
    if restored is None:
        return task.first_state(), 0
    progress.say(f'Resuming at step {restored[1]:,} from {saver.directory}.')
    return restored


def _take_steps(context: _Context, state: State, first: int) -> tuple[State, int, bool]:
    """Trains until the plan is done, the batches end, or a signal: state, step, whether finished."""
    task, saver, plan = context.task, context.saver, context.task.plan
    context.progress.say('Compiling the training step ...')
    started = time.monotonic()
    compiled = task.compile()
    allocator.give_back()
    seconds = time.monotonic() - started
    context.writer.scalars(first, 'compile', {'seconds': seconds, 'flops': compiled.flops})
    record = Record(task, context.writer, context.progress, compiled.flops)
    profile = _Profile(context.profile, first, context.progress.say)
    step, ending, evaluated = first, False, first
    for inputs in itertools.islice(task.batches(state), plan.num_steps - first):
        profile.before(step)
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
            state, metrics = compiled.call(state, *inputs)
        step += 1
        record.add(step, metrics)
        profile.after(step, metrics)
        ending = bool(context.stopped.name) or saver.reached_preemption(step)
        if ending:
            break
        evaluating = bool(plan.evaluate_every) and step % plan.evaluate_every == 0
        evaluating |= plan.evaluate_when(state)
        if evaluating or saver.due(step):
            # Metrics must be written before the checkpoint of their step: a kill may come after it.
            record.write()
        if evaluating:
            task.evaluate(state, step)
            allocator.give_back()
            evaluated = step
        saver.maybe_save(step, state)
    record.write()
    profile.close(step)
    if not ending and evaluated < step:
        task.evaluate(state, step)
        allocator.give_back()
    saver.maybe_save(step, state, force=True)
    return state, step, not ending or step >= plan.num_steps
