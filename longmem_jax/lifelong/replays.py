"""When a learner that takes one step per batch reads its memory again, and in which batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.lifelong import episodic, schedule
from longmem_jax.lifelong.learner import LearnerState


class Plan(NamedTuple):
    """Replays of a method.

    Attributes:
      every: steps from one replay to the next; the first is at step `every`, counted from 1.
      shape: (S, rows): S batches, whose gradients are added.
      last: `(rows of the last batch, its step from 1) -> (S, rows)` of a replay after a last batch
        that is smaller, or None = no replay; None = as after the others.
    """

    every: int
    shape: tuple[int, int]
    last: Callable[[int, int], tuple[int, int] | None] | None


def plan(sparse: schedule.Sparse, batch: int, released: bool = False) -> Plan:
    """One batch of floor(r R_I) rows every R_I // b steps.

    Args:
      released: int(R_I r / b) batches of b rows instead, as the released code of Holla et al. has it;
        a smaller batch at the end of the stream has a schedule and a size of its own there.

    Raises:
      UsageError: nothing would be replayed, or `sparse.every` is less than a batch.
    """
    every = schedule.stream_steps(sparse, batch)
    if not released:
        return Plan(every, (1, schedule.rows(sparse)), None)

    def last(rows: int, step: int) -> tuple[int, int] | None:
        due = step % schedule.stream_steps(sparse, rows) == 0
        return (schedule.batches(sparse, rows), rows) if due else None

    return Plan(every, (schedule.batches(sparse, batch), batch), last)


def if_due(
    plan: Plan,
    state: LearnerState,
    num_rows: int,
    batch: int,
    key: jax.Array,
    replay: Callable[[jax.Array, Any], Any],
    unchanged: Any,
) -> tuple[Any, jax.Array]:
    """What `replay` makes of `unchanged`, where this step replays and the memory holds anything.

    Args:
      key: of the draws, uniform and with replacement.
      replay: `(row numbers int32 [S, rows], unchanged) -> like unchanged`.

    Returns:
      The pytree, and int32 scalar, rows replayed.
    """
    shapes, step = [plan.shape], state.step + 1
    index = jnp.where(step % plan.every == 0, 1, 0)
    rest, last_step = num_rows % batch, num_rows // batch + 1
    if rest and plan.last is not None:
        own = plan.last(rest, last_step)
        shapes += [own] if own else []
        index = jnp.where(step == last_step, len(shapes) if own else 0, index)

    def read(shape: tuple[int, int]) -> Callable[[Any], Any]:
        def do(tree: Any) -> Any:
            numbers, _ = episodic.draw(state.memory, key, shape)
            return replay(numbers, tree)

        return do

    index = jnp.where((state.memory.size > 0) & (state.position < num_rows), index, 0)
    result = jax.lax.switch(index, [lambda tree: tree, *map(read, shapes)], unchanged)
    counts = jnp.asarray([0, *(batches * rows for batches, rows in shapes)], jnp.int32)
    return result, counts[index]
