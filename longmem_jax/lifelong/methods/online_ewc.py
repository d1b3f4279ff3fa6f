"""Online EWC: a quadratic penalty on parameters important for earlier tasks (Schwarz et al., 2018).

`F* <- gamma F* + mean_x (grad log p(y | x))^2` and `theta* <- theta`, and the loss is added
`lambda / 2 sum F* (theta - theta*)^2`. Both belong to the end of a task. A stream has no tasks that a
learner could see, so here they happen after a fixed number of rows. Squares are those of the gradients
of single rows, summed while the rows pass by, so that no row is read twice: each with the parameters
before its own step, without dropout.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import steps
from longmem_jax.lifelong.chunks import split
from longmem_jax.lifelong.learner import Learner, LearnerState, Method, Metrics
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows, one
from longmem_jax.problems import at_least, between
from longmem_jax.training.step import keep_finite

# No published values for these streams: gamma and lambda are tuned.
SETTINGS: dict[str, Any] = dict(
    every=10_000,  # rows from one update of F* and theta* to the next
    gamma=0.95,  # what is left of the old F* at an update
    penalty=1_000.0,  # lambda
    chunk=4,  # rows whose gradients exist side by side; does not change the result
)


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.online_ewc`."""
    wrong = at_least(settings, 1, 'every', 'chunk') + at_least(settings, 0, 'penalty')
    return wrong + between(settings, 0, 1, 'gamma')


class Springs(flax.struct.PyTreeNode):
    """What online EWC keeps; trees have the structure of the parameters.

    Attributes:
      importance: F*, 0 before the first update.
      center: theta*.
      squares: sum of the squared gradients of the rows since the last update.
      rows: int32 scalar, how many these are.
    """

    importance: Any
    center: Any
    squares: Any
    rows: jax.Array


def start(params: Any) -> Springs:
    """Before the first row."""
    importance, squares = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    center = jax.tree.map(jnp.copy, params)
    return Springs(importance, center, squares, jnp.zeros((), jnp.int32))


class Penalty(NamedTuple):
    """`lambda / 2 sum F* (theta - theta*)^2`, a scalar, and its gradient."""

    value: jax.Array
    gradient: Any


def penalty(springs: Springs, params: Any, weight: float) -> Penalty:
    """The penalty of parameters; `weight` is lambda."""

    def half(params: Any) -> jax.Array:
        parts = jax.tree.map(
            lambda f, now, then: (f * jnp.square(now - then)).sum(),
            springs.importance, params, springs.center,
        )  # fmt: skip
        return 0.5 * weight * sum(jax.tree.leaves(parts), jnp.zeros(()))

    return Penalty(*jax.value_and_grad(half)(params))


def squared_gradients(network: Network, params: Any, batch: steps.Batch, chunk: int) -> Any:
    """`sum_x (grad log p(y | x))^2` over the rows of a batch that are there, row by row.

    The gradients of `chunk` rows exist side by side.
    """
    size = min(chunk, len(batch.there))
    rows, there = split((batch.rows, batch.there), size)
    filled = jnp.arange(there.size).reshape(there.shape) < len(batch.there)

    def of_row(row: Rows, there: jax.Array) -> Any:
        gradient = jax.grad(lambda params: network.loss(params, one(row), there[None]))(params)
        return jax.tree.map(jnp.square, gradient)

    def add(total: Any, part: Any) -> tuple[Any, None]:
        squares = jax.vmap(of_row)(*part)
        return jax.tree.map(lambda all, new: all + new.sum(axis=0), total, squares), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, zeros, (rows, there & filled))[0]


def consolidate(springs: Springs, params: Any, gamma: float) -> Springs:
    """F* and theta* after an update, at which the sums begin again."""
    count = jnp.maximum(springs.rows, 1)
    importance = jax.tree.map(
        lambda old, squares: gamma * old + squares / count, springs.importance, springs.squares
    )
    zeros = jax.tree.map(jnp.zeros_like, springs.squares)
    return Springs(importance, params, zeros, jnp.zeros((), jnp.int32))


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`."""
    every = settings['every']

    def init(key: jax.Array) -> LearnerState:
        state = steps.new_state(key, network, optimizer)
        return state.replace(own=start(state.params))

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        rows = steps.next_batch(state, stream, batch)
        result = steps.gradient_of(network, state.params, rows, steps.keys_of(state).dropout)
        pull = penalty(state.own, state.params, settings['penalty'])
        gradient = jax.tree.map(jnp.add, result.gradient, pull.gradient)
        loss = result.loss + pull.value
        moved = steps.update(optimizer, state.params, state.optimizer, gradient, loss, rows.any)
        squares = squared_gradients(network, state.params, rows, settings['chunk'])
        summed = state.own.replace(
            squares=jax.tree.map(jnp.add, state.own.squares, squares),
            rows=state.own.rows + rows.there.sum().astype(jnp.int32),
        )
        finite = moved.finite & jnp.isfinite(optax.global_norm(squares))
        springs = keep_finite(finite, summed, state.own)
        after = state.position + rows.there.sum()
        due = (after // every > state.position // every) & (springs.rows > 0)
        springs = keep_finite(due, consolidate(springs, moved.params, settings['gamma']), springs)
        state, metrics = steps.after(network, state, rows, result, moved, own=springs)
        return state, metrics | {'penalty': pull.value}

    def schedule(num_rows: int) -> list[str]:
        if num_rows < every:
            raise UsageError(
                f'config.lifelong.online_ewc.every = {every}: nothing is consolidated in a stream of '
                f'{num_rows} rows; choose at most {num_rows}.'
            )
        return [
            steps.schedule_line(num_rows, batch),
            f'F* and theta* are updated once per {every} rows, since tasks are not known: '
            f'{num_rows // every} times.',
        ]

    return Learner(init, observe, steps.as_learned(network, batch), batch, schedule)


METHOD = Method(SETTINGS, check, make)
