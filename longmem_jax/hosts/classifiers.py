"""Classifiers on pretrained encoders: the model of a BERT folder, with memory tokens and a head."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longmem_jax.errors import UsageError
from longmem_jax.hosts import grafting, model_fields

if TYPE_CHECKING:
    from longmem_jax.hosts import hosts

# BERT base, uncased, for an encoder of its shape that is trained from the start.
BERT_BASE = dict(
    model_type='bert', vocab_size=30522, max_position_embeddings=512, type_vocab_size=2,
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
)  # fmt: skip


def encoder_of(config: Any, source: str, needed: str) -> 'hosts.Host':
    """A pretrained encoder: a folder or a name on the hub, see `hosts.find`.

    A configuration begins with its parameters and reads with its tokenizer. `needed` says why a
    decoder cannot be one.

    Raises:
      UsageError: no such model, one that is no encoder, or one without its tokenizer.
    """
    from longmem_jax.hosts import hosts  # imports readers of tensors

    host = hosts.find(source)
    if host.plain.kind != 'text_encoder':
        raise UsageError(f'path={source}: is a decoder ({host.attributes["model_type"]}); {needed}')
    config.train.start_from = source
    config.data.tokenizer.path = ''
    grafting.use_tokenizer(config, host.folder)
    if not config.data.tokenizer.path:
        raise UsageError(
            f'path={source}: has no tokenizer; tokenizer.json or vocab.txt is needed there.'
        )
    return host


def use_encoder(
    config: Any,
    source: str,
    *,
    num_tokens: int,
    dropout: float,
    shape: Mapping[str, Any] = BERT_BASE,
) -> None:
    """Makes the model of a configuration a classifier of its data, and the first parameters a host's.

    Args:
      source: a folder or a name on the hub, see `hosts.find`; '' = `shape`, with random parameters.
      num_tokens: memory tokens before every text.
      dropout: of what is added to the residual stream, of attention, embeddings and pooled vectors.
      shape: attributes of a `config.json`.

    Raises:
      UsageError: no such model, one that is no encoder, one without its tokenizer, or an unknown task.
    """
    from longmem_jax.hosts.data.class_sets import CLASS_SETS  # readers of the files of data sets

    data, dtype, given = config.data, config.model.dtype, shape
    read = CLASS_SETS[data.source]
    problems = read.check(data.task)
    if problems:
        raise UsageError('; '.join(f'config.data.task.{problem}' for problem in problems) + '.')
    if source:
        host = encoder_of(
            config,
            source,
            'a classifier reads with an encoder (bert). Decoders answer with words: '
            'configs/superglue.py.',
        )
        config.model, given = host.plain, host.attributes
    else:
        config.model = model_fields.model_of(shape, 'shape')
        config.notes = (
            'without path=FOLDER the encoder is not pretrained: it has learned nothing but this task',
        )
    model = config.model
    model.kind, model.dtype, model.text_encoder.pooler = 'classifier', dtype, True
    model.init_std = float(given.get('initializer_range', 0.02))  # of what is new
    model.dropout, model.attention_dropout = 0.0, dropout  # none inside of feed-forward layers
    model.residual_dropout = model.embedding_dropout = dropout
    model.classifier = dict(
        classes=read.classes(data.task),
        by_choice=read.by_choice(data.task),
        num_tokens=num_tokens,
        dropout=dropout,
    )
    texts = model.classifier.classes if model.classifier.by_choice else 1
    config.train.segment_length = texts * data.task.max_length
    config.train.loss_weights, config.evaluate.model = {}, {}
