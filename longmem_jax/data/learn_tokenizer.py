"""Vocabularies learned from a corpus: characters, words, BPE, WordPiece, sentencepiece."""

import collections
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from longmem_jax.data.documents import Source
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, write, write_json
from longmem_jax.untrusted import json_file, schema

SUFFIX = {
    'characters': '.json',
    'words': '.txt',
    'bpe': '.json',
    'wordpiece': '.json',
    'sentencepiece': '.model',
}
LEARNT = tuple(SUFFIX)
MARKS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']  # of a WordPiece vocabulary
LEAST_SIZE = 257
LETTERS = 1000  # of a WordPiece vocabulary, the most frequent ones
SAMPLED_BYTES = 500_000_000  # of text that subword vocabularies are learned from


def _texts(source: Source) -> Iterator[str]:
    for index in range(len(source)):
        yield source[index].text.decode('utf-8', 'replace')


def _sample(source: Source) -> Iterator[str]:
    """About `SAMPLED_BYTES` of text, in lines that are short enough for the trainers."""
    seen = 0
    for text in _texts(source):
        for line in text.splitlines(keepends=True):
            # sentencepiece skips lines longer than 4192 bytes.
            yield from (line[at : at + 1000] for at in range(0, len(line), 1000))
            seen += len(line)
        if seen > SAMPLED_BYTES:
            return


def _by_frequency(counts: collections.Counter[str]) -> list[str]:
    """By falling frequency, then by code points: the same on every machine."""
    return sorted(counts, key=lambda item: (-counts[item], item))


def _characters(source: Source, size: int) -> list[str]:
    """The `size` most frequent characters; 0 = all."""
    counts: collections.Counter[str] = collections.Counter()
    for text in _texts(source):
        counts.update(text)
    return _by_frequency(counts)[: size or None]


def _words(source: Source, size: int) -> list[str]:
    """The `size` most frequent words, with `<eos>` and `<unk>`; 0 = all."""
    counts: collections.Counter[str] = collections.Counter()
    for text in _texts(source):
        counts['<eos>'] += text.count('\n') or 1
        counts.update(itertools.chain.from_iterable(map(str.split, text.split('\n'))))
    ordered = _by_frequency(counts)
    counts['<unk>'] += sum(counts[word] for word in ordered[size:]) if size else 0
    ordered = _by_frequency(counts)
    if not size:
        return ordered
    missing = [word for word in ('<eos>', '<unk>') if word not in ordered[:size]]
    return ordered[: size - len(missing)] + missing


def _sentencepiece(source: Source, size: int) -> bytes:
    """A serialized sentencepiece model."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sample(source),
            model_writer=model,
            vocab_size=size,
            byte_fallback=True,
            # Texts are restored byte for byte, line ends and runs of blanks included.
            normalization_rule_name='identity',
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=['\n'],
            hard_vocab_limit=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UsageError(f'sentencepiece of {size} tokens: {error}') from error
    return model.getvalue()


def _wordpiece(source: Source, size: int) -> bytes:
    """A WordPiece tokenizer of lower case, as JSON.

    The trainer numbers pieces inside of words in the order of a hash table, which differs from run to
    run, and breaks ties by these numbers. So it is given them, as if they were marks.
    """
    pieces = tokenizers.BertWordPieceTokenizer(lowercase=True)
    counts: collections.Counter[str] = collections.Counter()
    for line in _sample(source):
        counts.update(pieces.normalizer.normalize_str(line))
    # Blanks and punctuation are never inside of a word.
    inside = [
        f'##{letter}'
        for letter in _by_frequency(counts)[:LETTERS]
        if len(pieces.pre_tokenizer.pre_tokenize_str(f'a{letter}')) == 1 and not letter.isspace()
    ]
    pieces.train_from_iterator(
        _sample(source),
        size,
        special_tokens=MARKS + sorted(inside),
        limit_alphabet=LETTERS,
        show_progress=False,
    )
    content = json.loads(pieces.to_str())
    content['added_tokens'] = [
        token for token in content['added_tokens'] if token['content'] in MARKS
    ]
    return json.dumps(content, ensure_ascii=False).encode()


def learn(kind: str, source: Source, size: int, output: Path) -> None:
    """Learns a vocabulary of one of `LEARNT` and writes it to a file, atomically.

    `size` 0 = all tokens that occur (characters and words).

    Raises:
      UsageError: an impossible size, or a text too small for it.
    """
    if kind in ('bpe', 'wordpiece', 'sentencepiece') and size < LEAST_SIZE:
        raise UsageError(
            f'config.data.tokenizer.size = {size}: a {kind} vocabulary needs {LEAST_SIZE} or more.'
        )
    if kind == 'characters':
        content = json.dumps(_characters(source, size)).encode()
    elif kind == 'words':
        content = '\n'.join(_words(source, size)).encode()
    elif kind == 'bpe':
        trainer = tokenizers.ByteLevelBPETokenizer()
        trainer.train_from_iterator(
            _sample(source), size, special_tokens=['<|endoftext|>'], show_progress=False
        )
        content = trainer.to_str().encode()
    elif kind == 'wordpiece':
        content = _wordpiece(source, size)
    else:
        content = _sentencepiece(source, size)
    try:
        write(output, content)
    except OSError as error:
        raise UsageError(f'{output}: cannot be written ({error}).') from error


CHECKSUM = 'vocabulary'
_WORD = schema.fields(
    {
        'data': schema.text(),
        'documents': schema.whole(0, 1 << 60),
        'ends': schema.text(),
        CHECKSUM: schema.text(),
    }
)


def word_on(data: Any, source: Source) -> dict[str, Any]:
    """What is kept of the data that a vocabulary was learned from: name, size, and both ends."""
    ends = b''.join(source[index].text for index in (0, len(source) - 1))
    name = data.path or data.name or data.source
    return {'data': name, 'documents': len(source), 'ends': checksum(ends)}


def word_path(vocabulary: Path) -> Path:
    """The file with the word on the data of a vocabulary."""
    return vocabulary.with_name(f'learned_from.{vocabulary.stem}.json')


def keep_word(vocabulary: Path, word: dict[str, Any]) -> None:
    """Writes the word on the data of a vocabulary, with its checksum, for `require_whole`.

    Raises:
      UsageError: it cannot be written.
    """
    path = word_path(vocabulary)
    try:
        write_json(path, word | {CHECKSUM: checksum(vocabulary)})
    except OSError as error:
        raise UsageError(f'{path}: cannot be written ({error}).') from error


def require_whole(vocabulary: Path) -> dict[str, Any] | None:
    """The word on the data of a vocabulary; None if there is none.

    Raises:
      UsageError: the vocabulary is not what was learned.
    """
    path = word_path(vocabulary)
    if not path.exists():
        return None
    word = schema.require(json_file.read(path), _WORD, path)
    if word[CHECKSUM] != checksum(vocabulary):
        raise UsageError(
            f'{vocabulary}: was cut or changed since it was learned. Put it back; or delete it, if '
            'nothing was trained with it, to learn it again.'
        )
    return word


def require_same_data(vocabulary: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises `UsageError` if a vocabulary was learned `then` from other data than there are `now`.

    Both are the word on the data. A moved text is the same.
    """
    if (then['documents'], then['ends']) != (now['documents'], now['ends']):
        named = [f'{word["data"]}, {word["documents"]:,} documents' for word in (then, now)]
        differs = f'other data: {named[0]}; config.data has {named[1]}'
        if named[0] == named[1]:
            differs = f'other texts of {named[0]}: its task, its settings or its files have changed'
        raise UsageError(
            f'{vocabulary}: was learned from {differs}. Delete it to learn a new vocabulary, or set '
            f'--config.data.tokenizer.path={vocabulary} to use it.'
        )
