"""Sparse experience replay: REPLAY of de Masson d'Autume et al. (2019) and Holla et al. (2020).

Each batch of the stream makes a step. After every R_I rows, r R_I rows are drawn from the memory,
uniformly and with replacement, and make a step of their own. A batch is written after its step.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from longmem_jax.lifelong import episodic, replays, selection, steps
from longmem_jax.lifelong import schedule as schedules
from longmem_jax.lifelong.learner import Learner, LearnerState, Method, Metrics
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.problems import at_least, between

SETTINGS: dict[str, Any] = dict(
    replay_every=9_600,  # R_I, rows of the stream from one replay to the next
    replay_rate=0.01,  # r, rows replayed per row of the stream
    released=False,  # True: the sum of the gradients of S batches, see `released`
    clip=0.0,  # global norm of the gradient of a replay, 0 = not clipped
    write_rate=1.0,  # share of the rows that is stored
    capacity=575_000,  # rows that the memory holds, the oldest are overwritten; 0 = no memory
)


def released() -> dict[str, Any]:
    """Settings with which the released code of Holla et al. (2020) agrees; the paper's are the default.

    It adds the gradients of S = int(R_I r / b) batches where the paper has one batch of floor(r R_I)
    rows, clips them (at 10 for relations), and gives a smaller last batch a schedule of its own.
    """
    return dict(released=True, clip=25.0)


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.replay`."""
    wrong = schedules.check(settings['replay_every'], settings['replay_rate'])
    wrong += at_least(settings, 0, 'clip', 'capacity')
    return wrong + between(settings, 0, 1, 'write_rate')


def replay_gradient(
    network: Network, params: Any, stream: Rows, reads: jax.Array, key: jax.Array | None
) -> tuple[jax.Array, Any]:
    """The sum over S batches, row numbers int32 [S, rows], of the gradients of their mean losses.

    Returns losses float32 [S], and the gradient.
    """

    def add(total: Any, numbers_key: Any) -> tuple[Any, jax.Array]:
        numbers, key = numbers_key
        result = steps.gradient_of(network, params, steps.batch_of(stream, numbers), key)
        return jax.tree.map(jnp.add, total, result.gradient), result.loss

    keys = None if key is None else jax.random.split(key, len(reads))
    zeros = jax.tree.map(jnp.zeros_like, params)
    gradient, losses = jax.lax.scan(add, zeros, (reads, keys))
    return losses, gradient


def clipped(gradient: Any, limit: float) -> Any:
    """The gradient, scaled down to the global norm `limit` where it is longer; 0 = as it is."""
    if not limit:
        return gradient
    return optax.clip_by_global_norm(limit).update(gradient, optax.EmptyState())[0]


def replay_step(
    network: Network,
    optimizer: optax.GradientTransformation,
    moved: steps.Update,
    stream: Rows,
    reads: jax.Array,
    clip: float,
    key: jax.Array | None,
) -> tuple[steps.Update, jax.Array, Any]:
    """A step on rows of the memory, after one on the stream (`moved`), by the same optimizer.

    Returns the parameters after it, losses float32 [S], and the gradient that was applied.
    """
    losses, gradient = replay_gradient(network, moved.params, stream, reads, key)
    gradient = clipped(gradient, clip)
    after = steps.update(optimizer, moved.params, moved.optimizer, gradient, losses.sum())
    # The norm that is reported is that of the stream's gradient.
    after = after._replace(finite=after.finite & moved.finite, norm=moved.norm)
    return after, losses, gradient


def learn(
    network: Network,
    settings: Any,
    optimizer: optax.GradientTransformation,
    plan: replays.Plan | None,
    size: int,
    state: LearnerState,
    stream: Rows,
) -> tuple[steps.Batch, steps.Gradient, steps.Update, jax.Array]:
    """The next batch of the stream and its step, and a replay where `plan` has one due.

    Writes nothing. Returns the batch, its gradient, the parameters after both steps, and the number
    of rows replayed.
    """
    keys = steps.keys_of(state)
    batch = steps.next_batch(state, stream, size)
    result = steps.gradient_of(network, state.params, batch, keys.dropout)
    moved = steps.update(
        optimizer, state.params, state.optimizer, result.gradient, result.loss, batch.any
    )
    if plan is None:
        return batch, result, moved, jnp.zeros((), jnp.int32)

    def again(reads: jax.Array, moved: steps.Update) -> steps.Update:
        return replay_step(
            network, optimizer, moved, stream, reads, settings['clip'], keys.read_dropout
        )[0]

    moved, replayed = replays.if_due(plan, state, len(stream), size, keys.read, again, moved)
    return batch, result, moved, replayed


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`.

    Raises:
      UsageError: nothing would be replayed.
    """
    sparse = schedules.Sparse(settings['replay_every'], settings['replay_rate'])
    plan = replays.plan(sparse, batch, settings['released'])

    def init(key: jax.Array) -> LearnerState:
        memory = episodic.empty(settings['capacity'])
        return steps.new_state(key, network, optimizer).replace(memory=memory)

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        rows, result, moved, replayed = learn(
            network, settings, optimizer, plan, batch, state, stream
        )
        memory = selection.write_any(state, rows, moved.finite, settings['write_rate'])
        state, metrics = steps.after(network, state, rows, result, moved, memory=memory)
        return state, metrics | {'replayed': replayed, 'stored': memory.size}

    def schedule(num_rows: int) -> list[str]:
        return schedules.stream_lines(sparse, batch, math.prod(plan.shape), num_rows)

    return Learner(init, observe, steps.as_learned(network, batch), batch, schedule)


METHOD = Method(SETTINGS, check, make)
