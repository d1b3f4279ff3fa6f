"""Tokenizers from their files, which anybody may have made."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import tokenizers

from longmem_jax.data import model_files
from longmem_jax.data.tokenizers import Characters, FromJson, SentencePiece, Tokenizer, Words
from longmem_jax.files import looked_for
from longmem_jax.untrusted import json_file, schema
from longmem_jax.untrusted.library import library_errors

LARGEST_FILE = 1 << 29  # bytes
# Characters that normalizing, or decoding, may make of one: 18 in NFKC, with some room.
MOST_GROWTH = 64
# Characters of a word that is looked up piece by piece, which takes their square.
LONGEST_WORD = 10_000


def _read(path: Path) -> bytes:
    where = f'config.data.tokenizer.path = {path}{looked_for(path)}'
    return json_file.read_bytes(path, where, largest=LARGEST_FILE)


_NOTHING = schema.one_of(None)
_SETTINGS = schema.fields(
    {},
    {
        'bos_token': schema.either(
            _NOTHING, schema.fields({'content': schema.text()}, others=True), schema.text()
        ),
        'do_lower_case': schema.flag,
        'strip_accents': schema.either(_NOTHING, schema.flag),
        'tokenize_chinese_chars': schema.flag,
    },
    others=True,
)


def _settings_of(folder: Path) -> dict[str, Any]:
    """A model's tokenizer_config.json; {} if it has none."""
    name = 'tokenizer_config.json'
    return schema.require(model_files.settings(folder, name), _SETTINGS, folder / name)


def _begin_of(folder: Path) -> str:
    """The text of the bos_token that a model's tokenizer_config.json names, '' if it names none."""
    token = _settings_of(folder).get('bos_token')
    return (token.get('content') if isinstance(token, dict) else token) or ''


def _wordpiece(folder: Path) -> FromJson:
    """BERT's vocab.txt, with the options of tokenizer_config.json; by default it is lower-cased."""
    settings = _settings_of(folder)
    _read(folder / 'vocab.txt')  # the library would wait for a pipe
    pieces = tokenizers.BertWordPieceTokenizer(
        str(folder / 'vocab.txt'),
        lowercase=settings.get('do_lower_case', True),
        strip_accents=settings.get('strip_accents'),
        handle_chinese_chars=settings.get('tokenize_chinese_chars', True),
    )
    return FromJson(pieces._tokenizer)


def load_tokenizer(kind: str, path: Path) -> Tokenizer:
    """A tokenizer from its file.

    Args:
      kind: one of `KINDS` except 'bytes'.
      path: characters: a JSON list; words: a word per line; bpe, wordpiece, tokenizers: JSON, or a
        folder with tokenizer.json, with BERT's vocab.txt, or with GPT-2's vocab.json and merges.txt,
        or a GGUF file; sentencepiece: a model, or a folder with tokenizer.model. The first token of
        documents is the bos_token of the model's tokenizer_config.json, if it names one.

    Raises:
      UsageError: the file cannot be read or is not of this kind.
    """
    problem = f'config.data.tokenizer.path = {path}: not a {kind} tokenizer'
    with library_errors(problem):
        if kind == 'characters':
            return Characters(_characters(_read(path), problem))
        if kind == 'words':
            return Words(_words(_read(path)))
        if kind == 'sentencepiece':
            return SentencePiece(_read(path / 'tokenizer.model' if path.is_dir() else path))
        if model_files.has(path, 'tokenizer.json'):
            where = f'config.data.tokenizer.path = {path / "tokenizer.json"}'
            content = model_files.read(path, 'tokenizer.json', where, LARGEST_FILE)
            return FromJson(_bounded(content), begin=_begin_of(path))
        if (path / 'vocab.txt').exists():
            return _wordpiece(path)
        if path.is_dir():
            files = path / 'vocab.json', path / 'merges.txt'
            for file in files:
                _read(file)  # the library would wait for a pipe
            return FromJson(tokenizers.ByteLevelBPETokenizer(*map(str, files))._tokenizer)
        return FromJson(_bounded(_read(path)))


def _bounded(content: bytes) -> tokenizers.Tokenizer:
    """A tokenizer from its JSON; `ValueError` where its rules may make much text of a little."""
    made = tokenizers.Tokenizer.from_str(content.decode())
    growth = {
        name: _growth_of(getattr(made, name)) for name in ('normalizer', 'pre_tokenizer', 'decoder')
    }
    growth['normalizer'] *= growth.pop('pre_tokenizer')
    for name, most in growth.items():
        if most > MOST_GROWTH:
            raise ValueError(
                f'its {name} may make {most:,} characters of one; at most {MOST_GROWTH} are possible'
            )
    for name in ('continuing_subword_prefix', 'end_of_word_suffix'):
        if len(getattr(made.model, name, None) or '') > MOST_GROWTH:
            raise ValueError(f'its {name} has more than {MOST_GROWTH} characters')
    if getattr(made.model, 'max_input_chars_per_word', 0) > LONGEST_WORD:
        raise ValueError(f'its max_input_chars_per_word is more than {LONGEST_WORD:,}')
    return made


def _growth_of(part: Any) -> int:
    """How many characters a normalizer, a pre-tokenizer or a decoder may make of one."""
    return 1 if part is None else _growth(json.loads(part.__getstate__()))


def _growth(rule: dict[str, Any]) -> int:
    """See `_growth_of`; `rule` as in the JSON of the library."""
    kind = rule.get('type')
    if kind == 'Sequence':
        inside = next((value for value in rule.values() if isinstance(value, list)), [])
        return math.prod(map(_growth, inside))
    if kind == 'Replace':
        # What a regular expression matches may be nothing, between any two characters.
        found = len(rule['pattern'].get('String', ''))
        written = len(rule['content'])
        return max(1, -(-written // found)) if found else 1 + written
    if kind == 'Prepend':
        return 1 + len(rule['prepend'])
    if kind == 'Precompiled':
        # The size of an index, the index, and texts that end with a zero.
        table = base64.b64decode(rule['precompiled_charsmap'])
        texts = table[4 + int.from_bytes(table[:4], 'little') :]
        return max(1, *(len(text.decode('utf-8', 'replace')) for text in texts.split(b'\0')))
    return 1


def _characters(content: bytes, problem: str) -> list[str]:
    """The characters of a JSON list, none of them twice: the first of two could never occur."""
    found = json_file.parse(content, problem)
    one = schema.text('(?s:.)', 'one character')
    schema.require(found, schema.items(one, least=1), problem)
    _require_once(found)
    return found


def _words(content: bytes) -> list[str]:
    """The words of a file, one per line, none of them twice."""
    words = content.decode().splitlines()
    for number, word in enumerate(words, 1):
        if word.split() != [word]:
            raise ValueError(f'line {number}, {schema.shown(word)}: one word is expected')
    _require_once(words)
    return words


def _require_once(items: list[str]) -> None:
    """Raises `ValueError` with the first item that is there twice."""
    seen: set[str] = set()
    for number, item in enumerate(items, 1):
        if item in seen:
            raise ValueError(f'{schema.shown(item)} is there again as number {number}')
        seen.add(item)
