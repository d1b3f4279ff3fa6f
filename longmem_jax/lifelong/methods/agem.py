"""A-GEM: gradients that would raise the loss on the memory are projected (Chaudhry et al., 2019).

The original compares every batch of the stream with a batch of the memory. Holla et al. (2020) do so
once per 9,600 rows and train plainly in between; that is the default here, `every=1` is the original.
The memory has no task identities. A batch is written after its step.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import episodic, replays, selection, steps
from longmem_jax.lifelong import schedule as schedules
from longmem_jax.lifelong.learner import Learner, LearnerState, Method, Metrics
from longmem_jax.lifelong.methods.replay import replay_gradient
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.problems import at_least, between

SETTINGS: dict[str, Any] = dict(
    every=9_600,  # rows of the stream from one projection to the next; 1 = every batch
    reference_rows=96,  # rows of the memory that a gradient is compared with
    released=False,  # True: the reference is the sum of the gradients of batches, see `released`
    write_rate=1.0,  # share of the rows that is stored
    capacity=575_000,  # rows that the memory holds, the oldest are overwritten; 0 = no memory
)


def released() -> dict[str, Any]:
    """Settings with which the released code of Holla et al. (2020) agrees.

    Its reference is the sum of the gradients of S = int(R_I r / b) batches, which projects as their
    mean would; a smaller last batch has a schedule of its own.
    """
    return dict(released=True)


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.agem`."""
    wrong = at_least(settings, 1, 'every', 'reference_rows') + at_least(settings, 0, 'capacity')
    return wrong + between(settings, 0, 1, 'write_rate')


def sparse_of(every: int, rows: int) -> schedules.Sparse:
    """`rows` rows per `every` rows of the stream."""
    rate = rows / every
    # Rounded up where it must be, so that whole numbers of rows and batches come out of it.
    return schedules.Sparse(every, rate if rate * every >= rows else math.nextafter(rate, math.inf))


class Projection(NamedTuple):
    """A projected gradient.

    Attributes:
      gradient: what is applied.
      dot: product with the reference before, float32 scalar.
    """

    gradient: Any
    dot: jax.Array


def product(one: Any, other: Any) -> jax.Array:
    """The inner product of two trees, all leaves flattened together."""
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), one, other)), jnp.zeros(()))


def project(gradient: Any, reference: Any) -> Projection:
    """`g - (g . r / r . r) r` if `g . r < 0`, else g (Chaudhry et al., Eq. 11)."""
    dot, squared = product(gradient, reference), product(reference, reference)
    # NaN is not at least 0: with such a reference the step is skipped.
    share = jnp.where(dot >= 0, 0, dot / jnp.where(squared == 0, 1, squared))
    projected = jax.tree.map(lambda g, r: g - share * r, gradient, reference)
    return Projection(projected, dot)


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`."""
    # An interval within a batch is a batch: no more can be had.
    every = max(settings['every'], batch)
    sparse = sparse_of(every, settings['reference_rows'])
    plan = replays.plan(sparse, batch, settings['released'])

    def init(key: jax.Array) -> LearnerState:
        memory = episodic.empty(settings['capacity'])
        return steps.new_state(key, network, optimizer).replace(memory=memory)

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        keys = steps.keys_of(state)
        rows = steps.next_batch(state, stream, batch)
        result = steps.gradient_of(network, state.params, rows, keys.dropout)

        def compare(reads: jax.Array, unchanged: Any) -> Any:
            gradient, _ = unchanged
            _, reference = replay_gradient(network, state.params, stream, reads, keys.read_dropout)
            found = project(gradient, reference)
            return found.gradient, (found.dot < 0).astype(jnp.int32)

        unprojected = (result.gradient, jnp.zeros((), jnp.int32))
        (gradient, projected), read = replays.if_due(
            plan, state, len(stream), batch, keys.read, compare, unprojected
        )
        moved = steps.update(
            optimizer, state.params, state.optimizer, gradient, result.loss, rows.any
        )
        memory = selection.write_any(state, rows, moved.finite, settings['write_rate'])
        state, metrics = steps.after(network, state, rows, result, moved, memory=memory)
        return state, metrics | {'replayed': read, 'projected': projected, 'stored': memory.size}

    def schedule(num_rows: int) -> list[str]:
        count = schedules.stream_replays(sparse, batch, num_rows)
        if not count:
            raise UsageError(
                f'config.lifelong.agem.every = {every}: no gradient is projected in a stream of '
                f'{num_rows} rows; choose at most {num_rows}.'
            )
        return [
            f'The gradient of every batch number {plan.every} is compared with that of '
            f'{plan.shape[0] * plan.shape[1]} stored rows: {count} times in {num_rows} rows.'
        ]

    return Learner(init, observe, steps.as_learned(network, batch), batch, schedule)


METHOD = Method(SETTINGS, check, make)
