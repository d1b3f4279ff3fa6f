"""A bidirectional encoder of whole texts (BERT: Devlin et al., 2019), without a memory.

Vectors of words, positions and token types are summed and normalised; then post-norm layers, and a
pooled vector for the whole text. Parameters have the paths of a decoder's: `block_0/attention/...`.
Other vectors may be put before a text, such as memory tokens: they have no position and no type.
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.attention.encoder_block import EncoderBlock
from longmem_jax.layers import initializers
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.norms import Norm
from longmem_jax.models.kinds import Kind
from longmem_jax.models.stack import init_std, make_embedding, make_settings, rate

FIELDS: dict[str, Any] = {'token_types': (2, 2**16), 'pooler': bool}


def check(model: Any, segment_length: int) -> list[str]:
    """Problems of a `config.model` of the kind 'text_encoder', whose longest text is a segment."""
    found = []
    if not model.text_encoder.pooler:
        found.append('pooler = False: must be True, its vector is that of a text')
    if set(model.attention) != {'local'} or set(model.feed_forward) != {'dense'}:
        found.append(
            "encoder: attends to whole texts; config.model.attention must be 'local' and "
            "config.model.feed_forward 'dense' in all layers"
        )
    if model.num_positions < segment_length:
        found.append(
            f'encoder: config.model.num_positions = {model.num_positions} is less than the longest '
            f'text, config.train.segment_length = {segment_length}'
        )
    return found


def of_texts(config: Any, segment_length: int) -> 'TextEncoder':
    """The encoder of a `config.model`; its texts may have any length."""
    return TextEncoder(config)


class TextEncoder(nn.Module):
    """An encoder with token types and, optionally, a pooled vector.

    Attributes:
      config: `config.model`, frozen, of the kind 'text_encoder': with a section of that name whose
        fields are `token_types`, their number, and `pooler`, whether there is a pooled vector.
    """

    config: Any

    def setup(self) -> None:
        config, axes = self.config, initializers.with_axes
        settings = make_settings(config, config.num_positions)
        self.embedding = make_embedding(config, config.num_positions, softmax=False)
        normal = axes(nn.initializers.normal(init_std(config)), (None, 'embed'))
        shape = (config.text_encoder.token_types, config.d_model)
        self.types = self.param('types', normal, shape)
        self.embedding_norm = Norm(config.norm, config.norm_epsilon)
        self.drop = Dropout(rate(config, 'embedding_dropout'))
        self.block = [
            EncoderBlock(settings=settings, dense=dict(config.dense), bias=False)
            for _ in range(config.num_layers)
        ]
        self.pooler = (
            nn.Dense(
                config.d_model,
                dtype=settings.dtype,
                kernel_init=axes(initializers.kernel(settings), ('embed', None)),
                bias_init=axes(nn.initializers.zeros, (None,)),
            )
            if config.text_encoder.pooler
            else None
        )

    def layers(
        self,
        tokens: jax.Array,
        valid: jax.Array,
        types: jax.Array,
        *,
        train: bool,
        before: jax.Array | None = None,
    ) -> Iterator[jax.Array]:
        """The embeddings, and the output of every layer.

        Args:
          tokens: int32 [batch, n], n at most `num_positions`.
          valid: bool [batch, n]; False = padding, which nothing attends to.
          types: int32 [batch, n], which of several parts of the text a token belongs to.
          train: dropout on or off.
          before: [batch, m, d_model], put before the text and normalised with it; None = nothing.

        Yields:
          [batch, m + n, d_model]; undefined at padding.
        """
        x = self.embedding.encode(tokens, jnp.zeros(tokens.shape[:1], jnp.int32))
        x = x + self.types[types].astype(x.dtype)
        if before is not None:
            x = jnp.concatenate([before.astype(x.dtype), x], axis=1)
            valid = jnp.concatenate([jnp.ones(before.shape[:2], bool), valid], axis=1)
        x = self.embedding_norm(x)
        x = self.drop(x, deterministic=not train)
        yield x
        for block in self.block:
            x = block(x, x, valid, train=train)
            yield x

    def pool(self, hidden: jax.Array) -> jax.Array:
        """The vector of a text, [batch, d_model], from its first token's in `hidden`."""
        assert self.pooler is not None
        return jnp.tanh(self.pooler(hidden[:, 0]))

    def __call__(
        self,
        tokens: jax.Array,
        valid: jax.Array,
        types: jax.Array,
        *,
        train: bool,
        before: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Reads texts; arguments as in `layers`.

        Returns [batch, m + n, d_model], the last layer's output, and the pooled vectors [batch,
        d_model] of the texts' first tokens (None without a pooler).
        """
        *_, x = self.layers(tokens, valid, types, train=train, before=before)
        first = 0 if before is None else before.shape[1]
        return x, None if self.pooler is None else self.pool(x[:, first:])

    def initial(self) -> Any:
        """A call on one token, for `init`."""
        zeros = jnp.zeros((1, 1), jnp.int32)
        return self(zeros, zeros == 0, zeros, train=False)


KIND = Kind(of_texts, FIELDS, check, reads='rows', own_positions=True)
