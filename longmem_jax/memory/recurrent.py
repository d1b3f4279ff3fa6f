"""Streaming for memories that are written token after token: their state is also their cache."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.segment import State


class Recurrent(nn.Module):
    """`open_segment`, `extend` and `close_segment` of a memory without a cache of its own.

    A memory that derives from it has `normalize`, `initial_state` and `__call__` as every
    `MemoryLayer`, and besides:

      carry: bool, whether the state goes on into the next segment. If not, every segment begins
        with the initial state, and the state of the document never changes.
      read: reads and writes tokens.
    """

    def read(
        self,
        x: jax.Array,
        state: Any,
        counted: jax.Array,
        *,
        train: bool = False,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Reads and writes token after token.

        Args:
          x: [batch, n, d_model], normalised.
          state: before the first token.
          counted: bool [batch, n]; the other tokens are padding and not written.
          train: dropout on or off.
          key: of the segment in training; None otherwise.

        Returns:
          y like `x`, and the state after the last token.
        """
        raise NotImplementedError

    def begin(self, state: State, batch_size: int) -> State:
        """The state that a segment begins with."""
        return state if self.carry else self.initial_state(batch_size)

    def open_segment(self, state: State, batch_size: int) -> State:
        """The state that the segment begins with."""
        return self.begin(state, batch_size)

    def extend(self, x: jax.Array, cache: State, index: jax.Array) -> tuple[jax.Array, State]:
        """Reads and writes tokens `index` .. of the open segment; see `MemoryLayer`."""
        return self.read(self.normalize(x), cache, jnp.ones(x.shape[:2], bool))

    def close_segment(self, state: State, cache: State, count: jax.Array) -> State:
        """The state with the tokens of the open segment, which are in the cache already."""
        return cache if self.carry else state
