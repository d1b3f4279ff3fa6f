"""The interface of what `runner.run` trains: a step, its batches, evaluation and result."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

State = Any  # any pytree of arrays
Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The schedule of a run.

    Attributes:
      num_steps: total steps; a run ends earlier if its batches do.
      log_every: steps between lines of metrics; 0 = only at the end.
      evaluate_every: steps between evaluations; 0 = only at the end.
      evaluate_when: whether there is one more after a step, by the state after it; such as at the end of
        a part of a stream.
      evaluated: group of the scalars that an evaluation writes, by which a run that was stopped before
        one knows that it is missing.
      best: which of these scalars says which checkpoint is the best, and is kept; '' = none.
      higher: whether it is better if it is higher.
      patience: evaluations in a row without a better one after which a run ends; 0 = never.
      max_bad_steps: consecutive non-finite steps after which the run stops.
      remedy: what the user can do then.
      warnings: name of a metric to the warning for the first time that it is above 0.
    """

    num_steps: int
    log_every: int
    evaluate_every: int
    max_bad_steps: int
    remedy: str
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)
    evaluate_when: Callable[[State], bool] = lambda state: False
    evaluated: str = 'validation'
    best: str = ''
    higher: bool = False
    patience: int = 0


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled step.

    Attributes:
      call: `(state, *inputs) -> (state, metrics)`; the old state may be donated. Metrics are scalars on
        devices. Three names have a meaning: `skipped` counts consecutive non-finite steps;
        `NAME_seen` is a running total, also logged as `NAME_per_s`: a scalar, or [millions, remainder].
      flops: floating point operations of a call on one device; 0 = unknown.
      at_most: a switch is counted as its largest branch, so less than `flops` may run.
    """

    call: Callable[..., tuple[State, Metrics]]
    flops: float = 0.0
    at_most: bool = False


class Job(Protocol):
    """What is trained. The runner calls the methods in this order, `evaluate` between batches.

    Attributes:
      plan: the schedule of the run.
    """

    plan: Plan

    @property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the state (`jax.ShapeDtypeStruct`)."""

    def first_state(self) -> State:
        """The state of step 0; called if there is no checkpoint."""

    def begin(self, step: int) -> None:
        """Records what is trained; called once, after the checkpoint is known to match the run."""

    def compile(self) -> Step:
        """Compiles the step."""

    def batches(self, state: State) -> Iterator[tuple[Any, ...]]:
        """Arguments of the step after the state, from the position stored in `state`.

        Each step must store the position after its batch in the new state, so that a run resumed
        from a checkpoint reads the same batches.
        """

    def in_short(self, metrics: dict[str, float]) -> str:
        """The metrics of a step for the console: 'loss 2.1 nats/token, 1.2 bits/byte'."""

    def evaluate(self, state: State, step: int) -> None:
        """Evaluates and writes the results; called every `plan.evaluate_every` steps and at the end."""

    def finish(self, state: State, step: int) -> Any:
        """Finishes a run that has taken all its steps; the value becomes `Ended.result`."""
