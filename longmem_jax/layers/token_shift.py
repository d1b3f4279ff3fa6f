"""A view of the last few tokens before queries, keys and values are made, for linear attention.

Features such as elu + 1 cannot be sharp: over 64 unit keys the largest weight of a query is about 1.4
times the mean, where softmax reaches 8 times. So such a layer cannot single out the token before, and a
small model of bytes does no better than a table of byte pairs.
The models of the papers have no shift: they read words, with many layers.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings

# The number of earlier vectors that each kind sees.
EARLIER = {'none': 0, 'half': 1, 'convolution': 3}


class TokenShift(nn.Module):
    """Mixes every vector with those just before it.

    The earlier vectors are an explicit state, so that a sequence may be cut anywhere. Before the start
    of a document there are zeros, as in a padded convolution.

    Attributes:
      settings: sizes of the model.
      kind: 'none'; 'half', the first half of the channels comes from the token before (no parameters);
        'convolution', a causal convolution per channel over 4 tokens, without a bias.
    """

    settings: ModelSettings
    kind: str

    def setup(self):
        if self.kind == 'convolution':
            width = EARLIER[self.kind] + 1
            bound = width**-0.5

            def uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
                return jax.random.uniform(key, shape, dtype, -bound, bound)

            init = nn.with_logical_partitioning(uniform, (None, 'embed'))
            self.kernel = self.param('kernel', init, (width, self.settings.d_model))

    def initial_state(self, batch_size: int) -> jax.Array | None:
        """Zeros [batch_size, earlier, d_model] of the compute dtype; None where nothing is kept."""
        earlier = EARLIER[self.kind]
        if not earlier:
            return None
        return jnp.zeros((batch_size, earlier, self.settings.d_model), self.settings.dtype)

    def __call__(
        self, x: jax.Array, recent: jax.Array | None, count: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Mixes the next vectors of a sequence.

        Args:
          x: [batch, n, d_model].
          recent: the vectors just before them, as returned; at first `initial_state`.
          count: int32 [batch], the first `count` vectors of `x` are tokens, the others padding.

        Returns:
          Mixed vectors, like `x`, and the vectors just before the next ones.
        """
        earlier = EARLIER[self.kind]
        if not earlier:
            return x, recent
        joined = jnp.concatenate([recent.astype(x.dtype), x], axis=1)
        if self.kind == 'half':
            half = x.shape[2] // 2
            mixed = jnp.concatenate([joined[:, :-1, :half], x[..., half:]], axis=2)
        else:
            kernel = self.kernel.astype(x.dtype)
            mixed = sum(
                kernel[i][None, None] * joined[:, i : i + x.shape[1]] for i in range(earlier + 1)
            )

        def last(row: jax.Array, count: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(row, count, earlier, 0)

        return mixed, jax.vmap(last)(joined, count).astype(recent.dtype)
