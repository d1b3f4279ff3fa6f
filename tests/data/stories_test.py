"""Generated stories: what they repeat, pairs of sentences, seeds and settings."""

import random

import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.sets import stories
from longmem_jax.data.tokenizers import Bytes


def config_of(**task):
    config = base()
    config.data.source = 'stories'
    config.data.task = dict(documents=30, eval_documents=6, episodes=(1, 18)) | task
    return config


def test_every_repeated_fact_was_told_before_and_its_other_word_was_not():
    for seed in range(50):
        story = stories.write(random.Random(seed), (1, 18))
        assert 100 <= len(story.words) <= 600
        told = {}
        for at, (word, fact, other) in enumerate(zip(*story, strict=True)):
            assert bool(fact) == bool(other)
            if fact:
                assert word in story.words[:at] and told.setdefault(fact, word) == word != other
                kind = stories.FACTS[fact] or ' '.join(c['name'] for c in stories.CHILDREN.values())
                assert {word, other} <= {*kind.split()}
                assert fact == 'colour' or other not in story.words
        assert told.keys() == stories.FACTS.keys()  # the end repeats all of them


def test_a_childs_pronouns_are_its_own():
    for seed in range(20):
        words = set(stories.write(random.Random(seed), (5, 6)).words)
        assert ({'he', 'his', 'boy'} & words == set()) != ({'she', 'girl'} & words == set())


@pytest.mark.parametrize('kind', ['number', 'gender'])
def test_the_sentences_of_a_pair_differ_in_one_word(kind):
    draw = random.Random(0)
    words = set()
    for _ in range(30):
        right, wrong = (text.split() for text in stories.pairs(draw, kind))
        different = [pair for pair in zip(right, wrong, strict=True) if pair[0] != pair[1]]
        assert len(different) == 1
        words.add(different[0])
        if kind == 'number':
            plural = right[right.index('near') - 1] in stories.WORDS['animals'].split()
            assert different[0][0] == ('were' if plural else 'was')
        else:
            assert different[0][0] == ('She' if 'girl' in right else 'He')
    assert len(words) == 2  # each of the two is right at times


def test_a_seed_writes_the_same_again_and_splits_differ():
    config = config_of()
    assert checks.find_problems(config, 1) == []
    train, again, test = (load.load_source(config.data, s) for s in ('train', 'train', 'test'))
    assert len(train) == 30 and len(test) == 6
    assert train[3].text == again[3].text != test[3].text
    assert train[3].text.endswith(b' .\n')
    config.data.seed = 1
    assert load.load_source(config.data, 'train')[3].text != train[3].text
    assert load.load(config.data, 'test', Bytes())[0].num_bytes == len(load_text(config, 0))
    with pytest.raises(IndexError):
        train[30]


def load_text(config, index):
    return load.load_source(config.data, 'test')[index].text


def test_with_a_path_the_stories_are_those_of_files(tmp_path):
    for split in ('train', 'validation', 'test'):
        (tmp_path / f'{split}.jsonl').write_text('{"text": "Once ."}\n' * 2)
    config = config_of()
    config.data.path = str(tmp_path)
    source = load.load_source(config.data, 'test')
    assert [source[i].text for i in range(len(source))] == [b'Once .'] * 2


@pytest.mark.parametrize('episodes', [(3, 2), (-1, 2), (1,), 4, (1.5, 2), (True, 2), (1, 10**9)])
def test_impossible_numbers_of_episodes_are_named(episodes):
    assert any('episodes' in text for text in stories.check(config_of(episodes=episodes).data.task))


def test_another_field_or_no_documents_are_named():
    assert stories.check({'documents': 0, 'eval_documents': 6, 'episodes': (0, 1)})
    assert stories.check({'documents': 1, 'eval_documents': 6, 'episodes': (0, 1), 'colour': 1})
