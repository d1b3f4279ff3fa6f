"""Encoders of a lifelong learner: a BERT of a folder, or one that is not pretrained.

The vector of a text is BERT's pooled one, and its key in an episodic memory the last layer's vector of
its first token, [CLS] (de Masson d'Autume et al., 2019, sec. 3.1).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.errors import UsageError, say
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.text_encoder import TextEncoder
from longmem_jax.lifelong.network import Encoded
from longmem_jax.lifelong.rows import Inputs
from longmem_jax.models.parameters import initial_parameters, unbox

# A BERT small enough for tests and for runs on a few cores; the vocabulary and positions vary.
SMALL = dict(
    model_type='bert', hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=256, type_vocab_size=2,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BertEncoder:
    """A `network.Encoder` over `TextEncoder`.

    Attributes:
      module: the encoder, with a pooler.
      load: key to parameters at the start. Those of a folder are read from it: do not compile it.
    """

    module: TextEncoder
    load: Callable[[jax.Array], Any]

    @property
    def width(self) -> int:
        """Of all vectors."""
        return self.module.config.d_model

    def init(self, key: jax.Array) -> Any:
        """Pretrained parameters, or random ones, float32."""
        return self.load(key)

    def encode(self, params: Any, inputs: Inputs, key: jax.Array | None) -> Encoded:
        """Reads texts; `key` is of dropout, None = no dropout."""
        made: Any = self.module.apply(
            {'params': params},
            inputs.tokens,
            inputs.valid,
            inputs.types,
            train=key is not None,
            rngs=None if key is None else {'dropout': key},
        )
        tokens, pooled = made
        return Encoded(pooled.astype(jnp.float32), tokens.astype(jnp.float32))

    def key_of(self, params: Any, inputs: Inputs) -> jax.Array:
        """The last layer's vectors of the first tokens, float32 [n, width]; without dropout."""
        return self.encode(params, inputs, None).tokens[:, 0]


def config_of(model: Any, *, dropout: float, dtype: str = 'float32') -> Any:
    """`config.model` of an encoder for training, from one of the kind 'text_encoder', which is not
    changed.
    """
    model = model.copy_and_resolve_references()
    model.dtype, model.text_encoder.pooler = dtype, True
    model.dropout = 0.0  # none inside of feed-forward layers
    model.attention_dropout = model.residual_dropout = model.embedding_dropout = dropout
    return model


def small_model(vocab_size: int, max_length: int, sizes: Mapping[str, Any] = SMALL) -> Any:
    """`config.model` of a small encoder; `sizes` are attributes as in a BERT's `config.json`."""
    given = dict(sizes) | dict(vocab_size=vocab_size, max_position_embeddings=max_length)
    model = model_fields.model_of(given, 'sizes')
    # BERT's .02 suits its width; 0 = by the width.
    model.init_std = float(sizes.get('initializer_range', 0.0))
    return model


def untrained(model: Any, *, dropout: float = 0.0, dtype: str = 'float32') -> BertEncoder:
    """An encoder with random parameters.

    As a key network it is only for comparison: its neighbours have little to do with their texts.
    """
    module = hosts.make(config_of(model, dropout=dropout, dtype=dtype), 1)

    @jax.jit
    def load(key: jax.Array) -> Any:
        return unbox(initial_parameters(module, key))

    return BertEncoder(module, load)


def from_folder(
    source: str,
    max_length: int,
    *,
    dropout: float = 0.1,
    dtype: str = 'float32',
    report: Callable[[str], None] = say,
) -> BertEncoder:
    """A pretrained encoder: the folder of a BERT, or its name on the hub; see `hosts.find`.

    `report` gets a line that says what was loaded; a pooler that the folder lacks is new.

    Raises:
      UsageError: no such model, a decoder, or one for shorter texts.
    """
    host = hosts.find(source)
    if host.plain.kind != 'text_encoder':
        raise UsageError(
            f'path={source}: is a decoder ({host.attributes["model_type"]}); lifelong learners read '
            'with an encoder (bert).'
        )
    if max_length > host.plain.num_positions:
        raise UsageError(
            f'path={source}: reads texts of at most {host.plain.num_positions} tokens, and max_length '
            f'is {max_length}; lower it.'
        )
    model = config_of(host.plain, dropout=dropout, dtype=dtype)
    model.init_std = float(host.attributes.get('initializer_range', 0.02))
    module = hosts.make(model, 1)

    def load(key: jax.Array) -> Any:
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        return hosts.load(host, module, seed=seed, report=report)

    return BertEncoder(module, load)
