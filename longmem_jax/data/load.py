"""From `config.data` to tokenized documents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from longmem_jax.data.corpus import AnyCorpus, Corpus
from longmem_jax.data.documents import First, Pieces, Source, require_split
from longmem_jax.data.learn_tokenizer import (
    LEARNT,
    SUFFIX,
    keep_word,
    learn,
    require_same_data,
    require_whole,
    word_on,
)
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.data.tokenized import StoredCorpus
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import KINDS, Bytes, Tokenizer
from longmem_jax.errors import UsageError, number_of, unknown
from longmem_jax.files import named

MOST_PIECES = 1 << 16  # of a document; each is looked at before the first step


def load_source(data: Any, split: str) -> Source:
    """The documents of a split, as text.

    Raises:
      UsageError: an unknown source or split, or missing data, with how to provide it.
    """
    require_split(split)
    if data.source not in SOURCES:
        raise UsageError(unknown('config.data.source', data.source, [*SOURCES, *TASKS]))
    found = SOURCES[data.source]
    source = found.texts(data, split)
    if found.corpus is not None:
        return source
    if data.first < 0:
        raise UsageError(f'config.data.first = {data.first}: must be at least 0.')
    if split == 'train' and data.first:
        source = First(source, data.first)
    if not 1 <= data.pieces <= MOST_PIECES:
        raise UsageError(
            f'config.data.pieces = {data.pieces:,}: must lie between 1 and {MOST_PIECES:,}.'
        )
    return Pieces(source, data.pieces) if split == 'train' and data.pieces > 1 else source


def make_tokenizer(data: Any, workdir: Path | None) -> Tokenizer:
    """The vocabulary of a task, or the tokenizer of `data.tokenizer`.

    If no file is named, the vocabulary is learned from the training split.

    Raises:
      UsageError: an unknown kind, a file of another kind, a kind that cannot be learned, or a
        vocabulary that was learned from other data and that no checkpoint needs.
    """
    if data.source in TASKS:
        return TASKS[data.source].vocabulary(data.task)
    settings = data.tokenizer
    if settings.kind not in KINDS:
        raise UsageError(unknown('config.data.tokenizer.kind', settings.kind, KINDS))
    if settings.kind == 'bytes':
        return Bytes()
    if settings.path:
        return load_tokenizer(settings.kind, Path(settings.path).expanduser())
    if settings.kind not in LEARNT:
        raise UsageError(
            f"config.data.tokenizer.path = '': the file of a {settings.kind} tokenizer is needed; a "
            'pretrained decoder brings its own: --config=host:path=FOLDER.'
        )
    return learned(data, workdir, lambda: load_source(data, 'train'))


def learned(data: Any, workdir: Path | None, texts: Callable[[], Source]) -> Tokenizer:
    """The vocabulary of a run that names no file: that of its workdir, or else it is learned.

    `texts` are those to learn from; they are read only if they are needed.

    Raises:
      UsageError: no workdir, or a vocabulary that was learned from other data and that no checkpoint
        needs.
    """
    settings = data.tokenizer
    if workdir is None:
        raise UsageError(
            f"config.data.tokenizer.path = '': a learned {settings.kind} vocabulary is saved in the "
            'workdir; give --workdir= or the path.'
        )
    # Kind and size are in the name, so that another size does not reuse this vocabulary.
    path = workdir / f'tokenizer.{settings.kind}.{settings.size}{SUFFIX[settings.kind]}'
    trained = any(each.name.isdigit() for each in named(workdir / 'checkpoints'))
    word = require_whole(path) if path.exists() else None
    if word is None and not (trained and path.exists()):  # or a run was killed before the word
        source = texts()
        if not len(source):
            raise _without_text('train', 0)
        learn(settings.kind, source, settings.size, path)
        keep_word(path, word_on(data, source))
    elif word is not None and not trained:
        # A trained model needs its own vocabulary, also for other texts.
        require_same_data(path, word, word_on(data, texts()))
    return load_tokenizer(settings.kind, path)


def load(data: Any, split: str, tokenizer: Tokenizer) -> AnyCorpus:
    """The tokenized documents of a split or of a task.

    Raises:
      UsageError: as in `load_source`, or all documents are empty.
    """
    require_split(split)
    if data.source in TASKS:
        return TASKS[data.source].corpus(data.task, split, data.seed)
    found: AnyCorpus
    if data.source in SOURCES and (corpus := SOURCES[data.source].corpus) is not None:
        found = corpus(data, split, tokenizer)
        if not len(found):
            raise _without_text(split, 0)
        return found
    if data.tokenized:
        found = StoredCorpus(data, split, tokenizer)
    else:
        found = Corpus(load_source(data, split), tokenizer)
    # Of most it is the first that has some; a split without any would be scored as NaN.
    if not any(len(found[index].tokens) for index in range(len(found))):
        raise _without_text(split, len(found))
    return found


def _without_text(split: str, documents: int) -> UsageError:
    return UsageError(
        f'config.data: the {split} split has {number_of(documents, "document")} and no text in them; '
        'put some there, or give other data.'
    )
