"""The tokenizer of a GGUF file: rules by name, special tokens, begin, ends, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from longmem_jax.data import conventions, gguf_tokenizer
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.hosts import chat, template_process
from longmem_jax.untrusted.gguf_file import Header

FILE = Path(__file__).parent.parent / 'goldens' / 'gguf' / 'llama.gguf'
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*ALPHABET, 'ab', 'abc', '<s>', '</s>', '<tool>']


def header(**changes):
    """Of a tokenizer; names without `tokenizer.ggml.`, None = removed."""
    kinds = np.asarray([1] * (len(TOKENS) - 3) + [3, 3, 4], np.int32)
    given = dict(
        model='gpt2', pre='gpt-2', tokens=TOKENS, token_type=kinds, merges=['a b'],
        bos_token_id=TOKENS.index('<s>'), eos_token_id=TOKENS.index('</s>'),
    ) | changes  # fmt: skip
    named = {f'tokenizer.ggml.{key}': item for key, item in given.items() if item is not None}
    return Header(named, {})


def made(**changes):
    given = gguf_tokenizer.FILES['tokenizer.json'](header(**changes), Path('F.gguf'))
    return tokenizers.Tokenizer.from_str(json.dumps(given))


ONE_BY_ONE = ['1', '2', '3', '4', '5']
WORDS = ['I', "'VE", '\u0120']
LINES = ['\u0120ab', '\u010a\u010a', '\u0120', '\u0120x']


@pytest.mark.parametrize(
    'pre, pieces',
    [
        ('gpt-2', ['I', "'", 'VE', '\u012012345', '\u0120ab', '\u010a\u010a\u0120', '\u0120x']),
        ('smollm', ['I', "'", 'VE', '\u0120', *ONE_BY_ONE, '\u0120ab', '\u010a\u010a\u0120', '\u0120x']),
        ('llama-bpe', [*WORDS, '123', '45', *LINES]),
        ('qwen2', [*WORDS, *ONE_BY_ONE, *LINES]),
    ],
)  # fmt: skip
def test_rules_by_name(pre, pieces):
    found = made(pre=pre).pre_tokenizer.pre_tokenize_str("I'VE 12345 ab\n\n  x")
    assert [piece for piece, _ in found] == pieces


def test_what_else_differs_between_rules():
    """Llama 3 takes words that are tokens as they are; Qwen joins accents with their letters."""
    assert made().encode('abc').tokens == ['ab', 'c']
    assert made(pre='llama-bpe').encode('abc', add_special_tokens=False).tokens == ['abc']
    apart, joined = 'e\u0301', '\u00e9'
    assert made().encode(apart).ids != made().encode(joined).ids
    assert made(pre='qwen2').encode(apart).ids == made(pre='qwen2').encode(joined).ids


def test_special_tokens_are_found_in_texts():
    tokenizer = made()
    found = tokenizer.encode('a<tool>b</s> ')
    assert found.tokens == ['a', '<tool>', 'b', '</s>', '\u0120']
    assert tokenizer.decode(found.ids) == 'a<tool>b '  # control tokens are no text


@pytest.mark.parametrize(
    'changes, begins',
    [
        (dict(), False),
        (dict(add_bos_token=True), True),
        (dict(pre='llama-bpe'), True),
        (dict(pre='llama-bpe', add_bos_token=False), False),
        (dict(pre='llama-bpe', bos_token_id=None), False),
    ],
)
def test_texts_begin_as_the_file_says(changes, begins):
    assert made(**changes).encode('c').tokens == ['<s>'] * begins + ['c']


def test_an_old_file_has_no_name_of_rules():
    old = header(pre=None)
    old.metadata['general.architecture'] = 'gpt2'
    given = gguf_tokenizer.FILES['tokenizer.json'](old, Path('F.gguf'))
    wanted = gguf_tokenizer.FILES['tokenizer.json'](header(), Path('F.gguf'))
    assert given == wanted


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(model='llama'), "tokenizer.ggml.model = 'llama': only byte-level BPE .*tokenizer.path=F"),
        (dict(tokens=None), 'only byte-level BPE'),
        (dict(pre='tekken'), "tokenizer.ggml.pre = 'tekken': the rules gpt-2, .*tokenizer.path=FOLDER"),
        (dict(pre=None), 'tokenizer.ggml.pre = None'),
        (dict(tokens=[*TOKENS[:-1], 'a']), "the token 'a' is there twice"),
        (dict(token_type=np.ones(3)), 'needs a number for each token'),
        (dict(token_type='x'), 'needs a number for each token'),
        (dict(merges=None), 'needs texts of two tokens'),
        (dict(merges=['ab']), 'needs texts of two tokens'),
        (dict(merges=[' ']), 'needs texts of two tokens'),
        (dict(bos_token_id=len(TOKENS)), 'bos_token_id = 261: must be one of its 261 tokens'),
        (dict(bos_token_id=-1), 'bos_token_id = -1: must be one of'),
        (dict(bos_token_id='1', pre='llama-bpe'), "bos_token_id = '1': must be one of"),
    ],
)  # fmt: skip
def test_what_is_refused(changes, message):
    wrong, path = header(**changes), Path('F.gguf')
    with pytest.raises(UsageError, match=message):
        for write in gguf_tokenizer.FILES.values():
            write(wrong, path)


def test_a_file_in_place_of_a_folder(monkeypatch):
    pytest.importorskip('jinja2')
    monkeypatch.setattr(chat, 'run', template_process.answer)
    tokenizer = load_tokenizer('tokenizers', FILE)
    begin, end, turn = map(tokenizer.token_id, ('<|begin|>', '<|end|>', '<|turn|>'))
    found = conventions.of_folder(FILE, tokenizer)
    assert found.begin == (begin,) and found.ends == (end, turn)
    text = chat.load_template(FILE, found.special).render([dict(role='user', content='Hi')])
    assert text == '<|begin|>user\nHi<|end|><|begin|>'
    tokens = tokenizer.encode(text.encode())
    assert list(tokens[[0, -2, -1]]) == [begin, end, begin]
    assert tokenizer.decode(tokens) == b'user\nHi'
