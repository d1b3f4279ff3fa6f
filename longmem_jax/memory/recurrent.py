"""Streaming for memories written token by token: their state is also their cache."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.segment import State


class Recurrent(nn.Module):
    """`open_segment`, `extend` and `close_segment` of a memory without a separate cache.

    A subclass has `normalize`, `initial_state` and `__call__` like every `MemoryLayer`, and also:

      carry: bool, whether the state carries over to the next segment. If not, every segment begins
        with the initial state, and the state of the document never changes.
      read: reads and writes tokens, see below.
    """

    def read(
        self,
        x: jax.Array,
        state: Any,
        counted: jax.Array,
        *,
        train: bool = False,
    ) -> tuple[jax.Array, Any]:
        """Reads and writes token by token.

        Args:
          x: [batch, n, d_model], normalised.
          state: the state before the first token.
          counted: bool [batch, n]; False = padding, not written.
          train: turns dropout and random draws on.

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

    def extend(
        self, x: jax.Array, cache: State, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, State]:
        """Reads and writes the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        counted = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < count[:, None]
        return self.read(self.normalize(x), cache, counted)

    def close_segment(self, state: State, cache: State, count: jax.Array) -> State:
        """The state after the segment: its tokens are already in the cache."""
        return cache if self.carry else state
