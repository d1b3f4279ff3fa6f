"""Inputs for which text or tokens could be lost silently."""

import gzip
import json
import lzma

import numpy as np
import pytest
import tokenizers

from longmem_jax.data import tokenizers as kinds
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document, cut
from longmem_jax.data.lanes import Cursor, LaneDataset
from longmem_jax.data.load import load_source, make_tokenizer
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.errors import UsageError
from tests.data.reading import settings, texts

SPLITS = ('train', 'validation', 'test')


def byte_level(path, text):
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([text], 300, show_progress=False)
    trained._tokenizer.enable_truncation(8)
    trained._tokenizer.enable_padding(length=16)
    path.write_text(trained.to_str())
    return load_tokenizer('tokenizers', path)


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(tmp_path):
    tokenizer = byte_level(tmp_path / 'cut.json', 'hello world')
    text = b'hello world ' * 40
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize('text', ['one two\n\n  three\n' * 300, 'a b  c ' * 900, 'x' * 3000])
def test_long_texts_give_the_same_tokens_in_parts(tmp_path, monkeypatch, text):
    tokenizer = byte_level(tmp_path / 't.json', text)
    whole = tokenizer.encode(text.encode())
    longest = []
    encode = tokenizer._ids
    monkeypatch.setattr(tokenizer, '_ids', lambda part: longest.append(len(part)) or encode(part))
    monkeypatch.setattr(kinds, 'ENCODED_CHARACTERS', 500)
    np.testing.assert_array_equal(tokenizer.encode(text.encode()), whole)
    assert max(longest) < 1000 or ' ' not in text  # no position to cut: not split


def test_ids_with_gaps_are_inside_the_vocabulary():
    model = tokenizers.models.WordLevel({'a': 0, 'b': 9}, unk_token='a')
    tokenizer = kinds.FromJson(tokenizers.Tokenizer(model))
    assert tokenizer.encode(b'b').max() < tokenizer.begin < tokenizer.vocab_size


def test_other_merges_are_another_tokenizer(tmp_path):
    vocabulary = {chr(33 + i): i for i in range(94)} | {'ab': 94, 'bc': 95}
    (tmp_path / 'vocab.json').write_text(json.dumps(vocabulary))
    found = []
    for merges in ('a b\nb c\n', 'b c\na b\n'):
        (tmp_path / 'merges.txt').write_text('#version: 0.2\n' + merges)
        found.append(load_tokenizer('tokenizers', tmp_path))
    assert found[0].encode(b'abc').tolist() != found[1].encode(b'abc').tolist()
    assert found[0].fingerprint() != found[1].fingerprint()


def test_another_size_or_kind_is_learnt_anew(tmp_path):
    for split in SPLITS:
        (tmp_path / f'{split}.txt').write_text('the cat sat on a mat\n' * 50)
    config = settings(tmp_path)
    sizes = {}
    for kind, size in (('bpe', 260), ('bpe', 265), ('characters', 0), ('words', 5)):
        config.tokenizer.kind, config.tokenizer.size = kind, size
        sizes[kind, size] = make_tokenizer(config, tmp_path).vocab_size
    # 9 letters, blank, line end, unknown and begin.
    assert sizes == {('bpe', 260): 260, ('bpe', 265): 265, ('characters', 0): 13, ('words', 5): 5}
    with pytest.raises(UsageError, match='--workdir'):
        make_tokenizer(config, None)
    config.tokenizer.kind, config.tokenizer.path = 'characters', str(tmp_path / 'bpe.json')
    (tmp_path / 'bpe.json').write_text('{"model": 1}')
    with pytest.raises(UsageError, match='must be a list'):
        make_tokenizer(config, tmp_path)


def test_sentencepiece_gives_back_line_ends_and_blanks(tmp_path):
    (tmp_path / 'train.txt').write_text('the cat  sat\n\non the mat\n' * 50)
    config = settings(tmp_path)
    config.tokenizer.kind, config.tokenizer.size = 'sentencepiece', 300
    tokenizer = make_tokenizer(config, tmp_path)
    text = b' the cat  sat\n\non\n'
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize('fractions', [(0.7, 0.2, 0.1), (0.6, 0.3, 0.1), (0.9, 0.05, 0.05)])
@pytest.mark.parametrize('packed', [lambda b: b, lzma.compress])
def test_fractions_lose_no_byte(tmp_path, fractions, packed):
    content = bytes(range(200))
    path = tmp_path / ('one' if packed(b'') == b'' else 'one.xz')
    path.write_bytes(packed(content))
    config = settings(path, fractions=fractions)
    assert b''.join(texts(config, split)[0] for split in SPLITS) == content


def test_packed_json_lines_are_read_by_position(tmp_path, monkeypatch):
    (tmp_path / 'train').mkdir()
    wanted = [f'{shard} {line} ' * 9 for shard in range(3) for line in range(20)]
    for shard in range(3):
        lines = [json.dumps({'text': t}) for t in wanted[20 * shard : 20 * shard + 20]]
        (tmp_path / 'train' / f'{shard}.jsonl.gz').write_bytes(
            gzip.compress('\n'.join(lines).encode())
        )
    source = load_source(settings(tmp_path), 'train')
    monkeypatch.setattr(gzip, 'open', None)  # nothing is unpacked again
    for index in np.random.default_rng(0).permutation(60):
        assert source[int(index)].text.decode() == wanted[index]


def test_hidden_folders_are_no_data(tmp_path):
    (tmp_path / 'train' / '.ipynb_checkpoints').mkdir(parents=True)
    (tmp_path / 'train' / '.ipynb_checkpoints' / 'a.txt').write_text('old')
    (tmp_path / 'train' / 'a.txt').write_text('new')
    assert texts(settings(tmp_path)) == [b'new']


def test_an_article_may_have_a_title_of_one_letter(tmp_path):
    (tmp_path / 'train.txt').write_text(' \n = Ab = \n \n x \n \n = M = \n \n y \n')
    assert len(texts(settings(tmp_path, documents='wiki'))) == 2


@pytest.mark.parametrize('text', ['\u00e9' * 1001, '\u2603' * 500, 'word ' * 400])
def test_pieces_end_between_words_or_characters(text):
    parts = [text.encode()[start:end] for start, end in cut(text.encode(), 7)]
    assert ''.join(part.decode() for part in parts) == text
    assert all(part.endswith(b' ') for part in parts) or ' ' not in text


class Counted:
    """Documents that count how often they are read."""

    reads = 0

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.reads += 1
        return Document(str(index), b'x' * (20 + index))


def test_shared_evaluation_reads_a_document_once_and_refuses_a_cursor():
    source = Counted()
    corpus = Corpus(source, kinds.Bytes())
    dataset = LaneDataset(corpus, range(2), 4, 8, 2, 0, False, 1, None)
    assert len(list(dataset)) == len(list(dataset)) and source.reads == 10
    dataset.cursor = Cursor(np.zeros(2, np.int32), np.zeros(2, np.int32))
    with pytest.raises(ValueError, match='begin at its start'):
        iter(dataset)
