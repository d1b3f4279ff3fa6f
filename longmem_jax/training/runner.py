"""One loop for everything that is trained: any step, over any batches, with any state.

The loop owns what must never go wrong: signals and preemption, checkpoints and going on from them bit
for bit, metrics that are on record before the checkpoint of their step, the profile, and closing it all
in order. What is trained is a `Task`.
"""

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

PROFILED = (3, 8)  # steps of this run, counted from its first, that `profile` traces


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
      step: steps taken in all.
      finished: there are no more to take (False: stopped by a signal).
      result: what `Task.finish` returned; None where not finished.
    """

    step: int
    finished: bool
    result: Any


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

    def _note(self, number: int, frame: Any) -> None:
        self.name = signal.Signals(number).name
        self.restore()

    def restore(self) -> None:
        """Puts the former handlers back, so that a second signal ends the process at once."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Profile:
    """A `jax.profiler` trace of some steps, where a folder for it was given."""

    def __init__(self, folder: Path | None, first: int, say: Callable[[str], None]):
        self._folder, self._say = folder, say
        self._begin, self._end = (first + number for number in PROFILED)
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts where this is the first step to trace."""
        if self._folder is not None and step == self._begin:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, metrics: Metrics) -> None:
        """Stops where this was the last step to trace."""
        if self._tracing and step == self._end:
            jax.block_until_ready(metrics)
            self.close(step)

    def close(self, step: int) -> None:
        """Stops, also before the last step to trace, and says so."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self._say(f'Profile of steps {self._begin}-{step}: {self._folder}')


@dataclasses.dataclass(frozen=True)
class _Run:
    """What one call of `run` works with."""

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
    """Takes the steps of a task that its newest checkpoint has not taken, and finishes it.

    Args:
      task: what is trained.
      saver, writer, progress: opened for this run; they are closed here, whatever happens.
      profile: folder for a trace of a few steps; None = no trace.

    Returns:
      How it ended.

    Raises:
      UsageError: the checkpoints belong to another run, or too many steps were not finite.
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
            given = _Run(task, saver, writer, progress, stopped, profile)
            state, step, finished = _take_steps(given, state, step)
        saver.wait()
        if not finished:
            reason = stopped.name or 'Preempted'
            progress.say(f'{reason}: saved at step {step:,}; run the same command to go on.')
            return Ended(step, False, None)
        allocator.give_back()
        return Ended(step, True, task.finish(state, step))
    finally:
        writer.close()
        stopped.restore()
        progress.close()
        saver.close()


def _restore(task: Task, saver: Checkpointer, progress: Progress) -> tuple[State, int]:
    """The state of the newest checkpoint, or of step 0."""
    found = saver.restore(task.abstract_state)
    if found is None:
        return task.first_state(), 0
    progress.say(f'Resuming at step {found[1]:,} from {saver.directory}.')
    return found


def _take_steps(given: _Run, state: State, first: int) -> tuple[State, int, bool]:
    """Steps until the plan is done, the batches end, or a signal: state, step, whether finished."""
    task, saver, plan = given.task, given.saver, given.task.plan
    given.progress.say('Compiling the training step ...')
    began = time.monotonic()
    compiled = task.compile()
    allocator.give_back()
    seconds = time.monotonic() - began
    given.writer.scalars(first, 'compile', {'seconds': seconds, 'flops': compiled.flops})
    record = Record(task, given.writer, given.progress, compiled.flops)
    trace = _Profile(given.profile, first, given.progress.say)
    step, ending, evaluated = first, False, first
    for inputs in itertools.islice(task.batches(state), plan.num_steps - first):
        trace.before(step)
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
            state, metrics = compiled.call(state, *inputs)
        step += 1
        record.add(step, metrics)
        trace.after(step, metrics)
        ending = bool(given.stopped.name) or saver.reached_preemption(step)
        if ending:
            break
        evaluating = bool(plan.evaluate_every) and step % plan.evaluate_every == 0
        if evaluating or saver.due(step):
            # What a checkpoint holds must be on record before it: the run may be killed after it.
            record.write()
        if evaluating:
            task.evaluate(state, step)
            allocator.give_back()
            evaluated = step
        saver.maybe_save(step, state)
    record.write()
    trace.close(step)
    if not ending and evaluated < step:
        task.evaluate(state, step)
        allocator.give_back()
    saver.maybe_save(step, state, force=True)
    return state, step, not ending or step >= plan.num_steps
