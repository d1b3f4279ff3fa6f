"""Lifelong relation extraction: files as distributed, clusters, candidates that were seen."""

from pathlib import Path

import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import heads, stream
from longmem_jax.lifelong.data import clusters, relations
from tests.lifelong.words import word_tokenizer, words_of

SHARED = Path(__file__).parents[3] / 'shared' / 'data' / 'fewrel' / 'lifelong80'
NAMES = ['mother of', 'father', 'river bank', 'lake shore', 'mouth of river', 'child of']
SETTINGS = relations.SETTINGS | dict(num_clusters=2, max_length=16)
TRAIN = [
    '1\t2 1 4\tAnn ran',
    '2\t1 3 4\tBob ran\t\tmore',
    '3\t1 2 4\tthe river ran',
    '4\t3 1\tthe lake ran',
    '5\t5 6\tthe mouth ran',
    '6\tnoNegativeAnswer\tskipped',
    '',
    '6\t5 4 1\tthe child ran',
]
TEST = ['1\t2 3\tAnn sat', '3\t4 1\tthe river sat', '5\t6 1\tthe mouth sat']
CLUSTERS = [[0, 1, 5], [2, 3, 4]]
WORDS = 'ann bob ran sat the river lake mouth child mother father of bank shore'.split()


def write(root, train=TRAIN, test=TEST, names=NAMES):
    (root / 'relation_name.txt').write_text('\n'.join(names) + '\n')
    (root / 'training_data.txt').write_text('\n'.join(train) + '\n')
    (root / 'val_data.txt').write_text('\n'.join(test) + '\n')
    return root


def read(root, **changes):
    return relations.read(str(root), SETTINGS | changes)


def by_sentence(examples):
    return {
        text: [i for i in row.tolist() if i >= 0]
        for text, row in zip(examples.sentences, examples.candidates, strict=True)
    }


def test_files(tmp_path):
    found = read(write(tmp_path))
    assert found.names == NAMES
    # The right one first, once; numbers from 0.
    assert by_sentence(found.train) == {
        'Ann ran': [0, 1, 3],
        'Bob ran': [1, 0, 2, 3],
        'the river ran': [2, 0, 1, 3],
        'the lake ran': [3, 2, 0],
        'the mouth ran': [4, 5],
        'the child ran': [5, 4, 3, 0],
    }
    assert len(found.test.sentences) == 3
    some = read(tmp_path, rows=3, test_rows=1)
    assert [len(part.sentences) for part in some[1:]] == [3, 1]
    assert 'skipped' not in relations.training_texts(found)


def test_rows_and_names(tmp_path):
    tokenizer = word_tokenizer(*WORDS)
    encoded = relations.encode(read(write(tmp_path)), tokenizer, 16)
    assert encoded.names.shape == (6, 4) and encoded.names.dtype == np.uint16
    assert words_of(tokenizer, encoded.names[0]) == ['mother', 'of', '[SEP]']
    assert encoded.train.tokens.shape == (6, 12)
    rows = {' '.join(words_of(tokenizer, row)) for row in encoded.train.tokens}
    assert '[CLS] the river ran [SEP]' in rows
    with pytest.raises(UsageError, match='a relation has 4 tokens'):
        relations.encode(read(tmp_path), tokenizer, 7)


def test_only_relations_that_tasks_had_are_candidates(tmp_path):
    tokenizer = word_tokenizer(*WORDS)
    encoded = relations.encode(read(write(tmp_path)), tokenizer, 16)
    found = relations.tasks(encoded, CLUSTERS, (0, 1))
    assert list(found) == ['cluster 0', 'cluster 1']

    def candidates(rows):
        return {
            ' '.join(words_of(tokenizer, row)[1:-1]): (gold, {i for i in others if i >= 0})
            for row, gold, others in zip(
                rows.tokens, rows.answer.gold.tolist(), rows.answer.candidates.tolist(), strict=True
            )
        }

    # In the first cluster 2, 3, 4 were not seen.
    assert candidates(found['cluster 0'].train) == {
        'ann ran': (0, {0, 1}),
        'bob ran': (1, {0, 1}),
        'the child ran': (5, {0, 5}),
    }
    assert candidates(found['cluster 1'].train) == {
        'the river ran': (2, {0, 1, 2, 3}),
        'the lake ran': (3, {0, 2, 3}),
        'the mouth ran': (4, {4, 5}),
    }
    # The other way round the last two stay where none was seen.
    turned = relations.tasks(encoded, CLUSTERS, (1, 0))
    assert candidates(turned['cluster 1'].train)['the river ran'] == (2, {2, 3})
    assert candidates(turned['cluster 1'].train)['the mouth ran'] == (4, {4, 5})
    # Shuffled together all were seen from the start: a bound must not learn that late ones are right.
    joint = relations.tasks(encoded, CLUSTERS, (1, 0), all_candidates=True)
    assert candidates(joint['cluster 1'].train)['the river ran'] == (2, {0, 1, 2, 3}), (
        'relations.tasks removes candidates of tasks that are shuffled together'
    )
    # Tests keep theirs, and are all of the test file.
    tests = [task.test for task in turned.values()]
    assert sum(map(len, tests)) == 3
    assert candidates(turned['cluster 1'].test)['the mouth sat'] == (4, {0, 4, 5})
    whole = stream.in_order(found, tuple(found), seed=0)
    assert isinstance(whole.rows.answer, heads.Choice) and len(whole.rows) == 6
    inputs = heads.Candidates(encoded.names).inputs(whole.rows)
    assert inputs.tokens.shape[1] == 16
    pairs = {
        ' '.join(words_of(tokenizer, row[there]))
        for row, there in zip(np.asarray(inputs.tokens), np.asarray(inputs.valid), strict=True)
    }
    assert '[CLS] the river ran [SEP] lake shore [SEP]' in pairs


def test_the_last_two_stay_where_no_other_was_seen():
    candidates = np.asarray([[0, 3, 4, 5, -1], [0, 1, 3, 4, 5]], np.int32)
    seen = np.asarray([True, True, False, False, False, False])
    expected = [[0, 4, 5, -1, -1], [0, 1, -1, -1, -1]]
    np.testing.assert_array_equal(relations.only_seen(candidates, seen), expected)


def test_clusters_from_a_file(tmp_path):
    found = read(write(tmp_path))
    (tmp_path / 'clusters.txt').write_text('1 2 6\n3 4 5\n')
    said = []
    settings = SETTINGS | dict(clusters=str(tmp_path / 'clusters.txt'))
    assert clusters.find(found, None, settings, report=said.append) == CLUSTERS
    assert str(tmp_path / 'clusters.txt') in said[0]
    (tmp_path / 'clusters.txt').write_text('1 2 6\n3 4\n')
    with pytest.raises(UsageError, match='the relation 5 is in 0 clusters'):
        clusters.find(found, None, settings)
    (tmp_path / 'clusters.txt').write_text('1 2 7\n')
    with pytest.raises(UsageError, match="relation '7'"):
        clusters.find(found, None, settings)
    with pytest.raises(UsageError, match='give a file of clusters'):
        clusters.find(found, None, SETTINGS)


def test_clusters_of_word_vectors(tmp_path):
    """Words of people and words of water lie apart."""
    found = read(write(tmp_path))
    water = {'river', 'bank', 'lake', 'shore', 'mouth'}
    lines = [f'{word} {int(word in water)}.5 0.{i}' for i, word in enumerate(WORDS)]
    (tmp_path / 'glove.txt').write_text('\n'.join(line for line in lines if line[:2] != 'of'))
    said = []
    settings = SETTINGS | dict(vectors=str(tmp_path / 'glove.txt'))
    made = clusters.find(found, None, settings, report=said.append)
    assert sorted(made) == CLUSTERS and 'mean word vectors' in said[0]
    assert made == clusters.find(found, None, settings, report=said.append)
    (tmp_path / 'glove.txt').write_text('mother 1 2\n')
    with pytest.raises(UsageError, match="none of the words of the relation 'father'"):
        clusters.find(found, None, settings)
    (tmp_path / 'glove.txt').write_text('mother 1 x\n')
    with pytest.raises(UsageError, match='cannot be read as lines'):
        clusters.find(found, None, settings)


def test_clusters_of_the_tokens_of_an_encoder(tmp_path):
    found, tokenizer = read(write(tmp_path)), word_tokenizer(*WORDS)
    encoded = relations.encode(found, tokenizer, 16)
    table = np.zeros((tokenizer.vocab_size, 2))
    for word in ('river', 'bank', 'lake', 'shore', 'mouth'):
        table[tokenizer.token_id(word)] = 1
    said = []
    made = clusters.find(found, encoded.names, SETTINGS, table, said.append)
    assert sorted(made) == CLUSTERS and "encoder's tokens" in said[0]
    vectors = clusters.vectors_of_tokens(encoded.names, table)
    np.testing.assert_allclose(vectors[2], [2 / 3, 2 / 3])
    with pytest.raises(UsageError, match='num_clusters = 7: 6 relations'):
        clusters.find(found, encoded.names, SETTINGS | dict(num_clusters=7), table)
    with pytest.raises(UsageError, match='num_clusters = 5'):
        clusters.by_k_means(np.zeros((6, 2)), 5, 0)


@pytest.mark.parametrize(
    'line, message',
    [
        ('1\tAnn ran', r'data.txt:1: has 2 columns'),
        ('7\t1 2\tAnn ran', "the relation '7'"),
        ('1\t0 2\tAnn ran', "the relation '0'"),
        ('one\t1 2\tAnn ran', "the relation 'one'"),
        ('1\t1\tAnn ran', 'one right relation'),
        ('1\t2 3\t ', 'one right relation'),
        ('', 'has no examples'),
    ],
)
def test_wrong_lines(tmp_path, line, message):
    with pytest.raises(UsageError, match=message):
        read(write(tmp_path, train=[line]))


def test_other_problems(tmp_path):
    with pytest.raises(UsageError, match='must have relation_name.txt'):
        read(tmp_path)
    write(tmp_path)
    with pytest.raises(UsageError, match='num_clusters = 0'):
        read(tmp_path, num_clusters=0)
    with pytest.raises(UsageError, match='has 6 usable rows'):
        read(tmp_path, rows=7)
    encoded = relations.encode(read(tmp_path, rows=1), word_tokenizer(), 40)
    with pytest.raises(UsageError, match='no row of the training file'):
        relations.tasks(encoded, CLUSTERS, (0, 1))


@pytest.mark.skipif(not SHARED.is_dir(), reason='the real files are not here')
def test_real_files():
    found = relations.read(str(SHARED), relations.SETTINGS)
    assert len(found.names) == 80 and len(found.test.sentences) == 1600
    assert found.train.candidates.shape == (8210, 11)
    order = stream.random_order(range(10), 0)
    assert sorted(order) == list(range(10)) and order != stream.random_order(range(10), 1)
