"""The slots of Memformer: reading, slot attention that writes, and forgetting (Wu et al., 2020).

Slots are unit vectors that all layers of an encoder read. After the last layer each slot attends to
itself and to the tokens, and to no other slot; the weight that stays on itself is the share it keeps. A
learned vector per slot is then added and the sum scaled to length one again: a slot that is never
refreshed drifts to the direction of this vector, where it is at the start of a document.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.layers.attention_rules import NEVER
from longmem_jax.layers.feature_maps import unit
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn
from longmem_jax.models.encoders.block import EncoderBlock


def write(
    slots: jax.Array,
    queries: jax.Array,
    slot_keys: jax.Array,
    token_keys: jax.Array,
    token_values: jax.Array,
    valid: jax.Array,
    temperature: float,
) -> tuple[jax.Array, jax.Array]:
    """Slot attention (paper, "memory slot attention").

    Args:
      slots: [batch, slots, width]; what a slot keeps of itself is not projected.
      queries, slot_keys: [batch, heads, slots, head_dim], of the slots.
      token_keys, token_values: [batch, heads, n, head_dim].
      valid: bool [batch, n].
      temperature: of the softmax; below 1 it sharpens the choice of a slot.

    Returns:
      New slots [batch, slots, width], and the weights [batch, heads, slots, 1 + n], that of the slot
      itself first.
    """
    batch, heads, num_slots, head_dim = queries.shape
    scale = jnp.asarray(head_dim**-0.5 / temperature, queries.dtype)
    self_scores = (queries * slot_keys).sum(axis=-1, keepdims=True)
    token_scores = jnp.einsum('bhkd,bhnd->bhkn', queries, token_keys)
    token_scores = jnp.where(
        valid[:, None, None], token_scores * scale, jnp.asarray(NEVER, token_scores.dtype)
    )
    weights = jax.nn.softmax(jnp.concatenate([self_scores * scale, token_scores], axis=-1), axis=-1)
    slot_heads = slots.reshape(batch, num_slots, heads, head_dim).swapaxes(1, 2)
    mixed = weights[..., :1] * slot_heads
    mixed = mixed + jnp.einsum('bhkn,bhnd->bhkd', weights[..., 1:], token_values)
    return mixed.swapaxes(1, 2).reshape(slots.shape), weights


def forget(slots: jax.Array, bias: jax.Array) -> jax.Array:
    """Biased memory normalisation (paper).

    Args:
      slots: [batch, slots, width].
      bias: [slots, width], added to the slots before they are scaled to length one.
    """
    return unit(slots + bias[None].astype(slots.dtype), 0.0)


class SlotWriter(nn.Module):
    """Projections of slot attention; no biases, one key projection for slots and tokens.

    Attributes:
      settings: model settings shared by all layers.
      temperature: of the softmax.
    """

    settings: ModelSettings
    temperature: float

    def setup(self):
        settings = self.settings
        heads = dict(
            num_heads=settings.num_heads,
            head_dim=settings.d_model // settings.num_heads,
            dtype=jnp.promote_types(settings.dtype, jnp.float32),
            kernel_init=nn.initializers.normal(settings.init_std),
        )
        self.query, self.key, self.value = (HeadsIn(**heads) for _ in range(3))

    def __call__(
        self, slots: jax.Array, encoded: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """New slots before forgetting, and the weights; see `write`.

        Args:
          slots: [batch, slots, d_model].
          encoded: [batch, n, d_model], the encoder's output.
          valid: bool [batch, n].
        """
        return write(
            slots,
            self.query(slots),
            self.key(slots),
            self.key(encoded),
            self.value(encoded),
            valid,
            self.temperature,
        )


class SlotEncoder(nn.Module):
    """Memformer's encoder: layers that read the slots, then the writer.

    Attributes:
      num_layers: layers.
      num_slots: slots, shared by all layers.
      num_summaries: learned vectors appended to the tokens, for the writer ("[CLS]"-like).
      temperature: of the writer's softmax.
      settings, norm, pre_norm, residual_dropout, dense: see `EncoderBlock`.
    """

    settings: ModelSettings
    norm: str
    pre_norm: bool
    residual_dropout: float
    dense: Any
    num_layers: int
    num_slots: int
    num_summaries: int
    temperature: float

    def setup(self):
        settings = self.settings
        fields = dict(
            settings=settings,
            norm=self.norm,
            pre_norm=self.pre_norm,
            residual_dropout=self.residual_dropout,
            dense=self.dense,
            bias=False,
            reads_slots=True,
        )
        self.layers = [EncoderBlock(**fields, name=f'layer_{i}') for i in range(self.num_layers)]
        self.last = Norm(self.norm, self.settings.norm_epsilon) if self.pre_norm else None
        self.writer = SlotWriter(settings, self.temperature)
        axes = nn.with_logical_partitioning
        # Directions: where slots are at the start of a document, and where they drift to.
        init = axes(nn.initializers.normal(settings.d_model**-0.5), (None, 'embed'))
        self.bias = self.param('bias', init, (self.num_slots, settings.d_model))
        init = axes(nn.initializers.normal(settings.init_std), (None, 'embed'))
        self.summaries = self.param('summaries', init, (self.num_summaries, settings.d_model))

    def initial_slots(self, batch_size: int) -> jax.Array:
        """The learned vectors at length one, [batch_size, num_slots, d_model], at least float32."""
        slots = unit(self.bias, 0.0)[None]
        slots = slots.astype(jnp.promote_types(self.settings.dtype, jnp.float32))
        return jnp.broadcast_to(slots, (batch_size, *slots.shape[1:]))

    def __call__(
        self, x: jax.Array, valid: jax.Array, slots: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Reads a segment and writes it.

        Args:
          x: [batch, n, d_model], embedded tokens.
          valid: bool [batch, n]; lanes without any keep their slots.
          slots: [batch, num_slots, d_model], before the segment.
          train: dropout on or off.

        Returns:
          encoded [batch, n + num_summaries, d_model], which of its positions are valid (bool), new
          slots, and the share of each slot's weight that stayed on itself, float32
          [batch, num_slots].
        """
        shape = (x.shape[0], self.num_summaries, x.shape[2])
        x = jnp.concatenate([x, jnp.broadcast_to(self.summaries[None].astype(x.dtype), shape)], 1)
        alive = valid.any(axis=1)
        valid = jnp.concatenate([valid, jnp.ones(shape[:2], bool)], axis=1)
        for layer in self.layers:
            x = layer(x, x, valid, slots, train=train)
        x = x if self.last is None else self.last(x)
        raw, weights = self.writer(slots, x.astype(slots.dtype), valid)
        new = jnp.where(alive[:, None, None], forget(raw, self.bias), slots)
        return x, valid, new, weights[..., 0].mean(axis=1).astype(jnp.float32)
