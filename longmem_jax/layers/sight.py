"""What the tokens of a chunk see of each other, for memories that are read and written in chunks."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True)
class Sight:
    """What the tokens of a chunk see of each other and of the state before the chunk.

    A token sees itself, and those before it in its document. Without starts all of it is constant.

    Attributes:
      pairs: bool [n, n], whether token i sees token j.
      before: float32 [n], 1 where token i sees the state before the chunk, else 0.
      at_end: float32 [n], 1 where token j is seen after the chunk, else 0.
    """

    pairs: jax.Array
    before: jax.Array
    at_end: jax.Array

    def shares(self, log_decay: jax.Array | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        """How much is left of everything, with one decay per token.

        Args:
          log_decay: [n], the log of what a token leaves of the state, at most 0; None = it leaves all.

        Returns:
          within [n, n], the share of token j's write that token i sees; before [n], that of the state
          before the chunk, whose last one is the share that the chunk leaves; at_end [n], the share of
          token j's write that is left after the chunk.
        """
        if log_decay is None:
            return self.pairs.astype(self.before.dtype), self.before, self.at_end
        total = jnp.cumsum(log_decay)
        # Masked before `exp`: what comes later would overflow.
        left = jnp.where(self.pairs, total[:, None] - total[None], -jnp.inf)
        within = jnp.exp(left)
        return within, self.before * jnp.exp(total), within[-1]


def sight(n: int, start: jax.Array | None, dtype: DTypeLike = jnp.float32) -> Sight:
    """The `Sight` of a chunk of n tokens; `start` is bool [n], None = no document begins in it."""
    causal, ones = jnp.tril(jnp.ones((n, n), bool)), jnp.ones((n,), dtype)
    if start is None:
        return Sight(causal, ones, ones)
    document = jnp.cumsum(start, dtype=jnp.int32)
    pairs = causal & (document[:, None] == document[None])
    return Sight(pairs, (document == 0).astype(dtype), (document == document[-1]).astype(dtype))
