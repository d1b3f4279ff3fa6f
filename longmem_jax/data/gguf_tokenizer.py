"""The tokenizer of a GGUF file as the files that a Hugging Face folder has for it.

Only byte-level BPE is read. Its rules are not in the file, only their name, `tokenizer.ggml.pre`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import gguf_file
from longmem_jax.untrusted.gguf_file import Header
from longmem_jax.untrusted.schema import shown

CONTROL, USER_DEFINED = 3, 4  # kinds of tokens that are found in texts as a whole
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return dict(type='ByteLevel', add_prefix_space=False, trim_offsets=False, use_regex=use_regex)


def _split(digits: str) -> list[dict[str, Any]]:
    """Words, runs of digits as in the regular expression `digits`, and marks."""
    rule = dict(Regex=f'{_WORDS}|{digits}{_MARKS}')
    return [
        dict(type='Split', pattern=rule, behavior='Isolated', invert=False), _byte_level(False)
    ]  # fmt: skip


_GPT2 = dict(split=[_byte_level(True)])
_LLAMA3 = dict(split=_split(r'\p{N}{1,3}'), ignore_merges=True, add_bos=True)
_QWEN2 = dict(split=_split(r'\p{N}'), normalizer=dict(type='NFC'))
# Name of the rules to how a text is split, and what else differs between them.
RULES: dict[str, dict[str, Any]] = {
    'gpt-2': _GPT2,
    'gpt2': _GPT2,
    'smollm': dict(split=[dict(type='Digits', individual_digits=True), _byte_level(True)]),
    'llama-bpe': _LLAMA3,
    'llama3': _LLAMA3,
    'llama-v3': _LLAMA3,
    'qwen2': _QWEN2,
    'deepseek-r1-qwen': _QWEN2,
}
# As `tokenizer_config.json` calls special tokens, to their names in the file.
SPECIAL = dict(
    bos_token='bos', eos_token='eos', unk_token='unknown', pad_token='padding', sep_token='seperator',
    mask_token='mask',
)  # fmt: skip
ENDS = ('eos', 'eot', 'eom')  # after these nothing follows


def _tokens(header: Header, path: Path) -> list[str]:
    metadata = header.metadata
    model, tokens = metadata.get('tokenizer.ggml.model'), metadata.get('tokenizer.ggml.tokens')
    if model != 'gpt2' or not isinstance(tokens, list):
        raise UsageError(
            f'{path}: tokenizer.ggml.model = {shown(model)}: only byte-level BPE (gpt2) is read. Set '
            '--config.data.tokenizer.kind=tokenizers (or sentencepiece) and '
            '--config.data.tokenizer.path=FOLDER, with the tokenizer of the model in FOLDER.'
        )
    return tokens


def _id(header: Header, path: Path, name: str) -> int | None:
    """The id of a special token; None if the file names none."""
    field = f'tokenizer.ggml.{name}_token_id'
    value = header.metadata.get(field)
    if value is None:
        return None
    size = len(_tokens(header, path))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise UsageError(f'{path}: {field} = {shown(value)}: must be one of its {size:,} tokens.')
    return value


def _rules(header: Header, path: Path) -> dict[str, Any]:
    pre = header.metadata.get('tokenizer.ggml.pre')
    if pre is None and header.metadata.get('general.architecture') == 'gpt2':
        pre = 'gpt-2'  # older files have no name of the rules
    if not isinstance(pre, str) or pre not in RULES:
        raise UsageError(
            f'{path}: tokenizer.ggml.pre = {shown(pre)}: the rules {", ".join(RULES)} are known. Set '
            '--config.data.tokenizer.path=FOLDER, with the tokenizer.json of the model in FOLDER.'
        )
    return RULES[pre]


def _tokenizer(header: Header, path: Path) -> dict[str, Any]:
    """tokenizer.json."""
    tokens, rules = _tokens(header, path), _rules(header, path)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise UsageError(f'{path}: the token {shown(twice)} is there twice.')
    kinds = header.metadata.get('tokenizer.ggml.token_type', np.ones(len(tokens), np.int32))
    merges = header.metadata.get('tokenizer.ggml.merges')
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        raise UsageError(f'{path}: tokenizer.ggml.token_type needs a number for each token.')
    if not isinstance(merges, list) or not all(' ' in merge[1:] for merge in merges):
        raise UsageError(f'{path}: tokenizer.ggml.merges needs texts of two tokens and a blank.')
    added = [
        dict(
            id=int(number), content=tokens[number], special=bool(kinds[number] == CONTROL),
            single_word=False, lstrip=False, rstrip=False, normalized=False,
        )
        for number in np.flatnonzero(np.isin(kinds, (CONTROL, USER_DEFINED)))
    ]  # fmt: skip
    return dict(
        version='1.0', truncation=None, padding=None, added_tokens=added,
        normalizer=rules.get('normalizer'),
        pre_tokenizer=dict(type='Sequence', pretokenizers=rules['split']),
        post_processor=_before(header, path, rules.get('add_bos', False)),
        decoder=_byte_level(True),
        model=dict(
            type='BPE', vocab=vocabulary, merges=[_pair(merge) for merge in merges],
            dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
            fuse_unk=False, byte_fallback=False, ignore_merges=rules.get('ignore_merges', False),
        ),
    )  # fmt: skip


def _pair(merge: str) -> list[str]:
    """The two tokens of a merge; the first one may begin with the blank that is itself."""
    blank = merge.index(' ', 1)
    return [merge[:blank], merge[blank + 1 :]]


def _before(header: Header, path: Path, usual: bool) -> dict[str, Any] | None:
    """The post-processor that puts the begin token before a text, where the file asks for it."""
    begin = _id(header, path, 'bos')
    if begin is None or header.metadata.get('tokenizer.ggml.add_bos_token', usual) is not True:
        return None
    token = _tokens(header, path)[begin]
    first = dict(SpecialToken=dict(id=token, type_id=0))
    texts = [dict(Sequence=dict(id=name, type_id=0)) for name in 'AB']
    return dict(
        type='TemplateProcessing', single=[first, texts[0]], pair=[first, *texts],
        special_tokens={token: dict(id=token, ids=[begin], tokens=[token])},
    )  # fmt: skip


def _settings(header: Header, path: Path) -> dict[str, Any]:
    """tokenizer_config.json: special tokens, and chat templates."""
    metadata, settings = header.metadata, {}
    for name, theirs in SPECIAL.items():
        if (found := _id(header, path, theirs)) is not None:
            settings[name] = _tokens(header, path)[found]
    template = metadata.get('tokenizer.chat_template')
    return settings | (dict(chat_template=template) if isinstance(template, str) else {})


def _generation(header: Header, path: Path) -> dict[str, Any]:
    """generation_config.json: where a text ends."""
    ends = (_id(header, path, name) for name in ENDS)
    return dict(eos_token_id=[end for end in dict.fromkeys(ends) if end is not None])


FILES: dict[str, Callable[[Header, Path], dict[str, Any]]] = {
    'tokenizer.json': _tokenizer,
    'tokenizer_config.json': _settings,
    'generation_config.json': _generation,
}


def read(path: Path, name: str) -> bytes:
    """What would be in the file `name` of a folder, one of `FILES`.

    Raises:
      UsageError: the GGUF file cannot be read, or has a tokenizer of another kind.
    """
    return json.dumps(FILES[name](gguf_file.read_header(path), path), ensure_ascii=False).encode()
