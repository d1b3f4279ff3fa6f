"""Parameters and random directions of the feature maps of linear attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import feature_maps, initializers

FEATURES = ('elu', 'rfa', 't2r')


class FeatureMap(nn.Module):
    """Features of queries and keys: parameters and random directions.

    Attributes:
      settings: sizes of the model.
      features, size, tau, random, seed, learned_scale: see `LinearAttention`.
    """

    settings: ModelSettings
    features: str
    size: int
    tau: float
    random: str
    seed: int
    learned_scale: bool

    def setup(self) -> None:
        settings, axes = self.settings, initializers.with_axes
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        shape = (settings.num_heads, self.size, settings.head_dim)
        if self.features == 'rfa':
            self.directions = feature_maps.random_matrices(self.seed, *shape, self.random)
        if self.features == 't2r':
            spread = nn.initializers.normal(settings.head_dim**-0.5)
            self.matrices = self.param('matrices', axes(spread, ('heads', None, 'head_dim')), shape)
            zeros = axes(nn.initializers.zeros, ('heads', None))
            self.offsets = self.param('offsets', zeros, shape[:2])
        if self.learned_scale and self.features != 'elu':
            ones = axes(nn.initializers.ones, ('heads', 'head_dim'))
            self.sigma = self.param('sigma', ones, (settings.num_heads, settings.head_dim))

    @property
    def width(self) -> int:
        """Number of features per head."""
        return {'elu': self.settings.head_dim, 'rfa': 2 * self.size, 't2r': self.size}[
            self.features
        ]

    def draw(self, train: bool) -> jax.Array | None:
        """New random directions of this layer, float32 [heads, size, head_dim]; None in evaluation."""
        if not train or self.features != 'rfa':
            return None
        # Linen folds the path of the module into the key, so that no two layers have the same.
        return feature_maps.draw_matrices(
            self.make_rng('memory'), self.directions.shape, self.random
        )

    def _map(self, x: jax.Array, drawn: jax.Array | None) -> jax.Array:
        x = x.astype(self.float32)
        if self.features == 'elu':
            return feature_maps.elu(x)
        if self.features == 't2r':
            matrices = self.matrices
        elif drawn is None:
            matrices = jnp.asarray(self.directions, jnp.float32)
        else:
            matrices = drawn
        if self.learned_scale:
            matrices = matrices * self.sigma[:, None]
        if self.features == 't2r':
            return feature_maps.learned(x, matrices, self.offsets, self.tau)
        return feature_maps.random_fourier(x, matrices, self.tau)

    def queries(self, x: jax.Array, drawn: jax.Array | None = None) -> jax.Array:
        """Features of queries, in float32 at least.

        Args:
          x: [..., heads, n, head_dim].
          drawn: directions to use instead of those of `seed`, as of `draw`.

        Returns:
          [..., heads, n, width].
        """
        if self.features == 't2r':
            x = x * jnp.asarray(self.settings.score_scale, x.dtype)
        return self._map(x, drawn)

    def keys(self, x: jax.Array, drawn: jax.Array | None = None) -> jax.Array:
        """Features of keys; arguments and result as in `queries`."""
        return self._map(x, drawn)
