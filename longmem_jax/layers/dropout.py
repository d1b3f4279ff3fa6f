"""Dropout whose mask is drawn once: the draws of `flax.linen.Dropout`, bit for bit.

XLA for TPUs puts the generator, twenty rounds of threefry, into every product that reads what was
dropped, forwards and backwards, and draws it again for every tile. Behind the barrier the mask is
kept, a byte per number.
"""

import contextlib
from collections.abc import Iterator

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp


@contextlib.contextmanager
def asking_for_keys() -> Iterator[None]:
    """Adds to Flax's error about a missing key of `dropout` or `memory` what to give."""
    try:
        yield
    except flax.errors.InvalidRngError as error:
        for stream in ('dropout', 'memory'):
            if f'"{stream}"' in str(error):
                keys = (
                    "rngs={'dropout': key, 'memory': other_key}, in nnx Rngs(dropout=0, memory=1)"
                )
                error.args = (f'{error}: in training {stream!r} needs a key; give {keys}',)
        raise


class Dropout(nn.Module):
    """Sets a share of its input to zero, and divides the others by what is kept on average.

    Attributes:
      rate: that share, below 1.
    """

    rate: float

    def __call__(self, x: jax.Array, *, deterministic: bool) -> jax.Array:
        """Drops from `x`, by the random stream 'dropout'; `deterministic` gives `x`."""
        if deterministic or not self.rate:
            return x
        kept = 1.0 - self.rate
        mask = jax.random.bernoulli(self.make_rng('dropout'), kept, x.shape)
        mask = jax.lax.optimization_barrier(mask)
        return jnp.where(mask, x / kept, jnp.zeros_like(x))
