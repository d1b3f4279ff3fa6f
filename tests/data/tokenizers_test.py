"""Tokenizers restore their input, as far as the vocabulary allows."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.config.base import base
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn, word_path
from longmem_jax.data.load import load, make_tokenizer
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes, Characters, Words
from longmem_jax.data.warnings import of_unknown
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
    found = [Document('', b'the dog\n'), Document('', b'the cat\n' * 9)]
    (said,) = of_unknown(Corpus(found, words))
    assert said.startswith('33% of the first document') and not [
        *of_unknown(Corpus(found[1:], words))
    ]


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


def test_a_vocabulary_without_its_word_is_learned_again_unless_a_model_has_it(config, tmp_path):
    """As of a run that was killed between the two."""
    config.tokenizer.kind = 'words'
    make_tokenizer(config, tmp_path)
    path = tmp_path / 'tokenizer.words.0.txt'
    whole, word = path.read_text(), word_path(path)
    path.write_text('<eos>\nthe\n')
    word.unlink()
    make_tokenizer(config, tmp_path)
    assert path.read_text() == whole and word.exists()
    path.write_text('<eos>\nthe\n')
    word.unlink()
    (tmp_path / 'checkpoints/7').mkdir(parents=True)
    assert make_tokenizer(config, tmp_path).vocab_size < 5 and not word.exists()


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
    with pytest.raises(
        UsageError, match="names bos_token '<nothing>', which the tokenizer does not have"
    ):
        load_tokenizer('tokenizers', folder)


def test_problems(config, tmp_path):
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


def sentencepiece_model(tmp_path):
    text = Document('text', TEXT.encode())
    learn('sentencepiece', [text], 278, tmp_path / 'whole.model')
    return (tmp_path / 'whole.model').read_bytes()


@pytest.mark.parametrize(
    'kind, content, message',
    [
        ('sentencepiece', b'', 'it is empty'),
        ('characters', b'["a", "\\ud800"]', 'surrogates not allowed'),
        ('characters', b'["a", "b", "a"]', "'a' is there again as number 3"),
        ('characters', b'["a", "bc"]', "'bc': must be one character"),
        ('characters', b'["a", 3]', '3: must be one character'),
        ('characters', b'[]', 'must be a list'),
        ('characters', b'[' * 200_000, 'more than 64 levels'),
        ('characters', b'["a"', 'not JSON'),
        ('words', b'the\ncat\nthe\n', "'the' is there again as number 3"),
        ('words', b'the 12\ncat 3\n', "line 1, 'the 12': one word"),
        ('words', b'the\n\ncat\n', 'line 2, .*: one word'),
        ('words', b'the\xff\n', 'UnicodeDecodeError'),
        ('tokenizers', b'{}', 'not a tokenizers tokenizer'),
        ('tokenizers', b'', 'not a tokenizers tokenizer'),
        ('tokenizers', b'\xff', 'not a tokenizers tokenizer'),
        ('tokenizers', b'[' * 200_000, 'not a tokenizers tokenizer'),
    ],
)
def test_a_file_that_is_no_vocabulary(kind, content, message, tmp_path):
    (tmp_path / 'file').write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_tokenizer(kind, tmp_path / 'file')


def test_a_cut_sentencepiece_model_is_refused(tmp_path):
    whole = sentencepiece_model(tmp_path)
    for size in (1, 7, len(whole) // 2, len(whole) - 1):
        (tmp_path / 'cut').write_bytes(whole[:size])
        with pytest.raises(UsageError, match='not a sentencepiece tokenizer'):
            load_tokenizer('sentencepiece', tmp_path / 'cut')


def word_level(**changes):
    """A tokenizer of the library that splits nothing, as JSON."""
    return json.dumps(
        dict(
            version='1.0', truncation=None, padding=None, added_tokens=[], normalizer=None,
            pre_tokenizer=None, post_processor=None, decoder=None,
            model=dict(type='WordLevel', vocab=dict(a=0, b=1), unk_token='a'),
        )
        | changes
    )  # fmt: skip


def test_a_regular_expression_that_never_ends_is_one_error(tmp_path):
    """The library panics, which is no `Exception`, and would end the program."""
    bomb = dict(type='Replace', pattern=dict(Regex='(a+)+$'), content='x')
    (tmp_path / 'bomb.json').write_text(word_level(normalizer=bomb))
    tokenizer = load_tokenizer('tokenizers', tmp_path / 'bomb.json')
    assert len(tokenizer.encode(b'aaa'))
    for encode in (
        lambda text: tokenizer.encode(text.encode()),
        lambda text: tokenizer.encode_all([text]),
        tokenizer.encode_with_places,
    ):
        with pytest.raises(UsageError, match='cannot encode this text .*retry-limit'):
            encode('a' * 40 + 'b')


REPLACE = {'type': 'Replace', 'pattern': {'String': 'a'}}


@pytest.mark.parametrize(
    'rules, message',
    [
        ({'normalizer': REPLACE | {'content': 'b' * 10**6}}, 'normalizer may make 1,000,000 char'),
        ({'normalizer': {'type': 'Sequence', 'normalizers': [REPLACE | {'content': 'aa'}] * 32}},
         'normalizer may make 4,294,967,296 char'),
        ({'normalizer': REPLACE | {'pattern': {'Regex': 'a*'}, 'content': 'b' * 99}}, '100 char'),
        ({'normalizer': {'type': 'Prepend', 'prepend': 'b' * 99}}, '100 char'),
        ({'decoder': {'type': 'Sequence', 'decoders': [REPLACE | {'content': 'b' * 9}] * 2}},
         'decoder may make 81 char'),
        ({}, 'max_input_chars_per_word is more than 10,000'),
    ],
)  # fmt: skip
def test_rules_that_make_any_amount_of_text_are_refused(rules, message, tmp_path):
    import tokenizers

    vocabulary = {'a': 0, 'b': 1}
    model = tokenizers.models.WordPiece(
        vocabulary, unk_token='b', max_input_chars_per_word=100 if rules else 10**9
    )
    content = json.loads(tokenizers.Tokenizer(model).to_str()) | rules
    (tmp_path / 'a.json').write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        load_tokenizer('tokenizers', tmp_path / 'a.json')


def test_the_rules_of_common_models_are_within_the_limit(tmp_path):
    import tokenizers
    from tokenizers import decoders, models, normalizers

    made = tokenizers.Tokenizer(models.WordLevel({'a': 0, '_b': 1}, 'a'))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581'), normalizers.NFKC()]
    )
    made.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.Strip(' ', 1, 0)])
    made.save(str(tmp_path / 'a.json'))
    assert load_tokenizer('tokenizers', tmp_path / 'a.json').vocab_size == 3


def test_words_without_an_id_are_one_error(tmp_path):
    model = dict(type='WordLevel', vocab=dict(a=0), unk_token='<unk>')
    (tmp_path / 't.json').write_text(word_level(model=model))
    tokenizer = load_tokenizer('tokenizers', tmp_path / 't.json')
    with pytest.raises(UsageError, match='cannot encode this text'):
        tokenizer.encode(b'c')


@pytest.mark.parametrize(
    'model, message',
    [
        (dict(type='WordLevel', vocab={}, unk_token='a'), '0 ids'),
        (dict(type='WordLevel', vocab=dict(a=2**32 - 1), unk_token='a'), '4294967296 ids'),
        (dict(type='WordLevel', vocab=dict(a=-1), unk_token='a'), 'not a tokenizers tokenizer'),
    ],
)
def test_ids_that_no_model_has(model, message, tmp_path):
    (tmp_path / 't.json').write_text(word_level(model=model))
    with pytest.raises(UsageError, match=message):
        load_tokenizer('tokenizers', tmp_path / 't.json')


@pytest.mark.parametrize(
    'settings, message',
    [
        ('[]', 'must be an object'),
        ('{"bos_token": 3}', 'bos_token = 3'),
        ('{"bos_token": {"content": 3}}', 'bos_token'),
        ('{"do_lower_case": "no"}', 'do_lower_case'),
        ('{', 'not JSON'),
        ('[' * 100_000, 'more than 64 levels'),
    ],
)
def test_settings_of_a_folder_are_checked(settings, message, tmp_path):
    (tmp_path / 'tokenizer.json').write_text(word_level())
    (tmp_path / 'tokenizer_config.json').write_text(settings)
    with pytest.raises(UsageError, match=message):
        load_tokenizer('tokenizers', tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ('vocab.json', 'merges.txt', 'tokenizer.model', 'words'):
        os.mkfifo(tmp_path / name)
    for kind, path in (('bpe', ''), ('sentencepiece', ''), ('words', 'words'), ('bpe', 'words')):
        with pytest.raises(UsageError, match='not a regular file'):
            load_tokenizer(kind, tmp_path / path)


def test_a_vocabulary_of_other_data_is_not_used(config, tmp_path):
    workdir = tmp_path / 'run'
    workdir.mkdir()
    config.tokenizer.kind = 'words'
    words = make_tokenizer(config, workdir)
    moved = tmp_path / 'moved'
    moved.mkdir()
    (moved / 'train.txt').write_text(TEXT)
    config.path = str(moved)
    assert make_tokenizer(config, workdir).fingerprint() == words.fingerprint()
    (file,) = workdir.glob('tokenizer.words.*')
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match='was cut or changed since it was learned'):
        make_tokenizer(config, workdir)
    file.write_bytes(whole)
    (moved / 'train.txt').write_text('other words')
    with pytest.raises(UsageError, match=f'was learned from other data: {tmp_path}, 1 documents'):
        make_tokenizer(config, workdir)
    config.path = str(tmp_path)
    (tmp_path / 'train.txt').write_text('other words')
    with pytest.raises(UsageError, match='from other texts of .*, 1 documents: its task, its sett'):
        make_tokenizer(config, workdir)
    # A trained model reads any text with its own vocabulary.
    (workdir / 'checkpoints' / '3').mkdir(parents=True)
    assert make_tokenizer(config, workdir).fingerprint() == words.fingerprint()
    (workdir / 'checkpoints' / '3').rmdir()
    (word,) = workdir.glob('learned_from.*')
    for content in ('{}', '[[', ''):
        word.write_text(content)
        with pytest.raises(UsageError, match='learned_from.tokenizer.words.0.json'):
            make_tokenizer(config, workdir)
