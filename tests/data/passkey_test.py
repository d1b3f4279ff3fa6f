"""Passkey retrieval in prose: what is written, drawn and refused."""

import itertools
import re

import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError

TEXTS = {'train': 'the sea was calm ', 'validation': 'a dog ran home ', 'test': 'no one came by '}


def config_of(path, **task):
    for split, text in TEXTS.items():
        (path / f'{split}.txt').write_text(text * 40)
    config = base()
    config.data.source, config.data.path = 'passkey', str(path)
    config.data.task = (
        dict(documents=50, eval_documents=6, answer_length=3, before=20, num_keys=1)
        | dict(distances=(0, 30, 200))
        | task
    )
    return config


def text_of(document):
    return document.tokens.astype(np.uint8).tobytes().decode()


def test_a_key_is_asked_for_at_every_distance(tmp_path):
    config = config_of(tmp_path)
    assert checks.find_problems(config, 1) == []
    corpus = load.load(config.data, 'test', Bytes())
    assert len(corpus) == 6
    for document, distance in zip(map(corpus.__getitem__, range(6)), itertools.cycle((0, 30, 200))):
        before, given, between, asked = text_of(document).split('\n\n')
        ((key, again),) = re.findall(r'is (\d{3})\. .*: (\d{3}) is', given)
        assert (len(between), asked.split()[-1]) == (distance, key) and key == again
        assert before in TEXTS['test'] * 40 and between in TEXTS['test'] * 40 and len(before) <= 20
        assert document.num_bytes == 0 and document.scored.tolist()[-4:] == [1, 1, 1, 2]
        assert document.scored.sum() == 5


def test_several_keys_have_names_and_all_are_asked_for(tmp_path):
    config = config_of(tmp_path, num_keys=3)
    assert checks.find_problems(config, 1) == []
    corpus, orders = load.load(config.data, 'train', Bytes()), set()
    for document in map(corpus.__getitem__, range(20)):
        text = text_of(document)
        given = dict(re.findall(r'The pass key of (\w+) is (\d{3})\. ', text))
        asked = re.findall(r'What is the pass key of (\w+)\? The pass key of \1 is (\d{3})', text)
        assert len(given) == 3 and dict(asked) == given and len(asked) == 3
        orders.add(tuple(list(given).index(name) for name, _ in asked))
        assert (document.scored == 2).sum() == 3 and document.scored.sum() == 15
    assert len(orders) > 3


def test_training_draws_distances_and_a_seed_draws_the_same_again(tmp_path):
    config = config_of(tmp_path)
    corpus = load.load(config.data, 'train', Bytes())
    texts = [text_of(corpus[index]) for index in range(50)]
    lengths = [len(text.split('\n\n')[2]) for text in texts]
    assert min(lengths) >= 0 and max(lengths) <= 200 and len({*lengths}) > 20
    assert np.median(lengths) < 40  # every doubling is as frequent
    del config.data.task.num_keys  # as runs of earlier versions have it
    assert checks.find_problems(config, 1) == []
    again = load.load(config.data, 'train', Bytes())
    assert text_of(again[7]) == texts[7]
    config.data.seed = 1
    assert text_of(load.load(config.data, 'train', Bytes())[7]) != texts[7]


@pytest.mark.parametrize(
    'task, words',
    [
        (dict(distances=(100, 30)), 'distances = (100, 30): must be rising ints'),
        (dict(distances=()), 'must be rising ints'),
        (dict(distances=(-1, 3)), 'must be rising ints'),
        (dict(answer_length=0), 'answer_length = 0: must lie between'),
        (dict(kind='needles'), 'kind: not a field here'),
        (dict(keys=2), 'config.data.task.keys: no field can have this name'),
    ],
)
def test_problems(tmp_path, task, words):
    problems = checks.find_problems(config_of(tmp_path, **task), 1)
    assert [problem for problem in problems if words in problem]


def test_texts_that_are_too_short_are_refused(tmp_path):
    config = config_of(tmp_path, distances=(30, 5000))
    with pytest.raises(UsageError, match='no text of the test split'):
        load.load(config.data, 'test', Bytes())
