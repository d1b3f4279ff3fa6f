"""Scores of responses, by hand."""

import sys

import pytest

from longmem_jax.errors import UsageError
from longmem_jax.hosts.evaluation.overlap import f1, overlap


def test_f1_is_that_of_words_without_articles_and_punctuation():
    assert f1('The cat, sat!', 'a cat sat') == 1
    assert f1('one two three', 'three four') == pytest.approx(2 / 5)
    assert f1('yes yes', 'yes') == pytest.approx(2 / 3)
    assert f1('', '') == f1('a', 'the') == f1('one', '') == 0


def test_means_in_percent():
    pytest.importorskip('rouge_score')
    pytest.importorskip('nltk')
    found = overlap(['the cats run home', 'no'], ['cat runs', 'yes'])
    # Of the stems cat, run: two of four words, in two words of its own.
    assert found['rouge1'] == found['rougeL'] == pytest.approx(100 * (2 / 3) / 2)
    assert found['rouge1_recall'] == pytest.approx(100 * (2 / 4) / 2)
    assert found['f1'] == 0
    (meteor,) = [value for name, value in found.items() if name.startswith('meteor')]
    # Two stems in one chunk: F = P R / (.9 P + .1 R), less .5 (1 chunk / 2 matches)^3.
    mean = 1 * 0.5 / (0.9 * 1 + 0.1 * 0.5)
    assert meteor == pytest.approx(100 * mean * (1 - 0.5 * (1 / 2) ** 3) / 2)
    swapped = overlap(['home run'], ['run home'])
    assert swapped['rouge1'] == 100 and swapped['rougeL'] == 50 and swapped['f1'] == 100


def test_meteor_says_what_it_matches(monkeypatch):
    pytest.importorskip('rouge_score')
    monkeypatch.setattr('longmem_jax.hosts.evaluation.overlap._wordnet', lambda: None)
    assert 'meteor_exact_stem' in overlap(['a'], ['b']) and 'meteor' not in overlap(['a'], ['b'])


def test_missing_libraries_are_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, 'rouge_score.rouge_scorer', None)
    with pytest.raises(
        UsageError, match=r"pip install 'longmem_jax\[dialogue\]'; --config.data.task.resp"
    ):
        overlap(['a'], ['b'])


def test_nothing_to_compare():
    with pytest.raises(UsageError, match='0 references, 0 texts'):
        overlap([], [])
