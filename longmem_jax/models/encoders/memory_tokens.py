"""Encoders with memory tokens: MemTransformer, MemCtrl, MemBottleneck (Burtsev et al., 2020).

Learned vectors stand before the sequence and are returned with it, for a decoder to attend to. Let
M be those of a layer and X the sequence:

  none         X <- sub(X, X): no memory tokens, an ordinary Transformer
  plain        [M; X] <- sub([M; X], [M; X])
  ctrl         M <- sub_memory(M, [M; X]) and X <- sub(X, [M; X]), both from the old M and X
  bottleneck   M <- sub_memory(M, [M; X]), then X <- sub(X, M): what X learns passes through M

where sub(A, B) is attention from A to B and a feed-forward layer (`EncoderBlock`).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.layers.norms import Norm
from longmem_jax.models.encoders.block import EncoderBlock

VARIANTS = ('none', 'plain', 'ctrl', 'bottleneck')


class MemoryEncoder(nn.Module):
    """A stack of encoder layers with memory tokens.

    Attributes:
      variant: one of `VARIANTS`.
      num_tokens: memory tokens; 0 for 'none'.
      num_layers: layers.
      shared_layers: all layers have the same parameters.
      final_norm: norm after the last layer, of a pre-norm model.
      std: of the memory tokens' initialisation.
      settings, norm, pre_norm, residual_dropout, dense: see `EncoderBlock`.
    """

    settings: ModelSettings
    norm: str
    pre_norm: bool
    residual_dropout: float
    dense: Any
    variant: str
    num_tokens: int
    num_layers: int
    shared_layers: bool
    final_norm: bool
    std: float

    def setup(self):
        def stack(name):
            one = dict(
                settings=self.settings,
                norm=self.norm,
                pre_norm=self.pre_norm,
                residual_dropout=self.residual_dropout,
                dense=self.dense,
                bias=True,
            )
            if self.shared_layers:
                return [EncoderBlock(**one, name=name)] * self.num_layers
            return [EncoderBlock(**one, name=f'{name}_{i}') for i in range(self.num_layers)]

        self.sequence = stack('sequence')
        self.memory = stack('memory') if self.variant in ('ctrl', 'bottleneck') else None
        self.last = Norm(self.norm, self.settings.norm_epsilon) if self.final_norm else None
        if self.variant != 'none':
            init = nn.with_logical_partitioning(nn.initializers.normal(self.std), (None, 'embed'))
            self.tokens = self.param('tokens', init, (self.num_tokens, self.settings.d_model))

    def layers(self, x: jax.Array, valid: jax.Array, *, train: bool):
        """Memory and sequence after every layer.

        Args:
          x: [batch, n, d_model].
          valid: bool [batch, n].
          train: dropout on or off.

        Yields:
          memory [batch, num_tokens, d_model] and sequence [batch, n, d_model].
        """
        shape = (x.shape[0], self.num_tokens, self.settings.d_model)
        memory = jnp.zeros(shape, x.dtype)
        if self.variant != 'none':
            memory = jnp.broadcast_to(self.tokens[None].astype(x.dtype), shape)
        here = jnp.ones(shape[:2], bool)
        all_valid = jnp.concatenate([here, valid], axis=1)
        for i in range(self.num_layers):
            both = jnp.concatenate([memory, x], axis=1)
            if self.variant in ('none', 'plain'):
                both = self.sequence[i](both, both, all_valid, train=train)
                memory, x = both[:, : self.num_tokens], both[:, self.num_tokens :]
            elif self.variant == 'ctrl':
                memory = self.memory[i](memory, both, all_valid, train=train)
                x = self.sequence[i](x, both, all_valid, train=train)
            else:
                memory = self.memory[i](memory, both, all_valid, train=train)
                x = self.sequence[i](x, memory, here, train=train)
            yield memory, x

    def __call__(
        self, x: jax.Array, valid: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """[memory; sequence] of the last layer, [batch, num_tokens + n, d_model], and what of it
        counts, bool [batch, num_tokens + n]; arguments as in `layers`."""
        *_, (memory, x) = self.layers(x, valid, train=train)
        both = jnp.concatenate([memory, x], axis=1)
        here = jnp.ones(memory.shape[:2], bool)
        both = both if self.last is None else self.last(both)
        return both, jnp.concatenate([here, valid], axis=1)
