"""The slots of MemBART, Memformer's released successor: slots and tokens in one attention.

Slots pass through the encoder layers together with the tokens, with projections, norms and
feed-forward layers of their own. A slot attends to itself and the tokens; tokens attend to everything.
The input is `LayerNorm(slots + bias)`, and a gate per slot mixes it with the output.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.attend import attend_in
from longmem_jax.attention.rules import Rules
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers import initializers
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.feed_forward import Dense
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn, HeadsOut


class JointAttention(nn.Module):
    """One attention over slots and tokens, with projections for each.

    Attributes:
      settings: model settings shared by all layers.
    """

    settings: ModelSettings

    def setup(self) -> None:
        settings = self.settings
        heads: dict[str, Any] = dict(
            num_heads=settings.num_heads,
            head_dim=settings.head_dim,
            dtype=settings.dtype,
            kernel_init=initializers.kernel(settings),
            bias=True,
        )
        self.query, self.key, self.value = (HeadsIn(**heads) for _ in range(3))
        self.slot_query, self.slot_key, self.slot_value = (HeadsIn(**heads) for _ in range(3))
        init = initializers.kernel(settings, inputs=2)
        out: dict[str, Any] = dict(
            d_model=settings.d_model, dtype=settings.dtype, kernel_init=init, bias=True
        )
        self.out, self.slot_out = HeadsOut(**out), HeadsOut(**out)

    def __call__(
        self, slots: jax.Array, x: jax.Array, valid: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Attends from slots and tokens.

        Args:
          slots: [batch, k, d_model].
          x: [batch, n, d_model], the tokens.
          valid: bool [batch, n].
          train: dropout on or off.

        Returns:
          The outputs for slots and for tokens, of the same shapes.
        """
        num_slots = slots.shape[1]

        def project(slot: HeadsIn, token: HeadsIn) -> jax.Array:
            return jnp.concatenate([slot(slots), token(x)], axis=2)

        itself = jnp.eye(num_slots, dtype=bool)
        slot_mask = jnp.concatenate([itself, jnp.ones((x.shape[1], num_slots), bool)])[None]
        slot_mask = jnp.broadcast_to(slot_mask, (x.shape[0], *slot_mask.shape[1:]))
        token_mask = jnp.broadcast_to(valid[:, None], (*slot_mask.shape[:2], x.shape[1]))
        mask = jnp.concatenate([slot_mask, token_mask], axis=2)[:, None]
        out = attend_in(
            self,
            project(self.slot_query, self.query),
            project(self.slot_key, self.key),
            project(self.slot_value, self.value),
            Rules(offset=0, causal=False, mask=mask),
            train=train,
            parts=(('slots', num_slots), ('segment', x.shape[1])),
        )
        return self.slot_out(out[:, :, :num_slots]), self.out(out[:, :, num_slots:])


class JointLayer(nn.Module):
    """Post-norm layer with separate norms and feed-forward layers for slots and tokens.

    Attributes:
      settings: model settings shared by all layers.
      dense: fields of the feed-forward layers.
    """

    settings: ModelSettings
    dense: Any

    def setup(self) -> None:
        self.attention = JointAttention(self.settings)
        fields: dict[str, Any] = dict(
            settings=self.settings, normalize=identity, shared=None, **self.dense
        )
        self.feed_forward, self.slot_feed_forward = Dense(**fields), Dense(**fields)
        self.attention_norm, self.slot_attention_norm = Norm('layernorm'), Norm('layernorm')
        self.final_norm, self.slot_final_norm = Norm('layernorm'), Norm('layernorm')
        self.drop = Dropout(self.settings.residual_rate)

    def __call__(
        self, slots: jax.Array, x: jax.Array, valid: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Passes slots and tokens through the layer; arguments and results as `JointAttention`."""

        def join(x: jax.Array, y: jax.Array, norm: Norm) -> jax.Array:
            return norm(x + self.drop(y, deterministic=not train))

        def feed(x: jax.Array, layer: Dense, norm: Norm) -> jax.Array:
            return join(x, layer.mapped(x, train), norm)

        from_slots, from_tokens = self.attention(slots, x, valid, train=train)
        slots = join(slots, from_slots, self.slot_attention_norm)
        x = join(x, from_tokens, self.attention_norm)
        return (
            feed(slots, self.slot_feed_forward, self.slot_final_norm),
            feed(x, self.feed_forward, self.final_norm),
        )


class JointEncoder(nn.Module):
    """MemBART's encoder; its outputs are slots and tokens.

    Attributes:
      num_layers: layers.
      num_slots: slots.
      bias_std: standard deviation of the initial bias of the slots.
      settings, dense: see `JointLayer`.
    """

    settings: ModelSettings
    dense: Any
    num_layers: int
    num_slots: int
    bias_std: float

    def setup(self) -> None:
        settings, axes = self.settings, initializers.with_axes
        self.layers = [
            JointLayer(settings, self.dense, name=f'layer_{i}') for i in range(self.num_layers)
        ]
        init = axes(nn.initializers.normal(self.bias_std), (None, 'embed'))
        self.bias = self.param('bias', init, (self.num_slots, settings.d_model))
        self.embedding_norm, self.slot_norm = Norm('layernorm'), Norm('layernorm')
        init = axes(initializers.kernel(settings), ('embed', None))
        self.gate_hidden = nn.Dense(settings.d_model, dtype=settings.dtype, kernel_init=init)
        self.gate = nn.Dense(1, dtype=settings.dtype, kernel_init=init)

    def initial_slots(self, batch_size: int) -> jax.Array:
        """Zeros, float32 [batch_size, num_slots, d_model]: a new document starts from the bias alone."""
        dtype = jnp.promote_types(self.settings.dtype, jnp.float32)
        return jnp.zeros((batch_size, self.num_slots, self.settings.d_model), dtype)

    def __call__(
        self, x: jax.Array, valid: jax.Array, slots: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Reads a segment and writes it; arguments and results as `slot_attention.SlotEncoder`.

        Slots and tokens are encoded together, then a gate mixes the old slots into the new ones. The
        decoder reads [mixed slots; tokens], as released.
        """
        old = self.slot_norm(slots + self.bias[None].astype(slots.dtype)).astype(x.dtype)
        x, new = self.embedding_norm(x), old
        for layer in self.layers:
            new, x = layer(new, x, valid, train=train)
        hidden = jax.nn.gelu(self.gate_hidden(new), approximate=False)
        new_share = jax.nn.sigmoid(self.gate(hidden))
        new = new_share * new + (1 - new_share) * old
        encoded = jnp.concatenate([new, x], axis=1)
        alive = valid.any(axis=1)
        valid = jnp.concatenate([jnp.ones(new.shape[:2], bool), valid], axis=1)
        written = jnp.where(alive[:, None, None], new.astype(slots.dtype), slots)
        return encoded, valid, written, (1 - new_share[..., 0]).astype(jnp.float32)
