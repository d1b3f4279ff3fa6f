"""Plain fine-tuning, one step per batch: the lower bound, ENC-DEC or SEQ of the papers.

On a shuffled union of the tasks, read once or for some epochs, it is the usual bound (MTL); on the rows
of one task, a single-task model. Which of them it is depends on the stream alone.
"""

from typing import Any

import jax
import optax

from longmem_jax.lifelong import steps
from longmem_jax.lifelong.learner import Learner, LearnerState, Method, Metrics
from longmem_jax.lifelong.methods.replay import learn
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows

SETTINGS: dict[str, Any] = {}


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.sequential`: it has no fields."""
    del settings
    return []


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`."""

    def init(key: jax.Array) -> LearnerState:
        return steps.new_state(key, network, optimizer)

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        rows, result, moved, _ = learn(network, settings, optimizer, None, batch, state, stream)
        return steps.after(network, state, rows, result, moved)

    def schedule(num_rows: int) -> list[str]:
        return [steps.schedule_line(num_rows, batch)]

    return Learner(init, observe, steps.as_learned(network, batch), batch, schedule)


METHOD = Method(SETTINGS, check, make)
