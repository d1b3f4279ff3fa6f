"""The slots of Memformer: reading, slot attention that writes, and forgetting (Wu et al., 2020).

Slots are unit vectors that all layers of an encoder read. After the last layer each slot attends to
itself and to the tokens, and to no other slot; the weight that stays on itself is the share it keeps. A
learned vector per slot is then added and the sum scaled to length one again: a slot that is never
refreshed drifts to the direction of this vector, where it is at the start of a document.

The elements of a unit vector are small. Through projections that start small, too, all slots have nearly
equal scores, so every write replaces them by the mean of the tokens: nothing is left of a segment after
a few more writes. `normalized` slots (not in the paper) keep about half of themselves per write from the
first step on, whatever the width of the model.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.attention.encoder_block import EncoderBlock
from longmem_jax.attention.rules import NEVER
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.feature_maps import unit
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn


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


def one_scale(x: jax.Array) -> jax.Array:
    """Vectors [..., width] with a mean square of one."""
    return unit(x, 1e-12) * jnp.asarray(x.shape[-1] ** 0.5, x.dtype)


class SlotWriter(nn.Module):
    """Projections of slot attention; no biases, one key projection for slots and tokens.

    Attributes:
      settings: model settings shared by all layers.
      temperature: of the softmax.
      num_heads: heads; 0 = as in the model.
      normalized: slots and tokens have a mean square of one before the projections. Queries and keys
        begin with the same multiple of the identity, so that a slot's own score is 1 + log(tokens)
        above the mean of those of the tokens; the value of a token begins about as long as a slot.
    """

    settings: ModelSettings
    temperature: float
    num_heads: int = 0
    normalized: bool = False

    def setup(self) -> None:
        settings, width = self.settings, self.settings.d_model
        num_heads = self.num_heads or settings.num_heads
        head_dim = width // num_heads
        heads: dict[str, Any] = dict(
            num_heads=num_heads,
            head_dim=head_dim,
            dtype=jnp.promote_types(settings.dtype, jnp.float32),
            # Not over the mesh axis `tensor`: where the readers' and these three small matrices are both
            # divided, the Shardy partitioner of JAX 0.10 computes wrong gradients, by some percent.
            axis='kv_heads',
        )
        match: Callable[..., jax.Array] = initializers.kernel(settings)
        value = match
        if self.normalized:
            own_score = 1 + math.log(settings.segment_length)
            gain = math.sqrt(self.temperature * own_score / math.sqrt(head_dim))

            def identities(key: jax.Array, shape: Any, dtype: DTypeLike = jnp.float32) -> jax.Array:
                return gain * jnp.eye(width, dtype=dtype).reshape(shape)

            match, value = identities, nn.initializers.normal(1 / width)
        self.query, self.key = (HeadsIn(kernel_init=match, **heads) for _ in range(2))
        self.value = HeadsIn(kernel_init=value, **heads)

    def __call__(
        self, slots: jax.Array, encoded: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """New slots before forgetting, and the weights; see `write`.

        Args:
          slots: [batch, slots, d_model].
          encoded: [batch, n, d_model], the encoder's output.
          valid: bool [batch, n].
        """
        scaled = slots
        if self.normalized:
            scaled, encoded = one_scale(slots), one_scale(encoded)
        return write(
            slots,
            self.query(scaled),
            self.key(scaled),
            self.key(encoded),
            self.value(encoded),
            valid,
            self.temperature,
        )


class SlotEncoder(nn.Module):
    """Memformer's encoder: layers that read the slots, then the writer.

    Attributes:
      num_layers: layers.
      num_slots: slots, shared by all layers; 0 = no memory, an ordinary encoder.
      num_summaries: learned vectors appended to the tokens, for the writer ("[CLS]"-like); none
        without slots.
      temperature: of the writer's softmax; 1 = none.
      bias_std: standard deviation of the initial vectors that slots drift to. Only their direction
        matters at the start of a document, their length is what a slot forgets per write.
      num_heads: heads of the reader and the writer; 0 = as in the model.
      forgets: without it, slots do not drift; they are scaled to length one all the same.
      normalized: as in `SlotWriter`, and slots have a mean square of one for the readers.
      settings, dense: see `EncoderBlock`.
    """

    settings: ModelSettings
    dense: Any
    num_layers: int
    num_slots: int
    num_summaries: int
    temperature: float
    bias_std: float
    num_heads: int
    forgets: bool
    normalized: bool

    def setup(self) -> None:
        settings = self.settings
        readers = settings
        if self.num_heads:
            head_dim = settings.d_model // self.num_heads
            readers = dataclasses.replace(
                settings, num_heads=self.num_heads, head_dim=head_dim, num_kv_heads=0
            )
        fields: dict[str, Any] = dict(
            settings=settings,
            dense=self.dense,
            bias=False,
            reader_settings=readers if self.num_slots else None,
        )
        self.layers = [EncoderBlock(**fields, name=f'layer_{i}') for i in range(self.num_layers)]
        self.last = Norm(settings.norm, settings.norm_epsilon) if settings.pre_norm else None
        if not self.num_slots:
            return
        self.writer = SlotWriter(settings, self.temperature, self.num_heads, self.normalized)
        axes = initializers.with_axes
        # Directions: where slots are at the start of a document, and where they drift to.
        init = axes(nn.initializers.normal(self.bias_std), (None, 'embed'))
        self.bias = self.param('bias', init, (self.num_slots, settings.d_model))
        init = axes(nn.initializers.normal(settings.init_std), (None, 'embed'))
        self.summaries = self.param('summaries', init, (self.num_summaries, settings.d_model))

    def initial_slots(self, batch_size: int) -> jax.Array | None:
        """The learned vectors at length one, [batch_size, num_slots, d_model], at least float32.

        None if there are no slots.
        """
        if not self.num_slots:
            return None
        slots = unit(self.bias, 0.0)[None]
        slots = slots.astype(jnp.promote_types(self.settings.dtype, jnp.float32))
        return jnp.broadcast_to(slots, (batch_size, *slots.shape[1:]))

    def __call__(
        self, x: jax.Array, valid: jax.Array, slots: jax.Array | None, *, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array | None, jax.Array | None]:
        """Reads a segment and writes it.

        Args:
          x: [batch, n, d_model], embedded tokens.
          valid: bool [batch, n]; lanes without any keep their slots.
          slots: [batch, num_slots, d_model], before the segment; None if there are none.
          train: dropout on or off.

        Returns:
          encoded [batch, n + num_summaries, d_model], which of its positions are valid (bool), new
          slots, and the share of each slot's weight that stayed on itself, float32
          [batch, num_slots]. Without slots, None for the last two.
        """
        if slots is None:
            for layer in self.layers:
                x = layer(x, x, valid, train=train)
            return x if self.last is None else self.last(x), valid, None, None
        shape = (x.shape[0], self.num_summaries, x.shape[2])
        x = jnp.concatenate([x, jnp.broadcast_to(self.summaries[None].astype(x.dtype), shape)], 1)
        alive = valid.any(axis=1)
        valid = jnp.concatenate([valid, jnp.ones(shape[:2], bool)], axis=1)
        read = one_scale(slots) if self.normalized else slots
        for layer in self.layers:
            x = layer(x, x, valid, read, train=train)
        x = x if self.last is None else self.last(x)
        raw, weights = self.writer(slots, x.astype(slots.dtype), valid)
        bias = self.bias if self.forgets else jnp.zeros_like(self.bias)
        new = jnp.where(alive[:, None, None], forget(raw, bias), slots)
        return x, valid, new, weights[..., 0].mean(axis=1).astype(jnp.float32)
