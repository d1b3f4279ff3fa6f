"""A layer of an encoder: attention, attention to slots if there are any, feed-forward layer."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.cross_attention import CrossAttention
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.feed_forward import Dense
from longmem_jax.layers.norms import Norm


class EncoderBlock(nn.Module):
    """Attention and feed-forward layer, each with a residual connection and a norm.

    Attributes:
      settings: model settings shared by all layers.
      dense: fields of the feed-forward layer.
      bias: biases on the projections of attention.
      reader_settings: sizes of a second attention, to slots, that follows the first; None = none.
    """

    settings: ModelSettings
    dense: Any
    bias: bool
    reader_settings: ModelSettings | None = None

    def setup(self) -> None:
        epsilon = self.settings.norm_epsilon
        self.attention_norm = Norm(self.settings.norm, epsilon)
        self.feed_forward_norm = Norm(self.settings.norm, epsilon)
        self.attention = self._attention(self.settings, self.attention_norm)
        if self.reader_settings:
            self.reader_norm = Norm(self.settings.norm, epsilon)
            self.reader = self._attention(self.reader_settings, self.reader_norm)
        self.feed_forward = Dense(
            settings=self.settings,
            normalize=self.feed_forward_norm if self.settings.pre_norm else identity,
            shared=None,
            **self.dense,
        )
        self.drop = Dropout(self.settings.residual_rate)

    def _attention(self, settings: ModelSettings, norm: Norm) -> CrossAttention:
        normalize = norm if self.settings.pre_norm else identity
        return CrossAttention(settings=settings, normalize=normalize, bias=self.bias)

    def _add(self, x: jax.Array, y: jax.Array, norm: Norm, train: bool) -> jax.Array:
        x = x + self.drop(y, deterministic=not train)
        return x if self.settings.pre_norm else norm(x)

    def __call__(
        self,
        x: jax.Array,
        others: jax.Array,
        valid: jax.Array,
        slots: jax.Array | None = None,
        *,
        train: bool,
    ) -> jax.Array:
        """Attends from `x` to `others`, which may be `x` itself, and to the slots.

        Args:
          x: [batch, n, d_model].
          others: [batch, m, d_model].
          valid: bool [batch, m], which of `others` may be attended to.
          slots: [batch, slots, d_model], of any float dtype, if it has a reader.
          train: dropout on or off.

        Returns:
          [batch, n, d_model].
        """
        others = self.attention_norm(others) if self.settings.pre_norm else others
        y = self.attention(x, self.attention.source(others, valid), train=train)
        x = self._add(x, y, self.attention_norm, train)
        if slots is not None:
            all_valid = jnp.ones(slots.shape[:2], bool)
            source = self.reader.source(slots.astype(x.dtype), all_valid)
            x = self._add(x, self.reader(x, source, train=train), self.reader_norm, train)
        y = self.feed_forward.mapped(x, train)
        return self._add(x, y, self.feed_forward_norm, train)
