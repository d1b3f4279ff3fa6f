"""Pairs of texts and overlapping windows as documents."""

import gzip

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from longmem_jax.config.base import base
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.load import load, load_source
from longmem_jax.data.parallel import PairCorpus
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.data.warnings import of_pairs, warnings_of
from longmem_jax.data.windows import Windows
from longmem_jax.errors import UsageError
from longmem_jax.segment import NOTHING


def settings(path, max_source=8, max_target=6):
    data = base().data
    data.source, data.path = 'parallel', str(path)
    data.pairs = dict(languages=('en', 'de'), max_source=max_source, max_target=max_target)
    return data


def write(path, split, english, german):
    (path / f'{split}.en').write_text(''.join(f'{line}\n' for line in english))
    with gzip.open(path / f'{split}.de.gz', 'wt') as file:
        file.write(''.join(f'{line}\n' for line in german))


def test_a_pair_is_one_segment(tmp_path):
    write(tmp_path, 'val', ['a cat'], ['katze'])
    corpus = load(settings(tmp_path), 'validation', Bytes())
    document = corpus[0]
    source, end = list(b'a cat'), Bytes.begin
    assert list(document.inputs) == source + [NOTHING] * 3 + [end] + list(b'katze')
    assert list(document.tokens[8:]) == [*b'katze', end]
    assert list(document.scored) == [0] * 8 + [1] * 6
    assert corpus.lengths().tolist() == [14] and corpus.pairs[0] == ('a cat', 'katze')
    assert document.num_bytes == 5


def test_long_pairs_are_left_out_of_training_and_cut_in_evaluation(tmp_path):
    for split in ('train', 'test'):
        write(tmp_path, split, ['short', 'far too long', '', 'x'], ['kurz', 'y', 'z', 'zu lang'])
    assert len(load(settings(tmp_path), 'train', Bytes())) == 1
    test = load(settings(tmp_path), 'test', Bytes())
    assert len(test) == 4
    assert bytes(test[1].inputs[:8].astype(np.uint8)) == b'far too '
    assert bytes(test[3].tokens[8:13].astype(np.uint8)) == b'zu la'
    assert test[3].tokens[-1] == Bytes.begin
    # The bytes are those of the part that is scored.
    assert [document.num_bytes for document in test] == [4, 1, 1, 5]
    (said,) = of_pairs(test)
    assert said.startswith('2 of 4 pairs are cut')


def test_a_file_of_pairs_that_is_no_utf_8_is_named(tmp_path):
    write(tmp_path, 'train', ['one'], ['eins'])
    assert not list(warnings_of(settings(tmp_path)))
    (tmp_path / 'test.en').write_text('old', encoding='utf-16')
    (tmp_path / 'val.de').write_text('schläft', encoding='latin-1')
    found = list(warnings_of(settings(tmp_path)))
    assert len(found) == 2 and f'{tmp_path}/val.de is not UTF-8' in found[0]
    assert f'{tmp_path}/test.en looks like UTF-16' in found[1]


def test_a_vocabulary_is_learnt_from_both_sides(tmp_path):
    write(tmp_path, 'train', ['one'], ['eins'])
    assert load_source(settings(tmp_path), 'train')[0].text == b'one\neins\n'


def test_a_file_in_utf_16_whose_lines_do_not_pair_up_is_named(tmp_path):
    write(tmp_path, 'train', ['a', 'b'], ['c', 'd'])
    (tmp_path / 'train.en').write_text('\u0a0a\nb\n', encoding='utf-16')
    with pytest.raises(UsageError, match='train.en looks like UTF-16'):
        PairCorpus(settings(tmp_path), 'train', Bytes())


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda path: None, 'no train.en'),
        (lambda path: write(path, 'train', ['a', 'b'], ['c']), '2 lines of en and 1 of de'),
        (lambda path: write(path, 'train', ['far too long'], ['x']), 'of 1 pair of train none has'),
        (lambda path: write(path, 'train', ['', 'a'], ['x', '']), 'of 2 pairs of train none has'),
    ],
)
def test_bad_pairs_are_one_clear_error(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(UsageError, match=message):
        PairCorpus(settings(tmp_path), 'train', Bytes())


def test_pairs_that_are_left_out_are_said(tmp_path):
    write(tmp_path, 'train', ['a', '', 'far too long', 'b'], ['x', 'y', 'z', 'w'])
    train = PairCorpus(settings(tmp_path), 'train', Bytes())
    assert len(train) == 2
    (said,) = of_pairs(train)
    assert said.startswith('2 of 4 pairs are left out')
    write(tmp_path, 'train', ['a'], ['x'])
    assert not list(of_pairs(PairCorpus(settings(tmp_path), 'train', Bytes())))


def test_pairs_without_a_place_are_an_error():
    with pytest.raises(UsageError, match='config.data.path is empty: give'):
        load(settings(''), 'train', Bytes())


class Texts:
    """A corpus of given lengths."""

    tokenizer = Bytes()

    def __init__(self, sizes):
        self._sizes = sizes

    def lengths(self):
        return np.asarray(self._sizes, np.int64)

    def __getitem__(self, index):
        size = self._sizes[index]
        return TokenizedDocument(np.arange(size, dtype=np.int32) + 100 * index, 3 * size)


@hypothesis.given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 8)
)
def test_windows_score_every_token_once(sizes, length, context):
    hypothesis.assume(context < length)
    corpus = Texts(sizes)
    windows = Windows(corpus, length, context)
    scored, num_bytes = [], 0.0
    for i in range(len(windows)):
        window = windows[i]
        assert len(window.tokens) == len(window.inputs) == windows.lengths()[i] <= length
        at = int(window.tokens[0])
        before = Bytes.begin if at % 100 == 0 else at - 1
        assert window.inputs[0] == before and list(window.inputs[1:]) == list(window.tokens[:-1])
        # What is scored has all of its context, or all there is.
        first = int(np.flatnonzero(window.scored)[0])
        assert first == (context if at % 100 else 0)
        scored.extend(window.tokens[window.scored > 0].tolist())
        num_bytes += window.num_bytes
    assert scored == [100 * i + j for i, size in enumerate(sizes) for j in range(size)]
    np.testing.assert_allclose(num_bytes, 3 * sum(sizes), rtol=1e-9)
