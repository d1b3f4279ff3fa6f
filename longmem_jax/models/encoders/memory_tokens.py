"""Encoders with memory tokens: MemTransformer, MemCtrl, MemBottleneck (Burtsev et al., 2020).

Learned vectors are prepended to the sequence and returned with it, for a decoder to attend to. Let M
be those of a layer and X the sequence:

  none         X <- sub(X, X): no memory tokens, an ordinary Transformer
  plain        [M; X] <- sub([M; X], [M; X])
  ctrl         M <- sub_memory(M, [M; X]) and X <- sub(X, [M; X]), both from the old M and X
  bottleneck   M <- sub_memory(M, [M; X]), then X <- sub(X, M): what X learns passes through M

where sub(A, B) is attention from A to B and a feed-forward layer (`EncoderBlock`).
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.encoder_block import EncoderBlock
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.norms import Norm

VARIANTS = ('none', 'plain', 'ctrl', 'bottleneck')


class MemoryEncoder(nn.Module):
    """A stack of encoder layers with memory tokens.

    Attributes:
      variant: one of `VARIANTS`.
      num_tokens: memory tokens; 0 for 'none'.
      num_layers: layers.
      shared_layers: all layers have the same parameters.
      final_norm: norm after the last layer, of a pre-norm model.
      std: standard deviation of the initial memory tokens.
      settings, dense: see `EncoderBlock`.
    """

    settings: ModelSettings
    dense: Any
    variant: str
    num_tokens: int
    num_layers: int
    shared_layers: bool
    final_norm: bool
    std: float

    def setup(self) -> None:
        def stack(name: str) -> list[EncoderBlock]:
            fields: dict[str, Any] = dict(settings=self.settings, dense=self.dense, bias=True)
            if self.shared_layers:
                return [EncoderBlock(**fields, name=name)] * self.num_layers
            return [EncoderBlock(**fields, name=f'{name}_{i}') for i in range(self.num_layers)]

        self.sequence = stack('sequence')
        self.memory = stack('memory') if self.variant in ('ctrl', 'bottleneck') else []
        self.last = (
            Norm(self.settings.norm, self.settings.norm_epsilon) if self.final_norm else None
        )
        if self.variant != 'none':
            init = initializers.with_axes(nn.initializers.normal(self.std), (None, 'embed'))
            self.tokens = self.param('tokens', init, (self.num_tokens, self.settings.d_model))

    def layers(
        self, x: jax.Array, valid: jax.Array, *, train: bool
    ) -> Iterator[tuple[jax.Array, jax.Array]]:
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
        memory_valid = jnp.ones(shape[:2], bool)
        all_valid = jnp.concatenate([memory_valid, valid], axis=1)
        for i in range(self.num_layers):
            joined = jnp.concatenate([memory, x], axis=1)
            if self.variant in ('none', 'plain'):
                joined = self.sequence[i](joined, joined, all_valid, train=train)
                memory, x = joined[:, : self.num_tokens], joined[:, self.num_tokens :]
            elif self.variant == 'ctrl':
                memory = self.memory[i](memory, joined, all_valid, train=train)
                x = self.sequence[i](x, joined, all_valid, train=train)
            else:
                memory = self.memory[i](memory, joined, all_valid, train=train)
                x = self.sequence[i](x, memory, memory_valid, train=train)
            yield memory, x

    def __call__(
        self, x: jax.Array, valid: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Reads a sequence; arguments as in `layers`.

        Returns [memory; sequence] of the last layer, [batch, num_tokens + n, d_model], and which of
        its positions are valid, bool [batch, num_tokens + n].
        """
        *_, (memory, x) = self.layers(x, valid, train=train)
        joined = jnp.concatenate([memory, x], axis=1)
        memory_valid = jnp.ones(memory.shape[:2], bool)
        joined = joined if self.last is None else self.last(joined)
        return joined, jnp.concatenate([memory_valid, valid], axis=1)
