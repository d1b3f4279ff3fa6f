"""What can be trained: a step, the batches it reads, and what is done with the state."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

State = Any  # any pytree of arrays
Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """When a run does what.

    Attributes:
      num_steps: steps in all; a run ends earlier where its batches do.
      log_every: steps between two lines of metrics.
      evaluate_every: steps between evaluations; 0 = at the end only.
      max_bad_steps: steps in a row that may be not finite.
      remedy: what the user can do where there were more of them.
    """

    num_steps: int
    log_every: int
    evaluate_every: int
    max_bad_steps: int
    remedy: str


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled step.

    Attributes:
      call: `(state, *inputs) -> (state, metrics)`; the old state may be given away. Metrics are
        scalars on devices. Some names mean something: `skipped` counts the steps in a row that were
        not finite; `SOMETHING_seen` is a running total, logged as `SOMETHING_per_s` as well.
      flops: floating point operations of a call on one device; 0 = unknown.
    """

    call: Callable[..., tuple[State, Metrics]]
    flops: float = 0.0


class Task(Protocol):
    """What is trained. The methods are called in this order, `batches` and `evaluate` in turn.

    Attributes:
      plan: when the run does what.
      abstract_state: shapes, dtypes and shardings of the state (`jax.ShapeDtypeStruct`).
    """

    plan: Plan
    abstract_state: State

    def first_state(self) -> State:
        """The state of step 0; called where there is no checkpoint."""

    def begin(self, step: int) -> None:
        """Notes what is trained; called once, when the run is known to be the checkpoint's own."""

    def compile(self) -> Step:
        """Compiles the step."""

    def batches(self, state: State) -> Iterator[tuple[Any, ...]]:
        """What the step reads after the state, from the position that `state` holds.

        A step that is taken with the first of them must lead to a state that holds the position
        after it: a run that goes on from a checkpoint reads what it would have read.
        """

    def in_short(self, metrics: dict[str, float]) -> str:
        """The metrics of a step for the console: 'loss 2.1 nats/token, 1.2 bits/byte'."""

    def evaluate(self, state: State, step: int) -> None:
        """Evaluates, and writes down what was found; `plan.evaluate_every` steps apart."""

    def finish(self, state: State, step: int) -> Any:
        """Ends a run that has taken all its steps; the result is that of `run`."""
