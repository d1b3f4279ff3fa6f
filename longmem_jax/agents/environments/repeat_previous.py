"""Repeat Previous: which symbol was shown `back` steps ago?

Every step shows a symbol and asks for an earlier one. An agent needs exactly the last `back` symbols at
all times, so the task tells memories apart by how much they hold, not by what they choose to hold.

The task is the one of POPGym (Morad et al., 2023) with independent uniform symbols in place of the suits
of shuffled decks, so that nothing can be learned from what was dealt; rewards and sizes are POPGym's
(easy: 4 back of 52 steps, medium: 32 of 104, hard: 64 of 156).
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.environments.interface import Box, Environment, Moved, endless
from longmem_jax.problems import defaults_and_rules, of_section

NAME = 'repeat_previous'
DEFAULTS, FIELDS = defaults_and_rules(
    symbols=(4, (2, 10**4)),
    back=(4, (1, 10**5)),  # steps between a symbol and its question
    steps=(52, (2, 10**6)),  # of every episode
)


class State(flax.struct.PyTreeNode):
    """One episode.

    Attributes:
      shown: int32 [back + 1], the symbol in view and those before it, the newest first.
      right: int32 [], right answers.
      time: int32 [], steps taken.
    """

    shown: jax.Array
    right: jax.Array
    time: jax.Array


def check(fields: Mapping[str, Any]) -> list[str]:
    """Problems of the fields; `FIELDS` lists what is allowed."""
    problems = of_section(fields, FIELDS)
    if not problems and fields['steps'] <= fields['back']:
        problems.append(
            f'steps = {fields["steps"]}: must be above back = {fields["back"]}, or nothing is asked'
        )
    return problems


def start(key: jax.Array, symbols: int, back: int) -> State:
    """An episode with its first symbol."""
    shown = jnp.zeros(back + 1, jnp.int32).at[0].set(jax.random.randint(key, (), 0, symbols))
    return State(shown, jnp.int32(0), jnp.int32(0))


def move(
    key: jax.Array, state: State, action: jax.Array, symbols: int, back: int, steps: int
) -> Moved:
    """Answers, and shows the next symbol.

    The reward is 1 / (steps - back) for a right answer and minus that for a wrong one; nothing is
    asked in the first `back` steps. So the rewards of an episode add up to a number in [-1, 1].
    """
    asked = state.time >= back
    right = action == state.shown[back]
    reward = jnp.where(asked, jnp.where(right, 1.0, -1.0) / (steps - back), 0.0)
    symbol = jax.random.randint(key, (1,), 0, symbols)
    state = State(
        jnp.concatenate([symbol, state.shown[:-1]]),
        state.right + (asked & right).astype(jnp.int32),
        state.time + 1,
    )
    measures = {'right': (state.right / (steps - back)).astype(jnp.float32)}
    over = state.time >= steps
    return Moved(state, reward.astype(jnp.float32), over, jnp.zeros_like(over), measures)


def build(symbols: int = 4, back: int = 4, steps: int = 52) -> Environment:
    """The environment; the defaults are those of POPGym's easy task."""
    return endless(
        name=NAME,
        num_actions=symbols,
        space=Box(0, 1, (symbols,), jnp.bool_),
        longest=steps,
        shortest=steps,
        start=lambda key: start(key, symbols, back),
        move=lambda key, state, action: move(key, state, action, symbols, back, steps),
        observe=lambda state: jnp.arange(symbols) == state.shown[0],
    )
