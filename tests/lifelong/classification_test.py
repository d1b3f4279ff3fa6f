"""The five sets of text classification: files as distributed, cleaning, classes, equal numbers."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from longmem_jax.data import tokenizers
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.lifelong import stream
from longmem_jax.lifelong.data import classification as data
from longmem_jax.lifelong.data.texts import Marked
from tests.lifelong.words import word_tokenizer, words_of

SHARED = Path(__file__).parents[3] / 'shared' / 'data' / 'text_classification'
SETTINGS = dict(rows=4, test_rows=3, max_length=8, cleaning='plain', seed=1)
COLUMNS = {'yelp': 1, 'amazon': 2, 'ag_news': 2, 'dbpedia': 2, 'yahoo': 3}


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, 'w', newline='', encoding='utf-8') as out:
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator='\n').writerows(rows)


def write_set(root, name, train=8, test=5, folder=None):
    """Rows whose text has the name and the number of the row."""
    count = data.SETS[name].classes
    for split, rows in (('train', train), ('test', test)):
        write(
            root / (folder or name) / f'{split}.csv',
            [
                [1 + i % count, *(f'{name} {split} {i} {part}' for part in range(COLUMNS[name]))]
                for i in range(rows)
            ],
        )


@pytest.fixture
def root(tmp_path):
    for name in data.SETS:
        write_set(tmp_path, name, folder=data.SETS[name].folders[-1])
    return tmp_path


def test_every_set_gives_as_many_rows_and_its_own_classes(root):
    found = data.read(str(root), SETTINGS)
    assert set(found) == set(data.SETS)
    for name, splits in found.items():
        assert [len(part.texts) for part in splits] == [4, 3], name
        source = data.SETS[name]
        for part in splits:
            for text, label in zip(part.texts, part.classes, strict=True):
                number = int(text.split()[2])
                assert text.startswith(name) and label == source.first + number % source.classes
    taken = np.concatenate(
        [np.arange(s.first, s.first + s.classes) for n, s in data.SETS.items() if n != 'yelp']
    )
    np.testing.assert_array_equal(np.sort(taken), np.arange(data.CLASSES))
    assert data.SETS['yelp'][2:] == data.SETS['amazon'][2:]
    assert len(data.training_texts(found)) == 20


def test_rows_are_the_same_for_a_seed_and_others_for_another(root):
    one, again = (data.read(str(root), SETTINGS) for _ in range(2))
    assert one['yelp'].train.texts == again['yelp'].train.texts
    other = data.read(str(root), SETTINGS | dict(seed=2))
    assert one['yelp'].train.texts != other['yelp'].train.texts


@pytest.mark.parametrize(
    'name, cleaning, columns, text',
    [
        ('yelp', 'plain', ['a\\nb \\"c\\"'], 'a\nb "c"'),
        ('ag_news', 'plain', ['T', 'second\\team for \\$5'], 'T second team for  $5'),
        ('yahoo', 'plain', ['q', '', 'a'], 'q  a'),
        ('yahoo', 'mll', ['Who', 'Am', 'I?'], 'whoami?'),
        ('dbpedia', 'mll', ['Ann', 'She ran!!  Why??'], 'ann. she ran! why?'),
        ('amazon', 'mll', ['A', 'See http://x.org/a?b now\\nfor $5 ...'], 'a. see now for $ 5 .'),
    ],
)
def test_cleaning(tmp_path, name, cleaning, columns, text):
    write(tmp_path / 'f.csv', [[1, *columns]])
    assert data.read_file(tmp_path / 'f.csv', name, cleaning).texts == [text]


def test_rows_without_a_part_are_left_out_as_released(tmp_path):
    write(tmp_path / 'f.csv', [[1, 'q', ' ', 'a'], [2, 'q', 'c', 'a'], [3, '', ' ', '']])
    assert data.read_file(tmp_path / 'f.csv', 'yahoo', 'mll').texts == ['qca']
    assert data.read_file(tmp_path / 'f.csv', 'yahoo', 'plain').texts == ['q   a', 'q c a']


def test_rows_are_marked_cut_and_padded(tmp_path):
    write(tmp_path / 'f.csv', [[1, 'one two [SEP] one'], [2, 'one ' * 9]])
    examples = data.read_file(tmp_path / 'f.csv', 'yelp', 'plain')
    tokenizer = word_tokenizer('one', 'two')
    splits = data.Splits(examples, examples)
    rows = data.tasks({'yelp': splits}, tokenizer, 6)['yelp'].train
    assert rows.tokens.dtype == np.uint16 and rows.types.dtype == np.uint8
    first, second = (words_of(tokenizer, row) for row in rows.tokens)
    assert first[:3] == ['[CLS]', 'one', 'two'] and '[SEP]' not in first[1:-1]
    assert second == ['[CLS]', *['one'] * 4, '[SEP]']
    np.testing.assert_array_equal(rows.answer, [0, 1])
    assert rows.answer.dtype == np.int32 and not rows.types.any()
    short = data.tasks({'yelp': splits}, tokenizer, 32)['yelp'].train.tokens[1]
    assert (short[11:] == 65535).all() and (short[:11] < 65535).all()


def test_a_file_that_ends_within_a_row_is_refused(tmp_path):
    write(tmp_path / 'f.csv', [['1', 'a', 'b'], ['2', 'c', 'de']])
    whole = (tmp_path / 'f.csv').read_text()
    (tmp_path / 'f.csv').write_text(whole[:-3])
    with pytest.raises(UsageError, match='unexpected end of data'):
        data.read_file(tmp_path / 'f.csv', 'ag_news', 'plain')


BAD = {
    'has 2 columns, and ag_news has 3': [['1', 'text']],
    "the class is '5'": [['5', 'a', 'b']],
    "the class is '0'": [['0', 'a', 'b']],
    "the class is 'label'": [['label', 'a', 'b']],
    'has no rows with a text': [['1', ' ', '']],
}


@pytest.mark.parametrize('message', BAD)
def test_wrong_files(tmp_path, message):
    write(tmp_path / 'f.csv', BAD[message])
    with pytest.raises(UsageError, match=re.escape(message)):
        data.read_file(tmp_path / 'f.csv', 'ag_news', 'plain')


def test_blank_lines_are_left_out(tmp_path):
    file = tmp_path / 'f.csv'
    file.write_text('"1","a"\n\n"2","b"\n\n')
    assert data.read_file(file, 'yelp', 'plain').texts == ['a', 'b']
    file.write_text('"1","a"\n\n"6","b"\n')
    with pytest.raises(UsageError, match='row 3: the class is .6.'):
        data.read_file(file, 'yelp', 'plain')


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(rows=9), 'train.csv: has 8 usable rows.*rows = 9 needs 9'),
        (dict(test_rows=6), 'test.csv: has 5 usable rows'),
        (dict(cleaning='mild'), 'cleaning = .mild.: '),
        (dict(rows=0), 'rows = 0'),
        (dict(extra=1), 'extra: not a field'),
    ],
)
def test_wrong_settings(root, changes, message):
    with pytest.raises(UsageError, match=message):
        data.read(str(root), SETTINGS | changes)


def test_wrong_folders_and_tokenizers(root, tmp_path):
    with pytest.raises(UsageError, match='has no folder yelp or yelp_review_full_csv'):
        data.read(str(root / 'nowhere'), SETTINGS)
    with pytest.raises(UsageError, match="task = 'sst5'"):
        data.read(str(root), SETTINGS, ('sst5',))
    with pytest.raises(UsageError, match='cannot be read as csv'):
        data.read_file(root / 'none.csv', 'yelp', 'plain')
    found = data.read(str(root), SETTINGS, ('yelp',))
    for tokenizer in (Bytes(), word_tokenizer(marks=['[PAD]', '[UNK]', '[CLS]'])):
        with pytest.raises(UsageError, match=r'has no \[CLS\] and \[SEP\]'):
            data.tasks(found, tokenizer, 8)


def made(root):
    return data.tasks(data.read(str(root), SETTINGS), word_tokenizer(), 32)


def test_streams_are_a_single_pass_in_the_published_orders(root):
    tasks = made(root)
    for order in data.ORDERS:
        names = stream.named_order(data.ORDERS, order)
        assert sorted(names) == sorted(data.SETS)
        found = stream.in_order(tasks, names, seed=0)
        np.testing.assert_array_equal(found.tasks, np.repeat(np.arange(5), 4))
        np.testing.assert_array_equal(found.ends, [4, 8, 12, 16, 20])
        for number, name in enumerate(names):
            rows = found.rows.tokens[found.tasks == number]
            assert sorted(map(bytes, rows)) == sorted(map(bytes, tasks[name].train.tokens))
            assert found.tests[number] is tasks[name].test
    assert stream.named_order(data.ORDERS, 'i')[0] == 'yelp'
    one, other = (stream.in_order(tasks, data.ORDERS['i'], seed) for seed in (0, 1))
    assert not np.array_equal(one.rows.tokens, other.rows.tokens)
    # Labels move with their texts.
    for name, task in tasks.items():
        number = data.ORDERS['i'].index(name)
        pairs = set(zip(map(bytes, task.train.tokens), task.train.answer.tolist(), strict=True))
        inside = one.tasks == number
        assert pairs == set(
            zip(map(bytes, one.rows.tokens[inside]), one.rows.answer[inside].tolist(), strict=True)
        )


def test_the_bounds(root):
    tasks = made(root)
    joint = stream.joint(tasks, data.ORDERS['i'], seed=0, epochs=2)
    assert len(joint.rows) == 40 and len(set(joint.tasks[:8])) > 1
    halves = [sorted(map(bytes, part)) for part in np.split(joint.rows.tokens, 2)]
    assert halves[0] == halves[1]
    assert not np.array_equal(*np.split(joint.rows.tokens, 2))
    once = stream.in_order(tasks, data.ORDERS['i'], seed=0)
    assert sorted(map(bytes, once.rows.tokens)) == halves[0]
    alone = stream.single(tasks, 'yahoo', seed=0)
    assert alone.names == ('yahoo',) and len(alone.rows) == 4 and not alone.tasks.any()


def test_wrong_orders(root):
    tasks = made(root)
    with pytest.raises(UsageError, match="order = 'v'"):
        stream.named_order(data.ORDERS, 'v')
    with pytest.raises(UsageError, match="order = 'sst5'"):
        stream.in_order(tasks, ('yelp', 'sst5'), 0)
    with pytest.raises(UsageError, match='none twice'):
        stream.in_order(tasks, ('yelp', 'yelp'), 0)


@pytest.mark.skipif(not SHARED.is_dir(), reason='the real files are not here')
def test_real_files():
    settings = data.SETTINGS | dict(rows=2500, test_rows=400)
    found = data.read(str(SHARED), settings)
    for name, splits in found.items():
        first, count = data.SETS[name].first, data.SETS[name].classes
        np.testing.assert_array_equal(np.unique(splits.train.classes), first + np.arange(count))
        assert min(map(len, splits.test.texts)) > 3


def test_many_texts_at_once_have_the_same_tokens(monkeypatch):
    monkeypatch.setattr(tokenizers, 'ENCODED_TEXTS', 2)
    tokenizer = word_tokenizer('one', 'two')
    texts = ['one two', '', 'other\nwords [SEP]', 'two', '\ud800 one']
    marked = Marked(tokenizer)
    for text, ids in zip(texts, marked.all_ids(texts), strict=True):
        np.testing.assert_array_equal(ids, marked.ids(text))
        if text.isascii():
            np.testing.assert_array_equal(ids, marked.ids_with_places(text)[0])
