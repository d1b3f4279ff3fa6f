"""A delta memory of the tokens that leave a window: an artificial hippocampus (Fang et al., 2025).

Tokens in a window are read by attention, as they are. Those that leave it are written, in the order of
the text, to a matrix S per head, with the keys k and values v that attention had for them:

    S  <- a S;  S <- S + b k (v - S^T k)^T       a, b from the input of the token that leaves
    r_i = g S^T q_i W                            q, g from the input of the token that reads

r_i is added to what attention gives, head by head, before the output map. W begins at zero: a pretrained
decoder begins as if S were not there.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.author.chunks import read_tokens
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.delta_rule import chunked, step, unit, within
from longmem_jax.layers.projections import Projections, repeat_heads

CHUNK = 64  # tokens written at once
EXACT = jax.lax.Precision.HIGHEST


def nothing(settings: ModelSettings, batch_size: int) -> jax.Array:
    """S before a token has left, float32 [batch, heads, head_dim, head_dim]."""
    shape = (batch_size, settings.num_heads, settings.head_dim, settings.head_dim)
    return jnp.zeros(shape, jnp.promote_types(settings.dtype, jnp.float32))


class Overflow(nn.Module):
    """Gates, output map and rule; the maps of queries, keys and values are those of the attention.

    Attributes:
      settings: sizes of the model.
      projections: maps of the attention.
    """

    settings: ModelSettings
    projections: Projections

    def setup(self) -> None:
        settings, init = self.settings, initializers.kernel(self.settings)

        def gate(name: str) -> jax.Array:
            boxed = initializers.with_axes(init, ('embed', 'heads'))
            return self.param(name, boxed, (settings.d_model, settings.num_heads), jnp.float32)

        self.write, self.decay, self.shown = gate('write'), gate('decay'), gate('shown')
        for_heads, shape = ('heads',), (settings.num_heads,)
        steps, rates = initializers.steps(0.001, 0.1), initializers.rates(1.0, 16.0)
        self.decay_bias = self.param('decay_bias', initializers.with_axes(steps, for_heads), shape)
        self.log_rate = self.param('log_rate', initializers.with_axes(rates, for_heads), shape)
        zeros = initializers.with_axes(nn.initializers.zeros, ('heads', None, 'head_dim'))
        width = settings.head_dim
        self.out = self.param('out', zeros, (settings.num_heads, width, width), jnp.float32)

    def written(self, S: jax.Array, x: jax.Array, count: jax.Array) -> jax.Array:
        """S after the first `count` (int32 [batch]) of the normalised x [batch, n, d_model]."""
        valid = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < count[:, None]
        heads, maps = self.settings.num_heads, self.projections
        keys, values = (repeat_heads(rows, heads) for rows in (maps.keys(x), maps.values(x)))
        wide = x.astype(S.dtype)
        logits = wide @ self.decay + self.decay_bias[None, None]
        log_a = -jnp.exp(self.log_rate)[None, None] * jax.nn.softplus(logits)
        b = jax.nn.sigmoid(wide @ self.write)
        k, v = unit(keys.astype(S.dtype)), values.astype(S.dtype)

        def ready(rows: jax.Array) -> jax.Array:
            there = valid[:, None, :, *[None] * (rows.ndim - 3)]
            return jnp.where(there, rows, jnp.zeros_like(rows))

        inputs = (k, k, v, b.swapaxes(1, 2), log_a.swapaxes(1, 2))  # its reads are not used
        given = tuple(map(ready, inputs))
        return read_tokens(step, chunked, None, S, given, valid, None, CHUNK, within=within)[0]

    def read(self, S: jax.Array, x: jax.Array) -> jax.Array:
        """What the normalised x [batch, n, d_model] reads, mapped to the output: like x."""
        maps, wide = self.projections, x.astype(S.dtype)
        q = unit(maps.queries(x).astype(S.dtype))
        g = jax.nn.sigmoid(wide @ self.shown).swapaxes(1, 2)[..., None]
        found = g * jnp.matmul(q, S, precision=EXACT)
        found = jnp.matmul(found, self.out[None], precision=EXACT).astype(x.dtype)
        # The bias of the output map is already in what attention gives.
        return maps.out(found) - maps.out(jnp.zeros_like(found[:1, :, :1]))
