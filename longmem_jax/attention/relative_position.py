"""The position schemes of self-attention with one interface: positions of keys relative to queries.

All of them depend on distances only, so that a vector can be read from a memory many times.
Absolute positions, added to embeddings, are in `layers/embedding.py`.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.attention.rules import RelativeTable
from longmem_jax.contract import Fields, ModelSettings
from longmem_jax.layers import initializers, positions
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.projections import HeadsIn
from longmem_jax.layers.switching import as_function

POSITIONS = (
    'transformer_xl',
    'learned_relative',
    'rotary',
    'alibi',
    'alibi_beyond',
    't5',
    'none',
)
T5_BUCKETS, T5_DISTANCE = 32, 128


class RelativeBiases(nn.Module):
    """`u` and `v` of Transformer-XL (Sec. 3.3): global content and position biases.

    Attributes:
      settings: sizes of the model.
    """

    settings: ModelSettings

    def setup(self) -> None:
        shape = (self.settings.num_heads, self.settings.head_dim)
        init = initializers.with_axes(
            nn.initializers.normal(self.settings.init_std), ('heads', 'head_dim')
        )
        self.content = self.param('content', init, shape)
        self.position = self.param('position', init, shape)

    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Both biases, float32 [heads, head_dim]."""
        return self.content, self.position


class RelativePosition(nn.Module):
    """One position scheme with its parameters.

    Attributes:
      settings: sizes of the model.
      shared: `RelativeBiases` shared by the layers; None = the layer has its own.
      kind: one of `POSITIONS`.
      num_distances: distances 0 .. num_distances - 1 can occur.
      clamp_length: larger distances are encoded as this one; 0 = no limit.
    """

    settings: ModelSettings
    shared: Any
    kind: str
    num_distances: int
    clamp_length: int

    def setup(self) -> None:
        settings = self.settings
        if self.kind == 'transformer_xl':
            self.biases = self.shared if self.shared is not None else RelativeBiases(settings)
            self.project = HeadsIn(
                num_heads=settings.num_heads,
                head_dim=settings.head_dim,
                dtype=settings.dtype,
                kernel_init=initializers.kernel(settings),
            )
            self.drop = Dropout(settings.dropout)
        if self.kind == 'learned_relative':
            init = initializers.with_axes(
                nn.initializers.normal(settings.init_std), ('heads', 'distance', 'head_dim')
            )
            shape = (settings.num_heads, self._num_encoded(), settings.head_dim)
            self.table = self.param('table', init, shape)
        if self.kind == 't5':
            init = initializers.with_axes(
                nn.initializers.normal(settings.init_std), ('heads', 'distance')
            )
            self.buckets = self.param('buckets', init, (settings.num_heads, T5_BUCKETS))

    def _num_encoded(self) -> int:
        """Number of distinct distances: all that occur, or 0 .. `clamp_length`."""
        if not self.clamp_length:
            return self.num_distances
        return min(self.clamp_length + 1, self.num_distances)

    def _rotate(self, x: jax.Array, start: int | jax.Array, *, back: bool = False) -> jax.Array:
        """Rotary positions start, start + 1, ... of `x` [batch, heads, n, head_dim]."""
        settings = self.settings
        width = positions.rotated_width(settings.head_dim, settings.rotary_share)
        frequencies = positions.scaled_frequencies(
            positions.rotary_frequencies(width, settings.rotary_base),
            settings.rotary_base,
            scaling=settings.rotary_scaling,
            factor=settings.rotary_factor,
            original=settings.rotary_original,
            bands=settings.rotary_bands,
            factors=settings.rotary_factors,
        )
        if back:
            return positions.rotary(x, start, -frequencies, 1.0 / settings.rotary_gain)
        return positions.rotary(x, start, frequencies, settings.rotary_gain)

    def apply_to_keys(self, keys: jax.Array, start: int | jax.Array) -> jax.Array:
        """Gives keys [batch, heads, n, head_dim] the positions start, start + 1, ... (rotary)."""
        if self.kind != 'rotary':
            return keys
        return self._rotate(keys, start)

    def remove_from_keys(self, keys: jax.Array, start: int | jax.Array) -> jax.Array:
        """The keys that `apply_to_keys` gave these positions, but for rounding."""
        if self.kind != 'rotary':
            return keys
        return self._rotate(keys, start, back=True)

    def apply_to_queries(
        self, queries: jax.Array, offset: int | jax.Array, num_keys: int, *, train: bool
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Gives queries their positions, and returns the scores by distance that `attend` adds.

        Args:
          queries: [batch, heads, n, head_dim]; query i has key index `offset + i`.
          offset: int, or int32 [batch].
          num_keys: number of keys passed to `attend`.
          train: turns dropout of the position embeddings (Transformer-XL) on.

        Returns:
          Queries, and a dict with the field `distance_bias` or `relative` of `Rules`, or an empty one.
        """
        if self.kind == 'transformer_xl':
            content, position = (
                bias.astype(queries.dtype)[None, :, None, :] for bias in self.biases()
            )
            waves = jnp.asarray(
                positions.sinusoids(
                    positions.clamped(num_keys, self.clamp_length), self.settings.d_model
                ),
                queries.dtype,
            )
            waves = self.drop(waves[None], deterministic=not train)
            moved = queries + position
            if not isinstance(offset, int) and math.prod(queries.shape[:3]) < waves.shape[2]:
                # For the few queries of a stream: (W q) . wave costs less than q . (W wave).
                _, variables = as_function(self.project)
                kernel = nn.unbox(variables)['params']['kernel'].astype(queries.dtype)
                moved = jnp.einsum('bhqd,whd->bhqw', moved, kernel)
                return queries + content, {'relative': RelativeTable(moved, waves)}
            encoded = self.project(waves)[0]
            return queries + content, {'relative': RelativeTable(moved, encoded)}
        if self.kind == 'learned_relative':
            encoded = self.table[:, : min(self._num_encoded(), num_keys)].astype(queries.dtype)
            return queries, {'relative': RelativeTable(queries, encoded)}
        if self.kind == 'rotary':
            return self._rotate(queries, offset), {}
        if self.kind in ('alibi', 'alibi_beyond'):
            slopes = positions.alibi(self.settings.num_heads, num_keys)
            if self.kind == 'alibi_beyond':
                # Nothing within a segment, where positions are in the embeddings.
                beyond = np.arange(num_keys) - (self.settings.segment_length - 1)
                slopes = slopes[:, np.maximum(beyond, 0)]
            bias = jnp.asarray(slopes)
        elif self.kind == 't5':
            bias = positions.t5_table(self.buckets, num_keys, T5_DISTANCE)
        else:
            return queries, {}
        return queries, {'distance_bias': bias}


def shared_biases(fields: Fields) -> type | None:
    """`LayerType.shared` of a layer with Transformer-XL's positions: biases, if layers share them."""
    shares = fields.get('share_biases', True) and fields['position'] == 'transformer_xl'
    return RelativeBiases if shares else None
