"""Tokenizers restore their input, as far as the vocabulary allows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.config.base import base
from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn
from longmem_jax.data.load import load, make_tokenizer
from longmem_jax.data.tokenizers import Bytes, Characters, Words, load_tokenizer
from longmem_jax.errors import UsageError

TEXT = 'the cat sat on the mat\nthe dog sat\n\nz\u00f6e sat on a caf\u00e9 \u2603 the end\n' * 20


@pytest.fixture
def config(tmp_path):
    for split in ('train', 'validation', 'test'):
        (tmp_path / f'{split}.txt').write_text(TEXT)
    config = base().data
    config.path = str(tmp_path)
    return config


@given(st.binary())
def test_bytes_round_trip(text):
    tokens = Bytes().encode(text)
    assert tokens.dtype == np.int32 and Bytes().decode(tokens) == text
    assert Bytes().decode(np.asarray([256, 65, 256])) == b'A'


@given(st.text())
def test_characters_round_trip(text):
    tokenizer = Characters(sorted(set(text)))
    text = text.encode('utf-8', 'replace')
    assert tokenizer.decode(tokenizer.encode(text)) == text.decode('utf-8', 'replace').encode()


def test_unknown_characters_and_words_have_a_token():
    tokenizer = Characters(['a'])
    assert tokenizer.decode(tokenizer.encode(b'ab')).decode() == 'a\ufffd'
    words = Words(['the', '<eos>', 'cat'])
    assert words.encode(b'the dog\ncat').tolist() == [0, 3, 1, 2, 1]
    assert words.decode(words.encode(b'the dog\n')) == b'the <unk> \n'
    assert words.vocab_size == 4 and words.begin == 1


@pytest.mark.parametrize(
    'text, ends', [(b'', 0), (b'a', 1), (b'a\n', 1), (b'a\n\nb', 3), (b'\n', 1)]
)
def test_every_line_has_one_end(text, ends):
    tokenizer = Words(['a', 'b', '<eos>'])
    assert (tokenizer.encode(text) == tokenizer.begin).sum() == ends


@pytest.mark.parametrize('kind, size', [('characters', 0), ('words', 0), ('bpe', 300)])
def test_learnt_once_then_reused(config, tmp_path, kind, size):
    config.tokenizer.kind, config.tokenizer.size = kind, size
    tokenizer = make_tokenizer(config, tmp_path)
    again = make_tokenizer(config, tmp_path)
    assert tokenizer.fingerprint() == again.fingerprint()
    tokens = load(config, 'test', tokenizer)[0].tokens
    assert 0 <= tokens.min() and tokens.max() < tokenizer.vocab_size
    assert 0 <= tokenizer.begin < tokenizer.vocab_size
    text = tokenizer.decode(tokens).decode()
    assert text.split() == TEXT.split()
    if kind != 'words':
        assert text == TEXT


def test_words_are_ordered_by_frequency(config, tmp_path):
    config.tokenizer.kind = 'words'
    make_tokenizer(config, tmp_path)
    words = (tmp_path / 'tokenizer.words.0.txt').read_text().splitlines()
    assert words[:3] == ['<eos>', 'the', 'sat']


def test_sentencepiece(config, tmp_path):
    config.tokenizer.kind, config.tokenizer.size = 'sentencepiece', 278
    tokenizer = make_tokenizer(config, tmp_path)
    tokens = tokenizer.encode(b'the cat sat')
    assert tokenizer.decode(tokens) == b'the cat sat'


def test_gpt2_folder(tmp_path):
    vocabulary = {chr(33 + i): i for i in range(94)} | {'\u0120': 94, 'ab': 95, '<|endoftext|>': 96}
    (tmp_path / 'vocab.json').write_text(json.dumps(vocabulary))
    (tmp_path / 'merges.txt').write_text('#version: 0.2\na b\n')
    tokenizer = load_tokenizer('tokenizers', tmp_path)
    assert tokenizer.begin == 96 and tokenizer.vocab_size == 97
    tokens = tokenizer.encode(b'ab cab')
    assert tokens.tolist()[0] == 95 and tokenizer.decode(tokens) == b'ab cab'


def test_folder_of_a_pretrained_model(config, tmp_path):
    config.tokenizer.kind, config.tokenizer.size = 'bpe', 300
    make_tokenizer(config, tmp_path)
    whole = json.loads((tmp_path / 'tokenizer.bpe.300.json').read_text())
    for name in ('<s>', '<|im_start|>'):
        size = len(whole['model']['vocab']) + len(whole['added_tokens'])
        fields = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        whole['added_tokens'].append(dict(id=size, content=name, **fields))
    folder = tmp_path / 'folder'
    folder.mkdir()
    (folder / 'tokenizer.json').write_text(json.dumps(whole))
    plain = load_tokenizer('tokenizers', folder)
    marked = plain.encode(b'<|im_start|>the cat')
    assert marked[0] == plain.vocab_size - 1  # as chat templates print it
    assert plain.decode(marked[1:]) == b'the cat'
    for token in ('<|im_start|>', dict(content='<|im_start|>', lstrip=False)):
        (folder / 'tokenizer_config.json').write_text(json.dumps(dict(bos_token=token)))
        assert load_tokenizer('tokenizers', folder).begin == marked[0] != plain.begin
    (folder / 'tokenizer_config.json').write_text(json.dumps(dict(bos_token=None)))
    assert load_tokenizer('tokenizers', folder).begin == plain.begin
    (folder / 'tokenizer_config.json').write_text(json.dumps(dict(bos_token='<nothing>')))
    with pytest.raises(UsageError, match="names bos_token '<nothing>', which it does not have"):
        load_tokenizer('tokenizers', folder)


def test_faults(config, tmp_path):
    for kind, path, message in (
        ('word', '', "did you mean 'words'"),
        ('tokenizers', '', 'file of a tokenizers'),
        ('tokenizers', str(tmp_path / 'none.json'), 'cannot be read'),
        ('characters', str(tmp_path / 'train.txt'), 'not a characters tokenizer'),
    ):
        config.tokenizer.kind, config.tokenizer.path = kind, path
        with pytest.raises(UsageError, match=message):
            make_tokenizer(config, tmp_path)
    with pytest.raises(UsageError, match='needs 257'):
        learn('bpe', None, 10, tmp_path / 'x.json')


def test_a_wordpiece_vocabulary_is_the_same_in_every_run(tmp_path):
    """The trainer's own numbers differ from run to run, and so would the pieces."""
    text = ' '.join(f'{a}{b}{c}' for a in 'abcdef' for b in 'ghijkl' for c in 'mnopqr')
    found = set()
    for name in '1234':
        learn('wordpiece', [Document('text', text.encode())], 300, tmp_path / name)
        found.add((tmp_path / name).read_bytes())
    assert len(found) == 1
    tokenizer = load_tokenizer('wordpiece', tmp_path / '1')
    # Pieces inside of words are no marks: a text may spell them.
    assert list(tokenizer.encode(b'##m')) == list(tokenizer.encode(b'# # m'))
    assert tokenizer.token_id('[CLS]') == 2 and tokenizer.token_id('##m') is not None
