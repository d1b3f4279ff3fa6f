"""The interface of lifelong learners: pure functions over an explicit state.

A learner reads a stream of rows once, in its order, and never learns where one task ends and the next
begins. `observe` takes the next rows from the position in its state; `predict` answers questions with
what was learned, and may adapt to its memory before it does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax

from longmem_jax.lifelong.rows import Rows

Metrics = dict[str, jax.Array]


class LearnerState(flax.struct.PyTreeNode):
    """The whole state of a learner; a checkpoint holds this.

    Attributes:
      step: int32 scalar, calls of `observe`.
      position: int32 scalar, rows of the stream that were read.
      params: float32 parameters.
      optimizer: optax state.
      memory: the episodic memory, `episodic.Memory`; () = none.
      own: what else the method keeps, any pytree.
      key: random key; folded with the step, never changed.
      skipped: int32 scalar, consecutive steps skipped because they were not finite.
    """

    step: jax.Array
    position: jax.Array
    params: Any
    optimizer: Any
    memory: Any
    own: Any
    key: jax.Array
    skipped: jax.Array


class Learner(NamedTuple):
    """A method, with its settings, for one network.

    Attributes:
      init: `(key) -> LearnerState`, at the start of a stream.
      observe: `(state, stream) -> (state, metrics)`: the rows after `state.position`, at most
        `most_rows`. Rows after the end of the stream are not there and count for nothing. Metrics are
        scalars.
      predict: `(state, stream, rows, key) -> scores` of the head, for the rows of one test set; any
        number of them. The state does not change. `key` is of what it draws from its memory.
      most_rows: rows that one call of `observe` reads at most.
      schedule: what it will do with a stream, in words, for the user: `(rows of the stream) -> lines`.
    """

    init: Callable[[jax.Array], LearnerState]
    observe: Callable[[LearnerState, Rows], tuple[LearnerState, Metrics]]
    predict: Callable[[LearnerState, Rows, Rows, jax.Array], jax.Array]
    most_rows: int
    schedule: Callable[[int], list[str]]


class Method(NamedTuple):
    """A line of the registry.

    Attributes:
      settings: fields of `config.lifelong.METHOD` with the paper's values.
      check: `(settings) -> texts`, each beginning with the name of a field.
      make: `(network, settings, optimizer, batch) -> Learner`: `optimizer` of optax for all parameters,
        `batch` the rows of one step of it.
      parameters: `(network, settings, key) -> parameters` that the optimizer is of, at the start; those
        of the network, unless the method adds some.
    """

    settings: dict[str, Any]
    check: Callable[[Any], list[str]]
    make: Callable[[Any, Any, Any, int], Learner]
    parameters: Callable[[Any, Any, jax.Array], Any] = lambda network, settings, key: network.init(
        key
    )
