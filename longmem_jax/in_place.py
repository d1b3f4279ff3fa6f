"""Memories that are too large to be copied: how they are reset, and how a bad step is undone.

A training step with a copy of every memory, for the case that its loss is not finite, needs twice the
memory, and a reset that writes zeros passes all of it through the chip. Part of a state that implements
`InPlace` is reset by its counts and restored from the little that a step can overwrite. All other
leaves are selected as a whole.
"""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from longmem_jax.segment import Tree, select_lanes


@runtime_checkable
class InPlace(Protocol):
    """A part of a layer's state, a pytree, whose counts alone say which of its rows can be read.

    Whatever the other rows hold must never reach a result, even if it is not finite.
    """

    def reset(self, lanes: jax.Array) -> Any:
        """The initial state, as far as it can be read, in `lanes` (bool [batch])."""

    def keep(self, tokens: int) -> tuple[Any, Any]:
        """Prepares to undo the writing of up to `tokens` tokens per lane, resets included.

        Returns:
          The same part, to be read and written from now on: its counts wait for what was kept, so
          that nothing is overwritten before it is read. And what `restore` needs.
        """

    def restore(self, undo: jax.Array, kept: Any) -> Any:
        """What `keep` was called for, as far as it can be read, if `undo` (bool scalar)."""

    def readable(self) -> Any:
        """The same with zeros in the rows that cannot be read; leaves may have axes before [batch]."""


def is_in_place(part: Any) -> bool:
    """Whether a part of a state is not copied."""
    return isinstance(part, InPlace)


def reset_lanes(lanes: jax.Array, initial: Tree, state: Tree) -> Tree:
    """A model's state with the memories of some lanes reset.

    Args:
      lanes: bool [batch].
      initial: the model's initial state.
      state: memories of all lanes.
    """

    def select(initial: Any, state: Any) -> Any:
        return state.reset(lanes) if is_in_place(state) else select_lanes(lanes, initial, state)

    return jax.tree.map(select, initial, state, is_leaf=is_in_place)


def keep_state(state: Tree, tokens: int) -> tuple[Tree, Any]:
    """Prepares to undo a step.

    Args:
      state: memories before the step.
      tokens: most tokens that the step reads per lane, memory tokens included.

    Returns:
      The state that the step must read, so that nothing is overwritten before it is kept; and what
      `restore_state` needs.
    """
    parts, structure = jax.tree.flatten(state, is_leaf=is_in_place)
    pairs = [part.keep(tokens) if is_in_place(part) else (part, part) for part in parts]
    read = jax.tree.unflatten(structure, [part for part, _ in pairs])
    kept = jax.tree.unflatten(structure, [kept for _, kept in pairs])
    return jax.lax.optimization_barrier((read, kept))


def restore_state(finite: jax.Array, state: Tree, kept: Any) -> Tree:
    """The memories after a step if it was `finite` (bool scalar), else those given to `keep_state`."""

    def select(new: Any, old: Any) -> Any:
        return new.restore(~finite, old) if is_in_place(new) else jnp.where(finite, new, old)

    return jax.tree.map(select, state, kept, is_leaf=is_in_place)


def readable_state(state: Tree) -> Tree:
    """A state with zeros in the rows that cannot be read, to compare it or to hand it to others.

    Rows of earlier documents may still be there; they must not leave in a file.
    """
    return jax.tree.map(
        lambda part: part.readable() if is_in_place(part) else part, state, is_leaf=is_in_place
    )
