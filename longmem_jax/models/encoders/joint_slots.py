"""The slots of MemBART, Memformer's released successor: slots and tokens in one attention.

Slots pass through the encoder layers beside the tokens, with projections, norms and feed-forward
layers of their own. A slot attends to itself and the tokens; tokens attend to everything. What comes
in is `LayerNorm(slots + bias)`, and a gate per slot mixes it with what comes out.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings, NoState, identity
from longmem_jax.layers import weight_dropout
from longmem_jax.layers.attention import attend
from longmem_jax.layers.attention_rules import Rules
from longmem_jax.layers.feed_forward import Dense
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn, HeadsOut


class JointAttention(nn.Module):
    """One attention over slots and tokens, with projections for each.

    Attributes:
      settings: sizes of the model.
    """

    settings: ModelSettings

    def setup(self):
        settings = self.settings
        init = nn.initializers.normal(settings.init_std)
        heads = dict(
            num_heads=settings.num_heads,
            head_dim=settings.head_dim,
            dtype=settings.dtype,
            kernel_init=init,
            bias=True,
        )
        self.query, self.key, self.value = (HeadsIn(**heads) for _ in range(3))
        self.slot_query, self.slot_key, self.slot_value = (HeadsIn(**heads) for _ in range(3))
        out = dict(d_model=settings.d_model, dtype=settings.dtype, kernel_init=init, bias=True)
        self.out, self.slot_out = HeadsOut(**out), HeadsOut(**out)

    def __call__(self, slots: jax.Array, x: jax.Array, valid: jax.Array, *, train: bool):
        """slots [batch, k, d_model], x [batch, n, d_model], valid bool [batch, n]; both anew."""
        number = slots.shape[1]

        def both(slot, token):
            return jnp.concatenate([slot(slots), token(x)], axis=2)

        own = jnp.eye(number, dtype=bool)
        rows = jnp.concatenate([own, jnp.ones((x.shape[1], number), bool)])[None]
        rows = jnp.broadcast_to(rows, (x.shape[0], *rows.shape[1:]))
        columns = jnp.broadcast_to(valid[:, None], (*rows.shape[:2], x.shape[1]))
        mask = jnp.concatenate([rows, columns], axis=2)[:, None]
        out = attend(
            both(self.slot_query, self.query),
            both(self.slot_key, self.key),
            both(self.slot_value, self.value),
            Rules(offset=0, causal=False, mask=mask),
            weight_dropout.draw(self, train),
        )
        return self.slot_out(out[:, :, :number]), self.out(out[:, :, number:])


class JointLayer(nn.Module):
    """Post-norm layer with own norms and feed-forward layers for slots and tokens.

    Attributes:
      settings: sizes of the model.
      residual_dropout: of what is added.
      dense: fields of the feed-forward layers.
    """

    settings: ModelSettings
    residual_dropout: float
    dense: object

    def setup(self):
        self.attention = JointAttention(self.settings)
        one = dict(settings=self.settings, normalize=identity, shared=None, **self.dense)
        self.feed_forward, self.slot_feed_forward = Dense(**one), Dense(**one)
        self.attention_norm, self.slot_attention_norm = Norm('layernorm'), Norm('layernorm')
        self.final_norm, self.slot_final_norm = Norm('layernorm'), Norm('layernorm')
        self.drop = nn.Dropout(self.residual_dropout)

    def __call__(self, slots: jax.Array, x: jax.Array, valid: jax.Array, *, train: bool):
        """See `JointAttention`; returns (slots, x)."""

        def join(x, y, norm):
            return norm(x + self.drop(y, deterministic=not train))

        def feed(x, layer, norm):
            return join(x, layer(x, NoState(), None, train=train)[0], norm)

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
      bias_std: of the slots' bias.
      settings, residual_dropout, dense: see `JointLayer`.
    """

    settings: ModelSettings
    residual_dropout: float
    dense: object
    num_layers: int
    num_slots: int
    bias_std: float

    def setup(self):
        settings, axes = self.settings, nn.with_logical_partitioning
        one = dict(settings=settings, residual_dropout=self.residual_dropout, dense=self.dense)
        self.layers = [JointLayer(**one, name=f'layer_{i}') for i in range(self.num_layers)]
        init = axes(nn.initializers.normal(self.bias_std), (None, 'embed'))
        self.bias = self.param('bias', init, (self.num_slots, settings.d_model))
        self.embedding_norm, self.slot_norm = Norm('layernorm'), Norm('layernorm')
        init = axes(nn.initializers.normal(settings.init_std), ('embed', None))
        self.gate_hidden = nn.Dense(settings.d_model, dtype=settings.dtype, kernel_init=init)
        self.gate = nn.Dense(1, dtype=settings.dtype, kernel_init=init)

    def initial_slots(self, batch_size: int) -> jax.Array:
        """Zeros, float32 [batch, num_slots, d_model]: all that a new document has is the bias."""
        wide = jnp.promote_types(self.settings.dtype, jnp.float32)
        return jnp.zeros((batch_size, self.num_slots, self.settings.d_model), wide)

    def __call__(self, x: jax.Array, valid: jax.Array, slots: jax.Array, *, train: bool):
        """Reads a segment and writes it; arguments and results as `slots.SlotEncoder`.

        What is encoded is [slots; tokens], before the gate mixes the old slots in for the next
        segment; the decoder is given the mixed ones, as released.
        """
        old = self.slot_norm(slots + self.bias[None].astype(slots.dtype)).astype(x.dtype)
        x, new = self.embedding_norm(x), old
        for layer in self.layers:
            new, x = layer(new, x, valid, train=train)
        hidden = jax.nn.gelu(self.gate_hidden(new), approximate=False)
        share = jax.nn.sigmoid(self.gate(hidden))
        new = share * new + (1 - share) * old
        encoded = jnp.concatenate([new, x], axis=1)
        alive = valid.any(axis=1)
        valid = jnp.concatenate([jnp.ones(new.shape[:2], bool), valid], axis=1)
        written = jnp.where(alive[:, None, None], new.astype(slots.dtype), slots)
        return encoded, valid, written, (1 - share[..., 0]).astype(jnp.float32)
