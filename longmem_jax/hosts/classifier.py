"""A classifier of texts: an encoder such as BERT, with memory tokens or without.

An example is one segment. It holds one text or two, marked as the encoder was pretrained ([CLS] FIRST
[SEP] SECOND [SEP]), or as many of these one after another as there are choices, each as long as the
others. Positions without a token are `NOTHING`; tokens of a second text are written `of_second`. The
target of the first position is the class, and nothing else is scored.

Memory tokens are learned vectors before the text, [mem] ... [CLS] FIRST [SEP] SECOND [SEP], which all
layers read and write as if they were tokens (MemTransformer on BERT: Burtsev et al., 2020). They have
no position, so that the positions of the text are those of pretraining.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.hosts.text_encoder import TextEncoder
from longmem_jax.layers import initializers
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.scores import Scores, of_logits
from longmem_jax.memory.memory_tokens.tokens import LearnedTokens
from longmem_jax.models.kinds import Kind
from longmem_jax.models.stack import init_std, token_std
from longmem_jax.problems import at_least, between, of_section
from longmem_jax.segment import NOTHING, Aux, Segment, no_aux, of_second

FIELDS = {'classes': int, 'by_choice': bool, 'num_tokens': int, 'dropout': float}
# Fields in which it differs from a host: the head is its own, and so is a pooler that the host lacks.
BEYOND_HOST = frozenset(('kind', 'text_encoder'))


def num_texts(fields: Any) -> int:
    """Texts, or pairs of them, in one example."""
    return fields['classes'] if fields['by_choice'] else 1


def check(model: Any, segment_length: int) -> list[str]:
    """Problems of `config.model.classifier`, and of fields that its encoder would ignore."""
    fields = model.classifier
    problems = at_least(fields, 2, 'classes') + between(fields, 0, 1, 'dropout', ends='[)')
    if 'text_encoder' not in model or of_section(
        model.text_encoder, {'token_types': (2, 2**16), 'pooler': bool}
    ):
        return [*problems, 'encoder: needs config.model.text_encoder, with token_types and pooler']
    if not model.text_encoder.pooler:
        problems.append('encoder: needs config.model.text_encoder.pooler = True')
    if set(model.attention) != {'local'} or set(model.feed_forward) != {'dense'}:
        problems.append(
            "encoder: attends to whole texts; config.model.attention must be 'local' and "
            "config.model.feed_forward 'dense' in all layers"
        )
    if model.pre_norm or model.final_norm:
        problems.append('encoder: norms follow the sums; pre_norm and final_norm must be False')
    if not problems and segment_length % num_texts(fields):
        problems.append(
            f'classes = {fields.classes}: choices must divide segments of {segment_length}'
        )
    elif not problems and (model.position == 'none') != (model.num_positions == 0):
        problems.append(
            f'encoder: config.model.num_positions = {model.num_positions} does not belong to '
            f'position = {model.position!r}'
        )
    elif not problems and 0 < model.num_positions < segment_length // num_texts(fields):
        problems.append(
            f'encoder: texts of {segment_length // num_texts(fields)} tokens, and there are '
            f'config.model.num_positions = {model.num_positions}; use shorter texts'
        )
    return problems


class Classifier(nn.Module):
    """The class of an example; stateless. Trained and scored like a language model, by `nll`.

    `config.classifier`: `classes`, their number; `by_choice`: an example has a text per class, and each
    gets a score of its own (else one text gets a score per class); `num_tokens` memory tokens; and
    `dropout` of the pooled vector.

    The encoder's parameters are at the top level, where those of a host are: `block_0/attention/...`.

    Attributes:
      config: `config.model`, frozen.
      segment_length: positions of an example, `length` below.
    """

    config: Any
    segment_length: int

    if TYPE_CHECKING:  # Flax's result has a second type, that of calls with `mutable`.

        def apply(self, *given: Any, **named: Any) -> Any: ...

    def setup(self) -> None:
        config, fields = self.config, self.config.classifier
        self.encoder = TextEncoder(config)
        nn.share_scope(self, self.encoder)
        self.memory_tokens = (
            LearnedTokens(
                num_tokens=fields.num_tokens,
                d_model=config.d_model,
                std=token_std(config),
                dtype=jnp.dtype(config.dtype),
            )
            if fields.num_tokens
            else None
        )
        self.head_drop = Dropout(fields.dropout)
        axes = initializers.with_axes
        self.head = nn.Dense(
            1 if fields.by_choice else fields.classes,
            dtype=jnp.promote_types(config.dtype, jnp.float32),
            kernel_init=axes(nn.initializers.normal(init_std(config)), ('embed', None)),
            bias_init=axes(nn.initializers.zeros, (None,)),
        )

    def initial_state(self, batch_size: int) -> tuple[()]:
        """An empty tuple: examples have no past."""
        return ()

    def __call__(
        self, segment: Segment, state: Any, *, train: bool
    ) -> tuple[jax.Array, tuple[()], Aux]:
        """Logits of the classes, at least float32 [batch, classes].

        The state `()`, unchanged; `Aux`. `segment` has the examples, tokens int32 [batch, length].
        """
        batch_size, fields = segment.tokens.shape[0], self.config.classifier
        tokens = jnp.where(segment.valid, segment.tokens, NOTHING)
        tokens = tokens.reshape(batch_size * num_texts(fields), -1)
        second = tokens < NOTHING
        ids = jnp.maximum(jnp.where(second, of_second(tokens), tokens), 0)
        before = None if self.memory_tokens is None else self.memory_tokens(len(tokens))
        _, pooled = self.encoder(
            ids, tokens != NOTHING, second.astype(jnp.int32), train=train, before=before
        )
        assert pooled is not None  # its encoder has a pooler, as `check` says
        logits = self.head(self.head_drop(pooled, deterministic=not train))
        return logits.reshape(batch_size, fields.classes), state, no_aux()

    def nll(
        self, segment: Segment, targets: jax.Array, state: Any, *, train: bool
    ) -> tuple[Scores, tuple[()], Aux]:
        """As in `LanguageModel`: at the first position that of the class, elsewhere 0."""
        logits, state, aux = self(segment, state, train=train)
        scores = of_logits(logits[:, None], targets[:, :1]).where(segment.valid[:, :1])
        return scores.padded(0, segment.tokens.shape[1] - 1), state, aux


KIND = Kind(
    Classifier,
    FIELDS,
    check,
    lengths={'num_tokens': '+ memory tokens '},
    growing=('memory_tokens/tokens',),
    reads='classes',
    own_positions=True,
    beyond_host=BEYOND_HOST,
)
