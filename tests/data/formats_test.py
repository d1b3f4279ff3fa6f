"""Fields of JSON lines, columns of tables, and what is no text."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from longmem_jax.data.load import load_source
from longmem_jax.data.warnings import warnings_of
from longmem_jax.errors import UsageError
from tests.data.reading import settings, texts

TEXTS = ['one', 'zw\u00f6lf, "quoted"\nand a line', '', 'four']
BYTES = [text.encode() for text in TEXTS]


def table(**columns):
    return pa.table(columns or {'id': [1, 2, 3, 4], 'text': TEXTS, 'body': TEXTS[::-1]})


@pytest.fixture
def folder(tmp_path):
    """Each kind of table as the training split of a folder."""
    for kind in ('parquet', 'csv', 'tsv', 'packed'):
        (tmp_path / kind / 'train').mkdir(parents=True)
    parquet.write_table(table(), tmp_path / 'parquet/train/a.parquet', row_group_size=3)
    csv.write_csv(table(), tmp_path / 'csv/train/a.csv')
    options = csv.WriteOptions(delimiter='\t')
    csv.write_csv(table(), tmp_path / 'tsv/train/a.tsv', write_options=options)
    packed = gzip.compress((tmp_path / 'csv/train/a.csv').read_bytes())
    (tmp_path / 'packed/train/a.csv.gz').write_bytes(packed)
    return tmp_path


@pytest.mark.parametrize('kind', ['parquet', 'csv', 'tsv', 'packed'])
def test_rows_of_a_column_are_documents(folder, kind):
    assert texts(settings(folder / kind)) == BYTES
    assert texts(settings(folder / kind, text_field='body')) == BYTES[::-1]
    source = load_source(settings(folder / kind), 'train')
    assert source[3].text == b'four' and source[0].text == b'one'  # any order
    with pytest.raises(
        UsageError, match="no column 'boddy'.*did you mean 'body'.*are id, text, body"
    ):
        load_source(settings(folder / kind, text_field='boddy'), 'train')


def test_names_of_columns_are_no_commands_of_a_terminal(tmp_path):
    parquet.write_table(table(**{'\x1b[2J': ['a']}), tmp_path / 'a.parquet')
    with pytest.raises(UsageError, match=r'its columns are \\x1b\[2J') as caught:
        load_source(settings(tmp_path / 'a.parquet'), 'train')
    assert '\x1b' not in str(caught.value)


def test_one_table_is_cut_into_splits(tmp_path):
    parquet.write_table(table(text=[str(i) for i in range(20)]), tmp_path / 'a.parquet')
    parts = [
        texts(settings(tmp_path / 'a.parquet'), split) for split in ('train', 'validation', 'test')
    ]
    assert [len(part) for part in parts] == [18, 1, 1]
    assert sum(parts, []) == [str(i).encode() for i in range(20)]


def test_a_table_beside_texts_is_no_text(folder):
    (folder / 'csv/train/b.txt').write_text('a book')
    assert texts(settings(folder / 'csv')) == [b'a book']
    (said,) = warnings_of(settings(folder / 'csv'))
    assert 'a.csv is not read, since b.txt is there' in said
    assert not list(warnings_of(settings(folder / 'tsv')))


def test_a_row_of_a_table_may_be_a_book(tmp_path):
    """Of more bytes than are parsed at once by default, and with lines."""
    book = b'a line\n' * 320_000
    (tmp_path / 'a.csv').write_bytes(b'text,id\nb,1\n"' + book + b'",2\nc,3\n')
    assert texts(settings(tmp_path / 'a.csv', fractions=(0.98, 0.01, 0.01))) == [b'b', book, b'c']


@pytest.mark.parametrize('name', ['a.tsv', 'a.tsv.gz'])
def test_quotation_marks_of_the_text_join_no_rows(tmp_path, name):
    """A table without quoting: its rows from one such mark to the next would be one row."""

    def written(table):
        raw = table.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith('.gz') else raw)
        return texts(settings(path, fractions=(0.8, 0.1, 0.1)))

    said = 'a field begins with a quotation mark, and does not end with the next'
    for table, line in (('"Yes\t1\nno\t2\n"why\t3\nso\t4\n', 4), ('"No," he said\t1\n', 2)):
        with pytest.raises(UsageError, match=f'line {line}: {said}'):
            written('text\tid\n' + table)
    quoted = written('text\tid\n5" of rain\t1\n"a ""b""\n\tc"\t2\n')
    assert quoted == [b'5" of rain', b'a "b"\n\tc']


def test_the_first_line_of_a_table_has_the_names(tmp_path):
    (tmp_path / 'a.csv').write_text('3,some words\n1,others\n')
    with pytest.raises(UsageError, match='columns, named by its first line, are 3, some words'):
        load_source(settings(tmp_path / 'a.csv'), 'train')


def test_tables_without_texts_are_one_message(folder):
    parquet.write_table(table(text=['a', None]), folder / 'none.parquet')
    with pytest.raises(UsageError, match='none.parquet, row 2: nothing in the column'):
        texts(settings(folder / 'none.parquet', fractions=(0.99, 0.005, 0.005)))
    with pytest.raises(UsageError, match="the column 'id' .* has int64, not text"):
        load_source(settings(folder / 'parquet', text_field='id'), 'train')
    for name in ('broken.parquet', 'broken.csv'):
        (folder / name).write_bytes(b'"a\0\xff\n1,2,3\n4')
        with pytest.raises(UsageError, match=f'{name}: '):
            load_source(settings(folder / name), 'train')


def lines(path, *rows):
    path.write_text('\n'.join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_the_field_of_json_lines_has_a_name(tmp_path):
    path = lines(tmp_path / 'a.jsonl', *({'content': text, 'text': 3} for text in TEXTS))
    assert texts(settings(path, text_field='content', fractions=(0.98, 0.01, 0.01))) == BYTES


@pytest.mark.parametrize(
    'rows, message',
    [
        ([{'content': 'a', 'id': 1}], r"line 1: no text in a field 'text' .*it has content, id\."),
        ([{'txt': 'a'}], "line 1: .*config.data.text_field.; did you mean 'txt'"),
        ([{}], 'line 1: .*it has none'),
        (['{"text": '], 'line 1: not a JSON object'),
        (['["text"]'], 'line 1: not a JSON object'),
        ([{'text': None}], "line 1: no text in a field 'text'"),
        (['', {'a': 1}], 'line 2: no text'),
    ],
)  # fmt: skip
def test_a_wrong_field_is_said_when_the_data_are_opened(tmp_path, rows, message):
    """Nothing is compiled before, and it is the first line that is named."""
    with pytest.raises(UsageError, match=message) as caught:
        load_source(settings(lines(tmp_path / 'a.jsonl', *rows, *rows * 40)), 'train')
    assert '\n' not in str(caught.value)


def test_a_later_line_is_named(tmp_path):
    path = lines(
        tmp_path / 'a.jsonl', *({'text': 'a'} for _ in range(8)), {'no': 1}, *[{'text': 'a'}] * 11
    )
    with pytest.raises(UsageError, match="line 9: no text in a field 'text'"):
        texts(settings(path))


@pytest.mark.parametrize(
    'name, content, said',
    [
        ('a.txt', 'plain \u00e9 \u65e5'.encode() * 20_000, None),
        ('a.txt', b'', None),
        ('utf16.txt', 'plain'.encode('utf-16'), 'looks like UTF-16'),
        ('utf16.txt', 'plain text'.encode('utf-16-le'), 'UTF-16 or binary data'),
        (
            'latin1.txt',
            'caf\u00e9'.encode('latin-1'),
            'latin1.txt is not UTF-8 (1 of its first 4 bytes are not text), but',
        ),
        ('a.pdf', b'%PDF-1.7 ...', 'looks like a PDF'),
        ('random.txt', np.random.default_rng(0).bytes(999), 'is not UTF-8'),
        ('a.txt.gz', gzip.compress('plain'.encode('utf-16'), mtime=0), 'looks like UTF-16'),
        ('a.txt', gzip.compress(b'plain', mtime=0), 'gzip without its ending'),
        ('a.gz', b'not gzip', None),
    ],
)
def test_what_is_no_text_is_said(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        found = list(warnings_of(settings(path)))
        if path == tmp_path and not name.startswith('train'):
            assert not found  # no file of a split
            continue
        assert bool(found) == bool(said) and all(said in line for line in found), found
    (tmp_path / 'train').mkdir()
    (tmp_path / name).rename(tmp_path / 'train' / name)
    assert bool(list(warnings_of(settings(tmp_path)))) == bool(said)


@pytest.mark.parametrize('documents', ['file', 'line'])
@pytest.mark.parametrize('name', ['a.txt', 'a.txt.gz', 'a.jsonl', 'a.csv', 'a.tsv'])
def test_a_byte_order_mark_is_no_text(tmp_path, name, documents):
    """Drop it: editors write it before the first letter, which then has tokens of its own."""
    texts_of = {'.jsonl': '{"text": "one"}\n', '.csv': 'text\none\n', '.tsv': 'id\ttext\n1\tone\n'}
    content = texts_of.get(name[1:], 'one').encode('utf-8-sig')
    path = tmp_path / 'train' / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
    assert texts(settings(tmp_path, documents=documents)) == [b'one']
    if name.startswith('a.txt'):
        assert texts(settings(path, fractions=(0.8, 0.1, 0.1))) == [b'on']
    assert not list(warnings_of(settings(tmp_path)))


def test_fractions_of_a_folder_are_said_to_be_unused(tmp_path):
    assert not list(warnings_of(settings(tmp_path, fractions=(0.9, 0.2, 0.2))))  # no splits there
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train' / 'a.txt').write_text('a')
    (said,) = warnings_of(settings(tmp_path, fractions=(0.9, 0.2, 0.2)))
    assert 'config.data.fractions = (0.9, 0.2, 0.2) is not used' in said
    assert not list(warnings_of(settings(tmp_path))) and not list(
        warnings_of(settings('', source='stdlib'))
    )
