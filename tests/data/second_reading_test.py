"""The second reading: pieces of texts followed by themselves, in a cipher or not, and what is scored."""

import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError

TEXTS = {
    'train': 'the sea was calm é\n',
    'validation': 'a dog ran home ü\n',
    'test': 'no one came by ö\n',
}


def config_of(path, **task):
    for split, text in TEXTS.items():
        (path / f'{split}.txt').write_text(text * 40)
    config = base()
    config.data.source, config.data.path = 'second_reading', str(path)
    config.data.task = (
        dict(documents=60, eval_documents=6, lengths=(8, 30, 200), copies=2, cipher=0.5) | task
    )
    return config


def test_a_test_document_is_a_piece_followed_by_itself(tmp_path):
    config = config_of(tmp_path)
    assert checks.find_problems(config, 1) == []
    corpus = load.load(config.data, 'test', Bytes())
    assert len(corpus) == 6
    for index in range(6):
        document, length = corpus[index], (8, 30, 200)[index % 3]
        first, second = np.split(document.tokens, 2)
        np.testing.assert_array_equal(first, second)
        text = first.astype(np.uint8).tobytes()
        assert text.decode() in TEXTS['test'] * 40  # no character is broken
        assert length - 1 <= len(text) == document.num_bytes <= length
        assert document.scored.tolist() == [0] * len(text) + [1] * len(text)
    alone = load.load(config_of(tmp_path, copies=1).data, 'test', Bytes())
    for index in range(6):
        np.testing.assert_array_equal(np.tile(alone[index].tokens, 2), corpus[index].tokens)
        assert alone[index].scored.all() and alone[index].num_bytes == corpus[index].num_bytes


def test_training_scores_both_copies_of_a_text_and_the_second_of_a_cipher(tmp_path):
    corpus = load.load(config_of(tmp_path).data, 'train', Bytes())
    ciphers = 0
    for index in range(60):
        document = corpus[index]
        first, second = np.split(document.tokens, 2)
        np.testing.assert_array_equal(first, second)
        plain = bytes(first.astype(np.uint8)).decode('utf-8', 'replace') in TEXTS['train'] * 40
        ciphers += not plain
        assert document.scored[len(first) :].all() and document.scored[: len(first)].all() == plain
        assert document.num_bytes == len(first) * (2 if plain else 1)
        # Equal tokens stay equal, and none becomes the begin token, in another way in each document.
        text = np.frombuffer((TEXTS['train'] * 40).encode()[: len(first)], np.uint8)
        assert plain or len({*zip(text.tolist(), first.tolist(), strict=True)}) == len(
            {*first.tolist()}
        )
        assert first.max() < Bytes.begin
    assert 15 < ciphers < 45
    lengths = corpus.lengths() // 2
    assert lengths.min() >= 7 and lengths.max() <= 200 and np.median(lengths) < 100


def test_a_seed_draws_the_same_again_and_another_does_not(tmp_path):
    config = config_of(tmp_path)
    corpus, again = (load.load(config.data, 'train', Bytes()) for _ in range(2))
    np.testing.assert_array_equal(corpus[7].tokens, again[7].tokens)
    config.data.seed = 1
    other = load.load(config.data, 'train', Bytes())
    assert any(corpus[i].tokens.tolist() != other[i].tokens.tolist() for i in range(5))


def test_without_a_path_the_texts_are_the_standard_library(tmp_path):
    config = config_of(tmp_path, lengths=(500,), cipher=0.0)
    config.data.path = ''
    test = load.load(config.data, 'test', Bytes())
    assert test[0].num_bytes == 500


@pytest.mark.parametrize(
    'task, words',
    [
        (dict(lengths=(100, 30)), 'lengths = (100, 30): must be rising ints'),
        (dict(lengths=()), 'must be rising ints'),
        (dict(lengths=(0, 3)), 'must be rising ints'),
        (dict(copies=3), 'copies = 3: must lie between'),
        (dict(cipher=1.5), 'cipher = 1.5: must lie between'),
        (dict(distances=3), 'distances: not a field here'),
    ],
)
def test_problems(tmp_path, task, words):
    problems = checks.find_problems(config_of(tmp_path, **task), 1)
    assert [problem for problem in problems if words in problem]


def test_pieces_that_are_too_long_are_refused(tmp_path):
    corpus = load.load(config_of(tmp_path, lengths=(5000,)).data, 'test', Bytes())
    with pytest.raises(UsageError, match='no piece of 5,000 bytes is in the test split'):
        corpus[0]
