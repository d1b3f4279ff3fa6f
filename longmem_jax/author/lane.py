"""What the author's functions know of the lane, the row of the batch, whose tokens they see."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.segment import count_on


@dataclasses.dataclass
class Lane:
    """One lane while its tokens are read; made for one call of `inputs`.

    Attributes:
      before: int32 scalar, tokens of the document before these.
      count: int32 scalar, the first `count` vectors are tokens; those after them are padding.
      start: bool [n], a document begins with this token; None = with none.
      tails: name of a part to the vectors just before these, see `mixed`.
      train: training, in which draws and dropout are on.
      carried: name to values of these tokens that earlier layers handed on; see `hand_on`.
      logged: name to numbers by token, see `log`.
    """

    before: jax.Array
    count: jax.Array
    start: jax.Array | None
    tails: dict[str, jax.Array | None]
    train: bool
    carried: dict[str, jax.Array]
    logged: dict[str, jax.Array] = dataclasses.field(default_factory=dict)

    def positions(self, n: int) -> jax.Array:
        """Tokens of the document before each, int32 [n]; they stay at 2^31 - 1."""
        number = jnp.arange(n, dtype=jnp.int32)
        carried = count_on(self.before, number)
        if self.start is None:
            return carried
        last = jax.lax.cummax(jnp.where(self.start, number, -1))
        return jnp.where(last < 0, carried, number - last)

    def mixed(self, part: Any, x: jax.Array) -> jax.Array:
        """`x` through a part that sees tokens before, a `TokenShift` or a `Convolution`.

        The vectors that it needs of earlier tokens are in the state of the layer.

        Args:
          part: an attribute of the memory, made in `parts`.
          x: [..., n, width].
        """
        tail = self.tails[part.name]
        start = None if self.start is None else self.start[None]
        y, new = part(x[None], None if tail is None else tail[None], self.count[None], start)
        self.tails = self.tails | {part.name: None if new is None else new[0]}
        return y[0]

    def hand_on(self, **values: jax.Array) -> None:
        """Values of these tokens for the recurrent memories of later blocks: their `carried`."""
        self.carried = self.carried | values

    def log(self, **numbers: jax.Array) -> None:
        """Numbers by token, [heads, n] or [n], for metrics (their means) and the microscope."""
        self.logged |= numbers
