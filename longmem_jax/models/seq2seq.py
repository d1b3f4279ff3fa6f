"""Encoder-decoder for pairs of texts, such as translations (Vaswani et al., 2017).

A pair is one segment: its first `max_source` places hold the source, padded with `NOTHING`; behind
them the target, read from its begin token on and scored to its end token. The encoder may have memory
tokens (`models/encoders/memory_tokens.py`); the decoder is `config.attention` and
`config.feed_forward`, so
any memory of the library serves as its self-attention, with cross-attention by softmax or MemSizer.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.layers.cross_attention import CrossAttention
from longmem_jax.memory.memsizer import CrossMemSizer
from longmem_jax.models.block import rate
from longmem_jax.models.encoders.memory_tokens import VARIANTS, MemoryEncoder
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Aux, Segment, merge_aux

NOTHING = -1  # a place of the source without a token
CROSS = ('softmax', 'memsizer')
FIELDS = {
    'max_source': int,
    'encoder': str,
    'num_encoder_layers': int,
    'num_tokens': int,
    'shared_layers': bool,
    'cross': str,
    'cross_slots': int,
}


def faults(model: Any, segment_length: int) -> list[str]:
    """Faults of `config.model.seq2seq`."""
    fields, found = model.seq2seq, []
    if not 0 < fields.max_source < segment_length:
        found.append(
            f'max_source = {fields.max_source}: must be above 0 and leave room for a target in '
            f'segments of {segment_length}'
        )
    if fields.num_encoder_layers < 1:
        found.append(f'num_encoder_layers = {fields.num_encoder_layers}: must be at least 1')
    if fields.encoder not in VARIANTS:
        found.append(f'encoder = {fields.encoder!r}: allowed are {", ".join(VARIANTS)}')
    elif (fields.encoder == 'none') != (fields.num_tokens == 0):
        found.append(f"num_tokens = {fields.num_tokens}: 0 for encoder = 'none', else at least 1")
    if fields.cross not in CROSS:
        found.append(f'cross = {fields.cross!r}: allowed are {", ".join(CROSS)}')
    if fields.cross == 'memsizer' and fields.cross_slots < 1:
        found.append(f'cross_slots = {fields.cross_slots}: must be at least 1')
    if len(model.cutoffs):
        found.append('encoder: clusters (config.model.cutoffs) are for language models')
    if 'memory_tokens' in model.attention:
        found.append("encoder: the decoder's config.model.attention cannot be 'memory_tokens'")
    if 'dense' not in model:
        found.append('encoder: needs config.model.dense, its feed-forward layers')
    return found


class Seq2Seq(LanguageModel):
    """Says a target given a source; `LanguageModel`'s interface, without anything remembered.

    `config.seq2seq`: `max_source`, the encoder's variant, layers and memory tokens, whether its
    layers share parameters, and the kind of cross-attention with its slots.
    """

    def make_cross(self) -> Any:
        """The decoder's cross-attention; see `make_blocks`."""
        fields = self.config.seq2seq

        def cross(settings, normalize):
            if fields.cross == 'memsizer':
                return CrossMemSizer(
                    settings=settings, normalize=normalize, num_slots=fields.cross_slots, bias=True
                )
            return CrossAttention(settings=settings, normalize=normalize, bias=True)

        return cross

    def prepare(self, settings) -> None:
        """Makes the encoder."""
        config, fields = self.config, self.config.seq2seq
        scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.encoder = MemoryEncoder(
            settings=settings,
            norm=config.norm,
            pre_norm=config.pre_norm,
            residual_dropout=rate(config, 'residual_dropout'),
            dense=dict(config.dense),
            variant=fields.encoder,
            num_tokens=fields.num_tokens,
            num_layers=fields.num_encoder_layers,
            shared_layers=fields.shared_layers,
            final_norm=config.pre_norm,
            std=config.init_std * scale,
        )

    def initial_state(self, batch_size: int) -> tuple[()]:
        """Nothing: pairs have no past."""
        return ()

    def encode(self, source: jax.Array, *, train: bool) -> tuple[Any, ...]:
        """What every block's cross-attention reads.

        Args:
          source: int32 [batch, max_source], `NOTHING` where there is no token.
          train: dropout on or off.
        """
        valid = source != NOTHING
        tokens = jnp.maximum(source, 0)
        x = self.embedding.encode(tokens, jnp.zeros((source.shape[0],), jnp.int32))
        x = self.drop(x, deterministic=not train)
        encoded, seen = self.encoder(x, valid, train=train)
        return tuple(block.source(encoded, seen) for block in self.blocks)

    def _decode(self, segment, train):
        """The last layer's output at the target's places, and `Aux`."""
        places = self.config.seq2seq.max_source
        sources = self.encode(segment.tokens[:, :places], train=train)
        batch_size = segment.tokens.shape[0]
        key = self.make_rng('memory') if train and self.has_rng('memory') else None
        target = Segment(segment.tokens[:, places:], segment.valid[:, places:], segment.start, key)
        x = self.embedding.encode(target.tokens, jnp.zeros((batch_size,), jnp.int32))
        x = self.drop(x, deterministic=not train)
        reports = []
        for block, source in zip(self.blocks, sources, strict=True):
            fresh = block.initial_state(batch_size)
            x, _, aux = block(x, fresh, target, train=train, source=source)
            reports.append(aux)
        return self.drop(self._finish(x), deterministic=not train), merge_aux(reports)

    def __call__(self, segment: Segment, state: Any, *, train: bool) -> tuple[jax.Array, Any, Aux]:
        """Logits of the next target token, zeros at the source's places; as in `LanguageModel`."""
        hidden, aux = self._decode(segment, train)
        logits = self.embedding.logits(hidden)
        places = self.config.seq2seq.max_source
        return jnp.pad(logits, [(0, 0), (places, 0), (0, 0)]), state, aux

    def nll(self, segment: Segment, targets: jax.Array, state: Any, *, train: bool):
        """As in `LanguageModel`; in training with the auxiliary loss 'label_smoothing'.

        That is the mean over the vocabulary of the negative log-probabilities less that of the
        target, so that its weight is the share that label smoothing takes (Szegedy et al., 2016).
        """
        places = self.config.seq2seq.max_source
        hidden, aux = self._decode(segment, train)
        valid, wanted = segment.valid[:, places:], targets[:, places:]
        logits = self.embedding.logits(hidden)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        nll = log_z - jnp.take_along_axis(logits, wanted[..., None], axis=-1)[..., 0]
        zero = jnp.zeros_like(nll)
        spread = jnp.where(valid, log_z - logits.mean(axis=-1) - nll, zero)
        smoothing = spread.sum() / jnp.maximum(valid.sum(), 1).astype(spread.dtype)
        right = (jnp.argmax(logits, axis=-1).astype(wanted.dtype) == wanted) & valid
        parts = (jnp.where(valid, nll, zero), jnp.where(valid, log_z, zero), right)
        parts = tuple(jnp.pad(part, [(0, 0), (places, 0)]) for part in parts)
        return parts, state, aux.replace(losses={**aux.losses, 'label_smoothing': smoothing})

    def open_target(self, source: jax.Array) -> tuple[Any, Any]:
        """Reads a source, int32 [batch, max_source]; returns the cache of a target to be said."""
        sources = self.encode(source, train=False)
        batch_size = source.shape[0]
        caches = tuple(
            block.open_segment(block.initial_state(batch_size), batch_size) for block in self.blocks
        )
        return caches, sources

    def extend(self, tokens: jax.Array, cache: tuple[Any, Any], index: jax.Array):
        """Reads the next tokens of the target; as in `LanguageModel`."""
        x = self.embedding.encode(tokens, index)
        caches, (blocks, sources) = [], cache
        for block, part, source in zip(self.blocks, blocks, sources, strict=True):
            x, part = block.extend(x, part, index, source)
            caches.append(part)
        return self.embedding.logits(self._finish(x)), (tuple(caches), sources)
